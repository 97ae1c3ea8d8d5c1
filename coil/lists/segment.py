"""Segment: the inverted lists of a block of texts, immutable, in memory or mapped from a file.

A row is one text that was encoded: a document, or a chunk of one that is too long for the model. A segment
holds at most 65,536 rows, so that a mention names its row with two bytes and the scores of a segment stay in
the processor's cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import DamagedSegment
from coil.forks import cached
from coil.lists.bounds import Bounds, find_bounds
from coil.lists.groups import GroupedVectors, gather_groups
from coil.lists.precision import (
    Precision,
    Stored,
    StoredVectors,
    largest_error,
    precise_form,
    searched_form,
    store,
)
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.vectors.token_vectors import TokenVectors

MOST_ROWS = 65_536


@dataclass(frozen=True, eq=False)
class InvertedList:
    """One list's postings: mentions of one row side by side in text order, rows ascending."""

    rows: NDArray[np.uint16]  # [mentions]
    vectors: StoredVectors  # [mentions, n_t]

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, eq=False)
class Segment:
    """All lists back to back: the i-th list is mentions `list_offsets[i]:list_offsets[i + 1]`."""

    list_ids: NDArray[np.int32]  # [lists] ascending
    list_offsets: NDArray[np.int64]  # [lists + 1]
    mention_rows: NDArray[np.uint16]  # [mentions]
    vectors: GroupedVectors  # [mentions, n_t]
    sentences: StoredVectors  # [rows, n_c]
    row_documents: NDArray[np.int64]  # [rows] ordinal of the document, ascending
    row_spans: NDArray[np.int64]  # [rows, 2] characters of the document's text
    bounds: Bounds
    precise_vectors: StoredVectors | None = None  # [mentions, n_t], where a precise form is kept
    precise_sentences: StoredVectors | None = None  # [rows, n_c]
    token_error: float = 0.0  # no token vector as it is searched is farther from its fp32 than this
    sentence_error: float = 0.0

    @property
    def n_rows(self) -> int:
        """How many texts are in the segment."""
        return len(self.row_documents)

    @property
    def n_mentions(self) -> int:
        """How many postings are in all lists together."""
        return len(self.mention_rows)

    def mentions_of(self, list_id: int) -> slice:
        """Which mentions are a list's; none when no text mentions it."""
        place = int(np.searchsorted(self.list_ids, list_id))
        if place == len(self.list_ids) or self.list_ids[place] != list_id:
            return slice(0, 0)
        mentions = slice(int(self.list_offsets[place]), int(self.list_offsets[place + 1]))
        if place not in self._checked:
            rows = self.mention_rows[mentions]
            if len(rows) and (int(rows.max()) >= self.n_rows or (rows[1:] < rows[:-1]).any()):
                raise _wrong_rows()
            self._checked.add(place)
        return mentions

    @cached
    def _checked(self) -> set[int]:
        """Places of lists whose rows are known to be in the segment and to ascend."""
        return set()

    @cached
    def checked_rows(self) -> NDArray[np.uint16]:
        """The rows of all mentions, all of which are in the segment."""
        if self.n_mentions and int(self.mention_rows.max()) >= self.n_rows:
            raise _wrong_rows()
        return self.mention_rows

    def list_of(self, list_id: int) -> InvertedList:
        """The postings of one list; empty when no text mentions it."""
        mentions = self.mentions_of(list_id)
        return InvertedList(self.mention_rows[mentions], self.vectors[mentions])


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment and which of its rows count."""

    segment: Segment
    alive: NDArray[np.bool_] | None  # [rows]; None: all of them


def _wrong_rows() -> DamagedSegment:
    return DamagedSegment("the rows of a list are not in the segment, or do not ascend", "run `coil verify`")


@dataclass
class _Columns:
    """Vectors of one kind on their way into a segment, in the form to search and the precise one, if any."""

    dim: int
    forms: tuple[Stored, ...]
    parts: list[list[StoredVectors]]
    error: float = 0.0

    @classmethod
    def empty(cls, dim: int, precision: Precision) -> _Columns:
        precise = precise_form(precision)
        forms = (searched_form(precision), *([precise] if precise is not None else []))
        return cls(dim, forms, [[] for _ in forms])

    def add(self, vectors: NDArray[np.float32]) -> int:
        """Store some more; returns how many bytes they take."""
        size = 0
        for number, form in enumerate(self.forms):
            stored = store(vectors, form)
            if number == 0:
                self.error = max(self.error, largest_error(vectors, stored))
            self.parts[number].append(stored)
            size += stored.values.nbytes
        return size

    def joined(self) -> list[StoredVectors]:
        return [_join(part, self.dim, form) for part, form in zip(self.parts, self.forms, strict=True)]


class SegmentBuilder:
    """Collects encoded texts and turns them into a segment. Vectors are stored as they come in."""

    def __init__(self, keys: ListKeys, n_t: int, n_c: int, precision: Precision) -> None:
        self._keys = keys
        self._lists: list[NDArray[np.int32]] = []
        self._tokens = _Columns.empty(n_t, precision)
        self._sentences = _Columns.empty(n_c, precision)
        self._documents: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, document: int, span: tuple[int, int], text: TokenVectors) -> None:
        """Add one text of a document; documents come in ascending order."""
        assert len(self) < MOST_ROWS
        assert not self._documents or document >= self._documents[-1]
        lists = self._keys.of(text.token_ids) if self._tokens.dim else np.zeros(0, np.int32)
        kept = np.flatnonzero(lists != NO_LIST)
        sentence = text.sentence if text.sentence is not None else np.zeros(0, np.float32)
        self._lists.append(lists[kept])
        self.bytes += self._tokens.add(text.vectors[kept]) + self._sentences.add(sentence[None])
        self.bytes += 8 * len(kept) + 200
        self._documents.append(document)
        self._spans.append(span)

    def finish(self) -> Segment:
        """The segment of everything added."""
        lists = np.concatenate([np.zeros(0, np.int32), *self._lists])
        counts = [len(of_text) for of_text in self._lists]
        rows = np.repeat(np.arange(len(self), dtype=np.uint16), counts)
        return _sorted_segment(
            lists,
            rows,
            self._tokens.joined(),
            self._sentences.joined(),
            np.array(self._documents, dtype=np.int64),
            np.array(self._spans, dtype=np.int64).reshape(-1, 2),
            (self._tokens.error, self._sentences.error),
        )


def merge_segments(segments: Sequence[Segment], alive: Sequence[NDArray[np.bool_]]) -> list[Segment]:
    """The rows that are alive, in order of their documents, in as few segments as hold them.

    Stored bytes are copied, not stored anew, so scores do not change by a bit.
    """
    lists, owners, documents, spans = [], [], [], []
    vectors: list[list[StoredVectors]] = []
    sentences: list[list[StoredVectors]] = []
    before = 0
    for segment, living in zip(segments, alive, strict=True):
        number = np.cumsum(living) - 1 + before  # old row → place among all living rows
        kept = living[segment.checked_rows]
        lists.append(np.repeat(segment.list_ids, np.diff(segment.list_offsets))[kept])
        owners.append(number[segment.mention_rows[kept]])
        vectors.append([form[kept] for form in _forms(segment.vectors[:], segment.precise_vectors)])
        sentences.append([form[living] for form in _forms(segment.sentences, segment.precise_sentences)])
        documents.append(segment.row_documents[living])
        spans.append(segment.row_spans[living])
        before += int(living.sum())
    if not before:
        return []
    document_of = np.concatenate(documents)
    order = np.argsort(document_of, kind="stable")  # chunks of a document stay in their order
    place = np.empty(before, dtype=np.int64)
    place[order] = np.arange(before)
    row_of = place[np.concatenate(owners)]
    list_of, span_of = np.concatenate(lists), np.concatenate(spans)[order]
    stored = [_join(forms, segments[0].vectors.dim) for forms in zip(*vectors, strict=True)]
    stored_sentences = [
        _join(forms, segments[0].sentences.dim)[order] for forms in zip(*sentences, strict=True)
    ]
    document_of = document_of[order]
    errors = (max(s.token_error for s in segments), max(s.sentence_error for s in segments))
    merged = []
    for begin, end in _cuts(document_of):
        here = (row_of >= begin) & (row_of < end)
        merged.append(
            _sorted_segment(
                list_of[here],
                (row_of[here] - begin).astype(np.uint16),
                [form[here] for form in stored],
                [form[begin:end] for form in stored_sentences],
                document_of[begin:end],
                span_of[begin:end],
                errors,
            )
        )
    return merged


def _forms(searched: StoredVectors, precise: StoredVectors | None) -> list[StoredVectors]:
    return [searched] if precise is None else [searched, precise]


def _cuts(document_of: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Runs of at most MOST_ROWS rows that never part the chunks of one document."""
    begin = 0
    while begin < len(document_of):
        end = min(begin + MOST_ROWS, len(document_of))
        if end < len(document_of):
            end = int(np.searchsorted(document_of, document_of[end], side="left"))
        assert end > begin
        yield begin, end
        begin = end


