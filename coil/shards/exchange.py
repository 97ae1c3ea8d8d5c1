"""The messages between a searcher and its shards. Times are seconds left, because clocks differ."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coil import errors
from coil.errors import CoilError
from coil.hits.rankers import Counts
from coil.hits.ranking import Ranking
from coil.scores.prepared import PreparedQuery, Saturation
from coil.scores.statistics import Totals
from coil.storage.facts import IndexFacts
from coil.texts.asking import Condition
from coil.tokens.profile import By
from coil.vectors.token_vectors import TokenVectors

if TYPE_CHECKING:
    from typing import Self

Wanted = Literal["nothing", "ids", "texts"]
_NO_PLACES = np.zeros(0, np.intp)
_NOTHING = TokenVectors(
    (), np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros((0, 0), np.float32), None
)


@dataclass(frozen=True)
class Narrowing:
    """Which documents may be hits: those that pass the filter and meet all conditions."""

    filter: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, eq=False)
class PackedQueries:
    """What ranking needs of queries that were prepared alike, concatenated in a few arrays: writing and
    reading a message of many small arrays takes longer than ranking."""

    keys: tuple[str, ...]  # [tokens]
    lengths: NDArray[np.int32]  # [queries]: tokens
    bases: NDArray[np.float32]  # [tokens]
    vectors: NDArray[np.float32]  # [tokens, n_t or 0]
    sentences: NDArray[np.float32] | None  # [queries, n_c]
    saturation: Saturation | None
    floor: bool

    @classmethod
    def of(cls, queries: Sequence[PreparedQuery]) -> PackedQueries:
        """Pack at least one query."""
        first = queries[0]
        return cls(
            tuple(key for query in queries for key in query.keys),
            np.array([len(query) for query in queries], np.int32),
            np.concatenate([query.bases for query in queries]),
            np.concatenate([query.vectors for query in queries]),
            None if first.sentence is None else np.array([query.sentence for query in queries]),
            first.saturation,
            first.floor,
        )

    def unpack(self) -> list[PreparedQuery]:
        """Unpack the queries, without what only the searcher needs."""
        found, begin = [], 0
        for number, length in enumerate(self.lengths.tolist()):
            of = slice(begin, begin + length)
            sentence = None if self.sentences is None else self.sentences[number]
            found.append(
                PreparedQuery(
                    self.keys[of],
                    self.bases[of],
                    self.vectors[of],
                    sentence,
                    _NO_PLACES,
                    self.saturation,
                    self.floor,
                    _NOTHING,
                )
            )
            begin += length
        return found


@dataclass(frozen=True, eq=False)
class RankAsk:
    """A request for the k best documents of each query. A document below `at_least` is not a hit; for one
    below its query's threshold, other shards already have k hits. The parts of documents that are `wanted`
    come with the ranking."""

    queries: PackedQueries
    k: int
    narrowing: Narrowing
    at_least: int
    thresholds: tuple[int, ...] | None = None
    seconds: float | None = None
    wanted: Wanted = "nothing"


@dataclass(frozen=True, eq=False)
class PlacedRanking(Ranking):
    """A ranking over shards: `segments` are numbers of shards, with the characters of the rows."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """Scores on the grid, ordinals, shards, rows, and the characters of the rows."""
        return (*super().columns, self.starts, self.ends)


@dataclass(frozen=True, eq=False)
class PlacedRankings:
    """The rankings of several queries, concatenated, and the scorers' work counts for each query."""

    found: PlacedRanking
    lengths: NDArray[np.int64]  # [queries]: hits
    counts: NDArray[np.int64]  # [queries, kinds]

    @classmethod
    def joined(cls, parts: Sequence[Self], k: int) -> Self:
        """The k best of each query over all parts, by the rule of `Ranking.joined`."""
        columns = [np.concatenate(of) for of in zip(*(part.found.columns for part in parts), strict=True)]
        queries = np.concatenate([np.repeat(np.arange(len(part.lengths)), part.lengths) for part in parts])
        order = merge_order(queries, *columns[:3])
        lengths = np.sum([part.lengths for part in parts], axis=0, dtype=np.int64)
        k = min(k, len(order))  # it may have more than 64 bits
        place = np.arange(len(order)) - np.repeat(np.cumsum(lengths) - lengths, lengths)  # within its query
        order = order[place < k]
        counts = np.asarray(np.sum([part.counts for part in parts], axis=0, dtype=np.int64))
        return cls(PlacedRanking(*(column[order] for column in columns)), np.minimum(lengths, k), counts)

    def each(self) -> list[tuple[PlacedRanking, Counts]]:
        """The ranking and the counts of every query."""
        ends = np.cumsum(self.lengths).tolist()
        columns, counts = self.found.columns, self.counts.tolist()
        return [
            (PlacedRanking(*(column[end - length : end] for column in columns)), Counts(*of))
            for end, length, of in zip(ends, self.lengths.tolist(), counts, strict=True)
        ]


def merge_order(
    queries: NDArray[np.int64],
    scores: NDArray[np.int64],
    ordinals: NDArray[np.int64],
    shards: NDArray[np.int32],
) -> NDArray[np.intp]:
    """The order of hits: by query, then score descending, then ordinal, whichever shard they are from."""
    return np.lexsort((ordinals, -scores, queries))


class RankReply(NamedTuple):
    """What one shard found for all queries, and the parts of the documents that were wanted."""

    rankings: PlacedRankings
    looked_up: LookedUp | None


@dataclass(frozen=True)
class ShardState:
    """The current state of a shard."""

    version: int
    next_ordinal: int
    documents: int
    exact_in: str  # "" if it has no rows


class ShardFacts(NamedTuple):
    """What is in a shard; `lengths` are the living mentions of every list, by its key."""

    facts: IndexFacts
    lengths: dict[str, int]
    stored_mentions: int  # deleted ones included


class LookedUp(NamedTuple):
    """Documents of hits as columns: ids and sizes, and texts and fields of as many as fit, from the first.
    If no texts were wanted, there are only ids."""

    doc_ids: list[str]
    sizes: list[int]
    texts: list[str]
    fields: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class ExplainAsk:
    """Documents to explain for an encoded query, with the statistics of the whole."""

    query: str
    by: By
    vectors: TokenVectors
    totals: Totals
    doc_ids: tuple[str, ...]
    sentence_parts: bool
    seconds: float | None = None


class Put(NamedTuple):
    """A shard after a change, and the documents that had no text."""

    state: ShardState
    empty: list[str]


@dataclass(frozen=True)
class Refusal:
    """An error of this library to send between processes, whatever its constructor takes."""

    kind: str
    values: dict[str, Any]

    @classmethod
    def of(cls, error: CoilError) -> Refusal:
        return cls(type(error).__name__, dict(vars(error)))

    def error(self) -> CoilError:
        """The error itself."""
        kind = getattr(errors, self.kind, CoilError)
        error: CoilError = kind.__new__(kind)
        error.args = (self.values["reason"],)
        vars(error).update(self.values)
        return error

    def to_bytes(self) -> bytes:
        """As JSON; values that it does not know become text."""
        return json.dumps([self.kind, self.values], default=str).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> Refusal:
        """Restore from JSON."""
        return cls(*json.loads(content))


def seconds_left(deadline: float | None) -> float | None:
    """From a time of `time.monotonic`."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def deadline_in(seconds: float | None) -> float | None:
    """As a time of `time.monotonic`."""
    return None if seconds is None else time.monotonic() + seconds
