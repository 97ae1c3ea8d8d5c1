"""Building and merging segments from encoded texts, or from the living rows of other segments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.arrays import distinct
from coil.errors import InputError
from coil.lists.bounds import find_bounds, norms_of, saturate
from coil.lists.dictionary import Dictionary
from coil.lists.groups import gather_groups
from coil.lists.precision import (
    Precision,
    Stored,
    StoredVectors,
    largest_error,
    precise_form,
    searched_form,
    store,
)
from coil.lists.segment import MOST_MENTIONS, MOST_ROWS, Segment
from coil.lists.sentences import Sentences, head_width
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors

# Bytes counted per key in addition to its mentions: a string, its number and an entry in a hash table. This
# is less than they take, because the total is multiplied by what finishing a segment takes.
KEY_BYTES = 75


@dataclass
class _Columns:
    """Vectors of one kind, collected for a segment, all stored in the same form."""

    dim: int
    form: Stored
    parts: list[StoredVectors]

    def add(self, vectors: NDArray[np.float32]) -> StoredVectors:
        stored = store(vectors, self.form)
        self.parts.append(stored)
        return stored

    def joined(self) -> StoredVectors:
        return _join(self.parts, self.dim, self.form)


class SegmentBuilder:
    """Collects encoded texts and builds a segment from them. Vectors are quantized as they are added."""

    def __init__(self, profile: ScoringProfile, n_t: int, n_c: int, precision: Precision) -> None:
        self._profile = profile
        self._keys: dict[str, int] = {}  # numbered in order of first occurrence
        self._lists: list[NDArray[np.int32]] = []
        searched, precise = searched_form(precision), precise_form(precision)
        self._head_width = head_width(n_c)
        self._tokens = _Columns(n_t, searched, [])
        self._heads = _Columns(self._head_width, searched, [])
        self._tails = _Columns(n_c - self._head_width, searched, [])
        self._precise = None if precise is None else (_Columns(n_t, precise, []), _Columns(n_c, precise, []))
        self._token_error = self._sentence_error = 0.0
        self._documents: list[int] = []
        self._spans: list[tuple[int, int]] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._documents)

    def add(self, document: int, span: tuple[int, int], text: TokenVectors) -> None:
        """Add one text of a document; documents must be added in ascending order."""
        assert len(self) < MOST_ROWS
        assert not self._documents or document >= self._documents[-1]
        kept = [place for place, key in enumerate(text.keys) if key is not None]
        before = len(self._keys)
        numbers = [self._keys.setdefault(key, len(self._keys)) for key in text.keys if key is not None]
        vectors = text.vectors[kept]
        sentence = (text.sentence if text.sentence is not None else np.zeros(0, np.float32))[None]
        tokens = self._tokens.add(vectors)
        head = self._heads.add(sentence[:, : self._head_width])
        tail = self._tails.add(sentence[:, self._head_width :])
        self._lists.append(np.array(numbers, dtype=np.int32))
        self._token_error = max(self._token_error, largest_error(vectors, tokens))
        apart = sentence - Sentences(head, tail).decode()
        self._sentence_error = max(self._sentence_error, float(np.linalg.norm(apart.astype(np.float64))))
        self.bytes += tokens.values.nbytes + head.values.nbytes + tail.values.nbytes + 8 * len(kept) + 200
        self.bytes += KEY_BYTES * (len(self._keys) - before)
        if self._precise is not None:
            self.bytes += self._precise[0].add(vectors).values.nbytes
            self.bytes += self._precise[1].add(sentence).values.nbytes
        self._documents.append(document)
        self._spans.append(span)

    def finish(self) -> Segment:
        """Build the segment of all added texts; nothing can be added afterwards."""
        keys = list(self._keys)
        self._keys = {}  # their numbers take more memory than the keys
        return assemble_segment(
            keys,
            np.concatenate([np.zeros(0, np.int32), *self._lists]),
            np.repeat(np.arange(len(self)), [len(of_text) for of_text in self._lists]),
            self._tokens.joined(),
            Sentences(self._heads.joined(), self._tails.joined()),
            np.array(self._documents, dtype=np.int64),
            np.array(self._spans, dtype=np.int64).reshape(-1, 2).astype(np.uint32),
            None if self._precise is None else (self._precise[0].joined(), self._precise[1].joined()),
            (self._token_error, self._sentence_error),
            (self._profile.k1, self._profile.b),
        )


def merge_segments(segments: Sequence[Segment], alive: Sequence[NDArray[np.bool_]]) -> list[Segment]:
    """Merge the living rows, in order of their documents, into as few segments as possible.

    Stored bytes are copied, not encoded again, so the vectors do not change.
    """
    lists, owners, documents, spans = [], [], [], []
    vectors: list[StoredVectors] = []
    heads: list[StoredVectors] = []
    tails: list[StoredVectors] = []
    precise: list[tuple[StoredVectors, StoredVectors]] = []
    keys: dict[str, int] = {}
    before = 0
    for segment, living in zip(segments, alive, strict=True):
        number = np.cumsum(living) - 1 + before  # old row → position among all living rows
        rows = segment.mention_rows()
        kept = living[rows]
        numbers = np.array([keys.setdefault(key, len(keys)) for key in segment.dictionary], dtype=np.int32)
        offsets = segment.list_offsets.astype(np.int64)
        lists.append(np.repeat(numbers, offsets[1:] - offsets[:-1])[kept])
        owners.append(number[rows[kept]])
        vectors.append(segment.vectors[:][kept])
        heads.append(segment.sentences.head[living])
        tails.append(segment.sentences.tail[living])
        if segment.precise_vectors is not None and segment.precise_sentences is not None:
            precise.append((segment.precise_vectors[kept], segment.precise_sentences[living]))
        documents.append(segment.row_documents[living])
        spans.append(segment.row_spans[living])
        before += int(living.sum())
    if not before:
        return []
    document_of = np.concatenate(documents)
    order = np.argsort(document_of, kind="stable")  # the chunks of a document keep their order
    place = np.empty(before, dtype=np.int64)
    place[order] = np.arange(before)
    row_of = place[np.concatenate(owners)]
    list_of, span_of = np.concatenate(lists), np.concatenate(spans)[order]
    first = segments[0]
    stored = _join(vectors, first.vectors.dim)
    head = _join(heads, first.sentences.head.dim)[order]
    tail = _join(tails, first.sentences.tail.dim)[order]
    whole = None
    if precise:
        whole = (
            _join([of[0] for of in precise], first.vectors.dim),
            _join([of[1] for of in precise], first.sentences.dim)[order],
        )
    document_of = document_of[order]
    errors = (max(s.token_error for s in segments), max(s.sentence_error for s in segments))
    names = list(keys)
    del keys  # their numbers take more memory than the keys
    merged = []
    for begin, end in _cuts(document_of):
        here = (row_of >= begin) & (row_of < end)
        merged.append(
            assemble_segment(
                names,
                list_of[here],
                row_of[here] - begin,
                stored[here],
                Sentences(head[begin:end], tail[begin:end]),
                document_of[begin:end],
                span_of[begin:end],
                None if whole is None else (whole[0][here], whole[1][begin:end]),
                errors,
                (first.k1, first.b),
            )
        )
    return merged


def _cuts(document_of: NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Ranges of at most MOST_ROWS rows that never separate the chunks of a document."""
    begin = 0
    while begin < len(document_of):
        end = min(begin + MOST_ROWS, len(document_of))
        if end < len(document_of):
            end = int(np.searchsorted(document_of, document_of[end], side="left"))
        assert end > begin
        yield begin, end
        begin = end