def _sorted_segment(
    lists: NDArray[np.int32],
    rows: NDArray[np.uint16],
    vectors: Sequence[StoredVectors],
    sentences: Sequence[StoredVectors],
    documents: NDArray[np.int64],
    spans: NDArray[np.int64],
    errors: tuple[float, float],
) -> Segment:
    order = np.lexsort((rows, lists))  # stable: within a row, mentions stay in text order
    list_ids, counts = np.unique(lists, return_counts=True)
    list_offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    grouped = gather_groups(vectors[0], order)
    return Segment(
        list_ids=list_ids.astype(np.int32),
        list_offsets=list_offsets,
        mention_rows=rows[order],
        vectors=grouped,
        sentences=sentences[0],
        row_documents=documents,
        row_spans=spans,
        bounds=find_bounds(list_offsets, grouped, sentences[0]),
        precise_vectors=vectors[1][order] if len(vectors) > 1 else None,
        precise_sentences=sentences[1] if len(sentences) > 1 else None,
        token_error=errors[0],
        sentence_error=errors[1],
    )


def _join(parts: Sequence[StoredVectors], dim: int, form: Stored | None = None) -> StoredVectors:
    """Several as one; `form` says what to make where there may be none."""
    whole = [StoredVectors(part.values.reshape(len(part), dim), part.scales) for part in parts]
    if form is not None:
        whole.insert(0, store(np.zeros((0, dim), np.float32), form))
    scales = [part.scales for part in whole if part.scales is not None]
    return StoredVectors(
        np.concatenate([part.values for part in whole]), np.concatenate(scales) if scales else None
    )
