"""Statistics of a collection: the counts of living rows that BM25 weights need.

A filter does not change them: a document has the same score whether or not others are filtered out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coil.forks import cached
from coil.lists.segment import LiveSegment
from coil.scores.native import key_finder

_REMEMBERED = 1 << 16  # keys


class Statistics:
    """The number of rows, their mean length, and the number of rows per list."""

    def __init__(self, segments: Sequence[LiveSegment]) -> None:
        self._segments = segments
        self._rows_with: dict[str, int] = {}

    @cached
    def n_rows(self) -> int:
        """The number of living rows."""
        return sum(
            live.segment.n_rows if live.alive is None else int(live.alive.sum()) for live in self._segments
        )

    @cached
    def n_mentions(self) -> int:
        """The number of mentions of the living rows in all lists."""
        return sum(
            live.segment.n_mentions
            if live.alive is None
            else int(live.segment.row_lengths[live.alive].sum(dtype="int64"))
            for live in self._segments
        )

    @property
    def mean_length(self) -> float:
        """The mean number of mentions per living row; 1 if there are none, to avoid division by 0."""
        return self.n_mentions / self.n_rows if self.n_mentions else 1.0

    def rows_with(self, key: str) -> int:
        """The number of living rows in the list with this key; counted on first use."""
        found = self._rows_with.get(key)
        if found is None:
            if len(self._rows_with) >= _REMEMBERED:
                self._rows_with.clear()
            places = self._find(key)
            found = self._rows_with[key] = sum(
                _living_rows(live, place) for live, place in zip(self._segments, places, strict=True)
            )
        return found

    @cached
    def _find(self) -> Callable[[str], Sequence[int]]:
        return key_finder([live.segment for live in self._segments])

    def rarity(self, key: str) -> float:
        """ln(1 + (N − df + ½) / (df + ½)), the weight of a match of this key."""
        return rarity(self.n_rows, self.rows_with(key))


@dataclass(frozen=True)
class Totals:
    """The same statistics as plain numbers, for some keys, of one collection or several combined."""

    n_rows: int
    n_mentions: int
    rows: Mapping[str, int]  # with each of these keys

    @property
    def mean_length(self) -> float:
        """The mean number of mentions per row; 1 if there are none."""
        return self.n_mentions / self.n_rows if self.n_mentions else 1.0

    def rows_with(self, key: str) -> int:
        """The number of rows with this key, which must be one of those counted."""
        return self.rows[key]

    def rarity(self, key: str) -> float:
        """The weight of a match of this key."""
        return rarity(self.n_rows, self.rows[key])

    @classmethod
    def of(cls, statistics: Statistics, keys: Sequence[str]) -> Totals:
        """The counts of one collection."""
        rows = {key: statistics.rows_with(key) for key in keys}
        return cls(statistics.n_rows, statistics.n_mentions, rows)


class Tally:
    """The same statistics, counted row by row from texts that are not in segments."""

    def __init__(self) -> None:
        self._rows_with: Counter[str] = Counter()
        self.n_rows = self.n_mentions = 0

    def add(self, keys: Sequence[str | None]) -> None:
        """Count a row."""
        listed = [key for key in keys if key is not None]
        self._rows_with.update(set(listed))
        self.n_rows += 1
        self.n_mentions += len(listed)

    @property
    def mean_length(self) -> float:
        """The mean number of mentions per row."""
        return self.n_mentions / self.n_rows if self.n_mentions else 1.0

    def rows_with(self, key: str) -> int:
        """The number of rows with this key."""
        return self._rows_with[key]

    def rarity(self, key: str) -> float:
        """The weight of a match of this key."""
        return rarity(self.n_rows, self._rows_with[key])


def rarity(n_rows: int, rows_with: int) -> float:
    """ln(1 + (N − df + ½) / (df + ½))."""
    return math.log1p((n_rows - rows_with + 0.5) / (rows_with + 0.5))


def _living_rows(live: LiveSegment, place: int) -> int:
    if place < 0:
        return 0
    if live.alive is None:
        postings = live.segment.postings_at(place)
        return int(postings.stop - postings.start)
    rows, _, _ = live.segment.rows_at(place)
    return int(live.alive[rows].sum())
