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

from coil.lists.precision import Precision, StoredVectors, largest_error, store
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
    vectors: StoredVectors  # [mentions, n_t]
    sentences: StoredVectors  # [rows, n_c]
    row_documents: NDArray[np.int64]  # [rows] ordinal of the document, ascending
    row_spans: NDArray[np.int64]  # [rows, 2] characters of the document's text
    token_error: float = 0.0  # no stored token vector is farther from its fp32 than this
    sentence_error: float = 0.0

    @property
    def n_rows(self) -> int:
        """How many texts are in the segment."""
        return len(self.row_documents)

    @property
    def n_mentions(self) -> int:
        """How many postings are in all lists together."""
        return len(self.mention_rows)

    def list_of(self, list_id: int) -> InvertedList:
        """The postings of one list; empty when no text mentions it."""
        place = int(np.searchsorted(self.list_ids, list_id))
        if place == len(self.list_ids) or self.list_ids[place] != list_id:
            return InvertedList(self.mention_rows[:0], self.vectors[:0])
        mentions = slice(int(self.list_offsets[place]), int(self.list_offsets[place + 1]))
        return InvertedList(self.mention_rows[mentions], self.vectors[mentions])


class SegmentBuilder:
    """Collects encoded texts and turns them into a segment. Vectors are stored as they come in."""

    def __init__(self, keys: ListKeys, n_t: int, n_c: int, precision: Precision) -> None:
        self._keys, self._n_t, self._n_c, self._precision = keys, n_t, n_c, precision
        self._lists: list[NDArray[np.int32]] = []
        self._vectors: list[StoredVectors] = []
        self._sentences: list[StoredVectors] = []
        self._documents: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self._token_error = self._sentence_error = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, document: int, span: tuple[int, int], text: TokenVectors) -> None:
        """Add one text of a document; documents come in ascending order."""
        assert len(self) < MOST_ROWS
        assert not self._documents or document >= self._documents[-1]
        lists = self._keys.of(text.token_ids) if self._n_t else np.zeros(0, np.int32)
        kept = np.flatnonzero(lists != NO_LIST)
        precise = text.vectors[kept]
        stored = store(precise, self._precision)
        sentence = text.sentence if text.sentence is not None else np.zeros(0, np.float32)
        stored_sentence = store(sentence[None], self._precision)
        self._token_error = max(self._token_error, largest_error(precise, stored))
        self._sentence_error = max(self._sentence_error, largest_error(sentence[None], stored_sentence))
        self._lists.append(lists[kept])
        self._vectors.append(stored)
        self._sentences.append(stored_sentence)
        self._documents.append(document)
        self._spans.append(span)
        self.bytes += stored.values.nbytes + stored_sentence.values.nbytes + 8 * len(kept) + 200

    def finish(self) -> Segment:
        """The segment of everything added."""
        lists = np.concatenate([np.zeros(0, np.int32), *self._lists])
        counts = [len(of_text) for of_text in self._lists]
        rows = np.repeat(np.arange(len(self), dtype=np.uint16), counts)
        return _sorted_segment(
            lists,
            rows,
            _join(self._vectors, self._n_t, self._precision),
            _join(self._sentences, self._n_c, self._precision),
            np.array(self._documents, dtype=np.int64),
            np.array(self._spans, dtype=np.int64).reshape(-1, 2),
            (self._token_error, self._sentence_error),
        )


def merge_segments(segments: Sequence[Segment], alive: Sequence[NDArray[np.bool_]]) -> list[Segment]:
    """The rows that are alive, in order of their documents, in as few segments as hold them.

    Stored bytes are copied, not stored anew, so scores do not change by a bit.
    """
    lists, owners, documents, spans = [], [], [], []
    vectors: list[StoredVectors] = []
    sentences: list[StoredVectors] = []
    before = 0
    for segment, living in zip(segments, alive, strict=True):
        number = np.cumsum(living) - 1 + before  # old row → place among all living rows
        kept = living[segment.mention_rows]
        lists.append(np.repeat(segment.list_ids, np.diff(segment.list_offsets))[kept])
        owners.append(number[segment.mention_rows[kept]])
        vectors.append(segment.vectors[kept])
        sentences.append(segment.sentences[living])
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
    precision = _precision_of(segments[0])
    stored = _join(vectors, segments[0].vectors.dim, precision)
    stored_sentences = _join(sentences, segments[0].sentences.dim, precision)[order]
    document_of = document_of[order]
    errors = (max(s.token_error for s in segments), max(s.sentence_error for s in segments))
    merged = []
    for begin, end in _cuts(document_of):
        here = (row_of >= begin) & (row_of < end)
        merged.append(
            _sorted_segment(
                list_of[here],
                (row_of[here] - begin).astype(np.uint16),
                stored[here],
                stored_sentences[begin:end],
                document_of[begin:end],
                span_of[begin:end],
                errors,
            )
        )
    return merged


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
    vectors: StoredVectors,
    sentences: StoredVectors,
    documents: NDArray[np.int64],
    spans: NDArray[np.int64],
    errors: tuple[float, float],
) -> Segment:
    order = np.lexsort((rows, lists))  # stable: within a row, mentions stay in text order
    list_ids, counts = np.unique(lists, return_counts=True)
    return Segment(
        list_ids=list_ids.astype(np.int32),
        list_offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        mention_rows=rows[order],
        vectors=vectors[order],
        sentences=sentences,
        row_documents=documents,
        row_spans=spans,
        token_error=errors[0],
        sentence_error=errors[1],
    )


def _join(parts: Sequence[StoredVectors], dim: int, precision: Precision) -> StoredVectors:
    empty = store(np.zeros((0, dim), np.float32), precision)
    scales = [part.scales for part in (empty, *parts) if part.scales is not None]
    values = np.concatenate([empty.values, *(part.values.reshape(len(part), dim) for part in parts)])
    return StoredVectors(values, np.concatenate(scales) if scales else None)


def _precision_of(segment: Segment) -> Precision:
    kinds: dict[str, Precision] = {"int8": "int8", "float16": "fp16", "float32": "fp32"}
    return kinds[segment.vectors.values.dtype.name]
