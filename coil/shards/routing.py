"""Routing: which shard a document is in, and its ordinal, which orders it among the documents of all shards.

The i-th document of the whole gets the ordinal i · n + s in shard s of n. So ordinals are in order of
insertion over all shards, no two are the same, whoever assigns them, and each identifies its shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from coil.texts.values import clean

ROUTING = "blake2b-64"  # the name of the rule, in the manifest of the whole


@dataclass(frozen=True)
class Routing:
    """The rule for `count` shards."""

    count: int

    def shard_of(self, doc_id: str) -> int:
        """The shard that a document with this id belongs to."""
        digest = blake2b(clean(doc_id).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % self.count

    def ordinal(self, place: int, shard: int) -> int:
        """The ordinal of the document at a place in the order of insertion, from 1, in its shard."""
        return place * self.count + shard

    def holder_of(self, ordinal: int) -> int:
        """The shard that contains the document with this ordinal."""
        return ordinal % self.count

    def next_place(self, next_ordinals: Iterable[int]) -> int:
        """The first free place, given the next ordinals of the shards."""
        return max((-(-ordinal // self.count) for ordinal in next_ordinals), default=1)

    def split(self, ordinals: Sequence[int]) -> dict[int, list[int]]:
        """Group ordinals by shard, in the given order."""
        parts: dict[int, list[int]] = {}
        for ordinal in ordinals:
            parts.setdefault(ordinal % self.count, []).append(ordinal)
        return parts
