"""Segment: the inverted lists of a block of texts, immutable, in memory or mapped from a file.

A row is one encoded text: a document, or a chunk of one that is too long for the model. A posting is a row in
a list; its mentions, one vector each, are adjacent. A segment has at most 65,536 rows, so that two bytes
identify the row of a posting and the scores of a segment stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import DamagedSegment
from coil.forks import cached
from coil.lists.bounds import Bounds
from coil.lists.dictionary import Dictionary
from coil.lists.groups import GroupedVectors
from coil.lists.precision import StoredVectors
from coil.lists.sentences import Sentences

MOST_ROWS = 65_536
MOST_MENTIONS = (1 << 32) - 1
_REMEMBERED = 4096  # keys whose lookups are cached


@dataclass(frozen=True, eq=False)
class InvertedList:
    """The postings of one list: rows in ascending order, the mentions of a row adjacent, in text order."""

    rows: NDArray[np.uint16]  # [postings]
    starts: NDArray[np.intp]  # [postings] first mention of each
    counts: NDArray[np.int64]  # [postings] mentions of each
    vectors: StoredVectors  # [mentions, n_t]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Segment:
    """All lists back to back, in the order of the dictionary.

    The i-th list has the mentions `list_offsets[i]:list_offsets[i + 1]` and the postings
    `posting_offsets[i]:posting_offsets[i + 1]`. `posting_starts` has a bit for each mention, the lowest bit
    of a word first, which is set where a posting begins. The bounds were computed with `k1` and `b`.
    """

    dictionary: Dictionary
    list_offsets: NDArray[np.uint32]  # [lists + 1]
    posting_offsets: NDArray[np.uint32]  # [lists + 1]
    posting_rows: NDArray[np.uint16]  # [postings]
    posting_starts: NDArray[np.uint64]  # [mentions / 64, rounded up]
    vectors: GroupedVectors  # [mentions, n_t]
    sentences: Sentences  # [rows, n_c]
    row_documents: NDArray[np.int64]  # [rows] ordinal of the document, ascending
    row_spans: NDArray[np.uint32]  # [rows, 2] characters of the document's text
    row_lengths: NDArray[np.uint32]  # [rows] mentions of the row in all lists
    bounds: Bounds
    k1: float
    b: float
    precise_vectors: StoredVectors | None = None  # [mentions, n_t], if a precise form is stored
    precise_sentences: StoredVectors | None = None  # [rows, n_c]
    token_error: float = 0.0  # largest distance of a stored token vector from its fp32 form
    sentence_error: float = 0.0
    longest_sentence: float = 0.0  # length of the longest stored sentence vector

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.row_documents)

    @property
    def n_lists(self) -> int:
        """The number of lists."""
        return len(self.list_offsets) - 1

    @property
    def n_mentions(self) -> int:
        """The number of mentions, and so of vectors, in all lists."""
        return self.vectors.count

    @property
    def mean_length(self) -> float:
        """The mean number of mentions per row, with which the bounds were computed."""
        return self.n_mentions / self.n_rows if self.n_rows else 0.0

    def find(self, key: str) -> int:
        """The number of the list with this key, -1 if there is none."""
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= _REMEMBERED:
                self._found.clear()
            found = self._found[key] = self.dictionary.find(key)
            if found >= self.n_lists:
                raise wrong_lists()
        return found

    def mentions_at(self, place: int) -> slice:
        """The mentions of a list; none for -1."""
        if place < 0:
            return slice(0, 0)
        return slice(int(self.list_offsets[place]), int(self.list_offsets[place + 1]))

    def postings_at(self, place: int) -> slice:
        """The postings of a list; none for -1."""
        if place < 0:
            return slice(0, 0)
        return slice(int(self.posting_offsets[place]), int(self.posting_offsets[place + 1]))

    def rows_at(self, place: int) -> tuple[NDArray[np.uint16], NDArray[np.intp], NDArray[np.int64]]:
        """The postings of a list: rows, first mentions (relative to the list), and numbers of mentions."""
        mentions, postings = self.mentions_at(place), self.postings_at(place)
        rows = self.posting_rows[postings]
        starts = np.flatnonzero(self._bits(mentions))
        if place not in self._checked:
            if len(starts) != len(rows) or (len(rows) and (starts[0] or int(rows.max()) >= self.n_rows)):
                raise wrong_lists()
            if (rows[1:] <= rows[:-1]).any():
                raise wrong_lists()
            self._checked.add(place)
        return rows, starts, np.diff(starts, append=mentions.stop - mentions.start)

    def list_of(self, key: str) -> InvertedList:
        """The list with this key; empty if there is none."""
        place = self.find(key)
        rows, starts, counts = self.rows_at(place)
        return InvertedList(rows, starts, counts, self.vectors[self.mentions_at(place)])

    def _bits(self, mentions: slice) -> NDArray[np.uint8]:
        """A byte for each mention: whether a posting begins there."""
        first, last = mentions.start // 64, -(-mentions.stop // 64)
        words = self.posting_starts[first:last]
        bits = np.unpackbits(words.astype("<u8", copy=False).view(np.uint8), bitorder="little")
        return bits[mentions.start - first * 64 : mentions.stop - first * 64]

    @cached
    def _found(self) -> dict[str, int]:
        return {}

    @cached
    def _checked(self) -> set[int]:
        """The lists whose rows were checked: they are in the segment, in ascending order."""
        return set()

    def mention_rows(self) -> NDArray[np.uint16]:
        """The row of every mention of every list, checked."""
        starts = self.posting_mentions()
        return np.repeat(self.posting_rows, np.diff(starts, append=self.n_mentions))

    def posting_mentions(self) -> NDArray[np.int64]:
        """The first mention of every posting of every list; the rows are checked to be in the segment."""
        starts = np.flatnonzero(self._bits(slice(0, self.n_mentions)))
        rows = self.posting_rows
        if len(starts) != len(rows) or (len(rows) and (starts[0] or int(rows.max()) >= self.n_rows)):
            raise wrong_lists()
        return starts.astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment, and which of its rows are alive."""

    segment: Segment
    alive: NDArray[np.bool_] | None  # [rows]; None: all of them


def wrong_lists() -> DamagedSegment:
    """The error for inconsistent lists."""
    return DamagedSegment(
        "the rows of a list are outside the segment, not in ascending order, or wrong in number",
        "run `coil verify`",
    )