def assemble_segment(
    keys: Sequence[str],
    numbers: NDArray[np.int32],
    rows: NDArray[np.int64],
    vectors: StoredVectors,
    sentences: Sentences,
    documents: NDArray[np.int64],
    spans: NDArray[np.uint32],
    precise: tuple[StoredVectors, StoredVectors] | None,
    errors: tuple[float, float],
    saturation: tuple[float, float],
) -> Segment:
    """Build a segment from mentions; mention i is in the list `keys[numbers[i]]` and in row `rows[i]`."""
    if len(numbers) > MOST_MENTIONS:
        raise InputError(
            f"a segment would have {len(numbers):,} mentions, which exceeds the limit of {MOST_MENTIONS:,}",
            "index shorter chunks: use a model with a smaller document_length",
        )
    used = sorted(distinct(numbers).tolist(), key=keys.__getitem__)  # the same order as their UTF-8 bytes
    names = [keys[number] for number in used]
    places = np.zeros(len(keys), dtype=np.int32)
    places[used] = np.arange(len(used))
    lists = places[numbers]
    del used, places
    order = np.lexsort((rows, lists))  # stable: within a row, mentions keep their text order
    lists, rows_in_order = lists[order], rows[order]
    list_offsets = np.concatenate([[0], np.cumsum(np.bincount(lists, minlength=len(names)))])
    begins = np.ones(len(order), dtype=bool)  # whether a posting begins at each mention
    begins[1:] = (lists[1:] != lists[:-1]) | (rows_in_order[1:] != rows_in_order[:-1])
    posting_mentions = np.flatnonzero(begins)
    posting_offsets = np.searchsorted(posting_mentions, list_offsets)
    bits = np.zeros(-(-len(order) // 64) * 64, dtype=bool)
    bits[: len(order)] = begins
    posting_rows = rows_in_order[posting_mentions]
    lengths = np.bincount(rows, minlength=len(documents))
    factors = saturate(
        np.diff(posting_mentions, append=len(order)),
        lengths[posting_rows],
        len(order) / max(len(documents), 1),
        *saturation,
    )
    grouped = gather_groups(vectors, order)
    longest = norms_of(StoredVectors(sentences.decode(), None)).max(initial=0.0)
    return Segment(
        dictionary=Dictionary.of(names),
        list_offsets=list_offsets.astype(np.uint32),
        posting_offsets=posting_offsets.astype(np.uint32),
        posting_rows=posting_rows.astype(np.uint16),
        posting_starts=np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64, copy=False),
        vectors=grouped,
        sentences=sentences,
        row_documents=documents,
        row_spans=spans,
        row_lengths=lengths.astype(np.uint32),
        bounds=find_bounds(
            list_offsets.astype(np.uint32),
            posting_offsets.astype(np.uint32),
            posting_mentions,
            factors,
            grouped,
            sentences,
        ),
        k1=saturation[0],
        b=saturation[1],
        precise_vectors=None if precise is None else precise[0][order],
        precise_sentences=None if precise is None else precise[1],
        token_error=errors[0],
        sentence_error=errors[1],
        longest_sentence=float(longest),
    )


def _join(parts: Sequence[StoredVectors], dim: int, form: Stored | None = None) -> StoredVectors:
    """Concatenate stored vectors; `form` is required if there may be none."""
    whole = [StoredVectors(part.values.reshape(len(part), dim), part.scales) for part in parts]
    if form is not None:
        whole.insert(0, store(np.zeros((0, dim), np.float32), form))
    scales = [part.scales for part in whole if part.scales is not None]
    return StoredVectors(
        np.concatenate([part.values for part in whole]), np.concatenate(scales) if scales else None
    )
