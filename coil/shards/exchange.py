"""What a searcher and its shards say to each other. Times are seconds left, because clocks differ."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coil import errors
from coil.errors import CoilError
from coil.hits.rankers import Counts
from coil.hits.ranking import Ranking
from coil.scores.prepared import PreparedQuery
from coil.scores.statistics import Totals
from coil.storage.facts import IndexFacts
from coil.texts.asking import Condition
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.vectors.token_vectors import TokenVectors

_NOTHING = TokenVectors(
    (), np.zeros(0, np.int32), np.zeros((0, 2), np.int32), np.zeros((0, 0), np.float32), None
)


@dataclass(frozen=True)
class Narrowing:
    """Which documents may be hits: those that a filter keeps and that fulfil all conditions."""

    filter: str | None = None
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, eq=False)
class RankAsk:
    """The k best documents of each query are wanted. Below `at_least` a document is no hit; below one of the
    `thresholds`, others have k hits already."""

    queries: tuple[PreparedQuery, ...]
    k: int
    narrowing: Narrowing
    at_least: int
    thresholds: tuple[int, ...] | None = None
    seconds: float | None = None

    @staticmethod
    def query(prepared: PreparedQuery) -> PreparedQuery:
        """What ranking needs of a query; the rest need not travel."""
        return replace(prepared, encoded=_NOTHING)


@dataclass(frozen=True, eq=False)
class PlacedRanking(Ranking):
    """A ranking over shards: `segments` are numbers of shards, and the rows' characters are there."""

    starts: NDArray[np.int64]
    ends: NDArray[np.int64]

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """Scores on the grid, ordinals, shards, rows, and the characters of the rows."""
        return (*super().columns, self.starts, self.ends)


class RankReply(NamedTuple):
    """What one shard found for one query."""

    found: PlacedRanking
    counts: Counts


@dataclass(frozen=True)
class ShardState:
    """A shard at this moment."""

    version: int
    next_ordinal: int
    documents: int
    exact_in: str  # "" where it has no rows


class ShardFacts(NamedTuple):
    """What is in a shard; `lengths` are the living mentions of every list, by its key."""

    facts: IndexFacts
    lengths: dict[str, int]
    stored_mentions: int  # deleted ones included


class LookedUp(NamedTuple):
    """A document of a hit: its id and size, and itself where it is small enough to come along."""

    doc_id: str
    size: int
    document: Document | None


@dataclass(frozen=True, eq=False)
class ExplainAsk:
    """Documents to explain for a query that is encoded, with the statistics of the whole."""

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
    """An error of this library on its way between processes: whatever its constructor takes, it arrives."""

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
        """Back from JSON."""
        return cls(*json.loads(content))


def seconds_left(deadline: float | None) -> float | None:
    """From a time of `time.monotonic`."""
    return None if deadline is None else max(deadline - time.monotonic(), 0.0)


def deadline_in(seconds: float | None) -> float | None:
    """As a time of `time.monotonic`."""
    return None if seconds is None else time.monotonic() + seconds
