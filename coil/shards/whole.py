"""The manifest of the whole: a small JSON file that says which indexes are the shards of one, and where.

    {"coil_shards": 1, "whole": "…", "routing": "blake2b-64", "settings": {…}, "build": null, "shards": […]}

Every shard is an ordinary index, whose settings say which shard of which whole it is. `version` is the one
that the shard had when the manifest was written; a later one is fine, an earlier one is an old copy.
docs/format.md describes all keys.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from coil.errors import DamagedManifest, MixedShards, NewerIndex
from coil.indexes.settings import MOST_SHARDS, ShardLabel
from coil.shards.routing import ROUTING, Routing

FORMAT = 1
WHOLE_FILE = "shards.json"
LARGEST = 16 << 20  # bytes
_KEYS = frozenset(("coil_shards", "whole", "routing", "settings", "build", "shards"))
_SHARD = frozenset(("path", "index_id", "version", "documents"))
_REMEDY = "restore the folder from a backup, or rebuild the index"


@dataclass(frozen=True)
class ShardEntry:
    """A shard as listed in the manifest; `path` is relative to the manifest's folder."""

    path: str
    index_id: str
    version: int
    documents: int  # when the manifest was written

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest."""
        return dict(vars(self))


@dataclass(frozen=True)
class WholeManifest:
    """A sharded index: its settings, which are those of every shard, and its shards in order."""

    settings: Mapping[str, Any]
    shards: tuple[ShardEntry, ...]
    whole: str = field(default_factory=lambda: uuid.uuid4().hex)  # identifies this index
    build: Mapping[str, Any] | None = None  # how far an unfinished build has come

    @property
    def routing(self) -> Routing:
        """Which document is in which shard."""
        return Routing(len(self.shards))

    def label(self, number: int) -> ShardLabel:
        """The label in the settings of a shard."""
        return ShardLabel(self.whole, number, len(self.shards))

    def to_bytes(self) -> bytes:
        """The bytes of the file."""
        value = {
            "coil_shards": FORMAT,
            "whole": self.whole,
            "routing": ROUTING,
            "settings": self.settings,
            "build": self.build,
            "shards": [entry.to_json() for entry in self.shards],
        }
        return json.dumps(value, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> WholeManifest:
        """Parse a file; anything invalid is an error."""
        try:
            if len(content) > LARGEST:
                raise ValueError(f"it exceeds the limit of {LARGEST:,} bytes")
            value = json.loads(content)
            found = value["coil_shards"]
            if type(found) is int and found > FORMAT:
                raise NewerIndex(
                    f"{where} has format {found}; this version reads {FORMAT}", "upgrade coil-ir"
                )
            _check(found == FORMAT and value.keys() == _KEYS, "it has missing or unknown keys")
            _check(value["routing"] == ROUTING, f"its routing is {value['routing']!r:.40}")
            settings, build = value["settings"], value["build"]
            _check(isinstance(settings, dict), "its settings are not an object")
            _check(build is None or isinstance(build, dict), "its build state is not an object")
            shards = tuple(_entry(entry) for entry in value["shards"])
            _check(0 < len(shards) <= MOST_SHARDS, f"it has {len(shards)} shards")
            _check(len({entry.path for entry in shards}) == len(shards), "it lists a shard twice")
            ShardLabel(value["whole"], 0, len(shards))  # checks the id
            return cls(settings, shards, value["whole"], build)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            told = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | TypeError) else error
            raise DamagedManifest(f"{where} is damaged: {told}", _REMEDY) from error

    def check_shard(
        self, number: int, where: str, index_id: str, settings: Mapping[str, Any], version: int
    ) -> None:
        """Refuse an index that is not the shard it should be."""
        entry, expected = self.shards[number], {**self.settings, "shard": self.label(number).to_json()}
        if settings.get("fingerprint") != expected.get("fingerprint"):
            raise MixedShards(
                f"{where} was built with the model {settings.get('fingerprint')}, but the other shards with "
                f"{expected.get('fingerprint')}",
                "restore the shard that was built with the others, or rebuild the index",
            )
        if index_id != entry.index_id or dict(settings) != expected:
            raise MixedShards(
                f"{where} is not shard {number} of this index but another index",
                "restore the shard that was built with the others, or rebuild the index",
            )
        if version < entry.version:
            raise MixedShards(
                f"{where} has version {version}, an earlier one than {entry.version}, which it had before",
                "restore all shards from the same backup, or rebuild the index",
            )

    def with_shards(self, shards: Sequence[ShardEntry], **others: Any) -> WholeManifest:
        """A copy with these states of its shards."""
        return replace(self, shards=tuple(shards), **others)


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _entry(value: Any) -> ShardEntry:
    _check(isinstance(value, dict) and value.keys() == _SHARD, "a shard has missing or unknown keys")
    entry = ShardEntry(**value)
    path = PurePosixPath(entry.path)
    _check(
        not path.is_absolute() and len(path.parts) == 1 and ".." not in path.parts,
        "a shard is outside the folder",
    )
    _check(
        all(type(n) is int and 0 <= n < 2**62 for n in (entry.version, entry.documents)), "a count is invalid"
    )
    _check(isinstance(entry.index_id, str), "a shard has no id")
    return entry
