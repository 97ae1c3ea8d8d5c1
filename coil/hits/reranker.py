"""Reranking: the candidates of another system in COIL's order, with the scores of a search.

There is no separate arithmetic here. Candidates in an index are scored in place, or their stored bytes are
first copied into a small segment; candidates from a corpus are encoded and stored as in an index. Then the
searcher ranks them, so the scores are bit-identical in all cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from coil.arrays import distinct, is_among
from coil.errors import DuplicateId, InputError
from coil.hits.answering import asks_anything
from coil.hits.collection import Collection, MemoryCollection, PartCollection
from coil.hits.rankers import Selection
from coil.hits.ranking import Ranked, Ranking
from coil.hits.searcher import Searcher
from coil.lists.building import SegmentBuilder, merge_segments
from coil.lists.precision import Precision
from coil.lists.rows import Long, encode_rows, row_spans, row_texts
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment
from coil.lists.segment_file import open_segment, segment_bytes
from coil.scores.prepared import PreparedQuery
from coil.scores.statistics import Tally
from coil.texts.corpora import Documents
from coil.texts.questions import check_ids, check_list
from coil.texts.values import Document
from coil.tokens.contexts import USUAL_CONTEXT
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder

AT_ONCE = 64  # queries encoded and scored together
BLOCK_BYTES = 256 << 20  # of candidates from a corpus, held in memory at a time
COPY_COST = 16  # copying pays off if it saves scoring this many mentions per mention of the segment


@dataclass(frozen=True)
class Candidate:
    """A document to rank, by its ordinal, with the chunk that gave it its score."""

    ordinal: int
    score: float
    chunk: tuple[int, int]


@dataclass(frozen=True)
class Reranked:
    """The candidates of each query with their scores, best first, and those without text or unknown."""

    rows: dict[str, list[tuple[str, float]]]
    missing: tuple[str, ...]


def rank_candidates(
    encoder: Encoder,
    collection: Collection,
    queries: Sequence[str],
    candidates: Sequence[Sequence[int]],
    by: By = "coil",
) -> list[list[Candidate]]:
    """All candidates of each query, given by ordinal, sorted by score, descending, then by ordinal.

    No candidate is dropped: one that has nothing in common with the query scores 0, as do all candidates of a
    blank query.
    """
    asker = Searcher(encoder, collection)
    encoded = asker.encode(queries, by)
    prepared = asker.prepare(encoded, by)
    wanted = [distinct(np.array(of_query, dtype=np.int64)) for of_query in candidates]
    asked = [asks_anything(text, v) for text, v in zip(queries, encoded, strict=True)]
    segments = _narrow(collection.segments, wanted, prepared)
    searchers: dict[tuple[int, ...], Searcher] = {}  # by segments
    found = []
    for query, ordinals, is_asked in zip(prepared, wanted, asked, strict=True):
        touched = tuple(n for n, live in enumerate(segments) if _holds(live.segment, ordinals))
        if touched not in searchers:
            searchers[touched] = Searcher(encoder, PartCollection(collection, [segments[n] for n in touched]))
        searcher = searchers[touched]
        ranked = Ranking.of([])
        if is_asked:
            [(ranked, _)] = searcher.rank_prepared([query], Selection(len(ordinals), ordinals))
        searched = searcher.collection.segments
        best = [Candidate(one.ordinal, one.score, _chunk(searched, one)) for one in ranked]
        found.append(_with_zeros(best, ordinals, searched))
    return found


def _chunk(segments: Sequence[LiveSegment], ranked: Ranked) -> tuple[int, int]:
    start, end = segments[ranked.segment].segment.row_spans[ranked.row].tolist()
    return start, end


def _narrow(
    segments: Sequence[LiveSegment],
    wanted: Sequence[NDArray[np.int64]],
    queries: Sequence[PreparedQuery],
) -> list[LiveSegment]:
    """The segments with candidates; if they contain much else, only a copy of the candidates' rows."""
    everyone = distinct(np.concatenate([np.zeros(0, np.int64), *wanted]))
    kept: list[LiveSegment] = []
    cut: list[Segment] = []
    rows: list[NDArray[np.bool_]] = []
    for live in segments:
        segment = live.segment
        if not _holds(segment, everyone):
            continue
        mine = is_among(segment.row_documents, everyone)
        if live.alive is not None:
            mine &= live.alive
        # Compare what the queries would read needlessly, in mentions, with the mentions to copy from.
        read = sum(
            sum(_length(segment.mentions_at(segment.find(key))) for key in query.keys)
            + (segment.n_rows * segment.sentences.dim / max(segment.vectors.dim, 1))
            * (query.sentence is not None)
            for query, ordinals in zip(queries, wanted, strict=True)
            if _holds(segment, ordinals)
        )
        if read * (1 - mine.mean()) > COPY_COST * segment.n_mentions:
            cut.append(segment)
            rows.append(mine)
        else:
            kept.append(live)
    return [*kept, *(LiveSegment(segment, None) for segment in (merge_segments(cut, rows) if cut else []))]


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _holds(segment: Segment, ordinals: NDArray[np.int64]) -> bool:
    return bool((_first_rows(segment, ordinals) >= 0).any())


def _first_rows(segment: Segment, ordinals: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first row of each document, -1 if it is not in the segment."""
    documents = segment.row_documents
    if not len(documents):
        return np.full(len(ordinals), -1, dtype=np.int64)
    places = np.searchsorted(documents, ordinals)
    there = documents[np.minimum(places, len(documents) - 1)] == ordinals
    return np.where(there, places, -1)


def _with_zeros(
    best: list[Candidate], ordinals: NDArray[np.int64], segments: Sequence[LiveSegment]
) -> list[Candidate]:
    """Add the candidates that score exactly 0, which a search leaves out."""
    left = ordinals[~is_among(ordinals, np.array([found.ordinal for found in best], dtype=np.int64))]
    if not len(left):
        return best
    complete = list(best)
    for live in segments:
        for ordinal, row in zip(left.tolist(), _first_rows(live.segment, left).tolist(), strict=True):
            if row >= 0 and (live.alive is None or live.alive[row]):
                start, end = live.segment.row_spans[row].tolist()
                complete.append(Candidate(ordinal, 0.0, (start, end)))
    if len(complete) != len(ordinals):
        raise InputError("some candidates are in no segment", "run `coil verify`")
    return sorted(complete, key=lambda found: (-found.score, found.ordinal))


def rerank(
    encoder: Encoder,
    queries: Mapping[str, str],
    candidates: Mapping[str, Sequence[str]],
    documents: Iterable[Document],
    precision: Precision = "int8",
    long: Long = "chunk",
    by: By = "coil",
    block_rows: int = MOST_ROWS,
    encoded: Callable[[int], object] | None = None,
    scored: Callable[[int], object] | None = None,
) -> Reranked:
    """Rank the candidates of each query (`query_id` → `doc_id`s), which are encoded from a corpus.

    `queries` maps each `query_id` to its text. The documents are read once, and all of them are counted, so
    the scores are those of an index of the corpus; only candidates are encoded. At most one block of
    `block_rows` rows is in memory; the others are stored in a temporary folder. `encoded` is called with the
    number of documents encoded since its last call, `scored` with the number of candidates scored.
    """
    names = list(candidates)
    askers = _askers(queries, candidates)
    doc_ids: list[str] = []  # by ordinal: the position among the candidates, in the order of the corpus
    scores: list[list[tuple[float, int]]] = [[] for _ in names]
    counts = Tally() if encoder.config.profile.answering(by).weight == "bm25" else None
    with TemporaryDirectory(prefix="coil-rerank-") as folder:
        blocks: list[tuple[list[str], Path, str]] = []
        chosen = _chosen(documents, askers, _counter(encoder, long, counts))
        for in_block, segment in _blocks(encoder, chosen, precision, long, block_rows, encoded):
            # Weights are known only after the whole corpus was read: until then, blocks are kept on disk.
            digest, parts = segment_bytes(segment)
            path = Path(folder) / f"{len(blocks)}.lists"
            with path.open("wb") as file:
                file.writelines(parts)
            blocks.append((in_block, path, digest))
        for in_block, path, digest in blocks:
            by_query: dict[int, list[int]] = {}
            for ordinal, doc_id in enumerate(in_block, start=len(doc_ids)):
                for number in askers[doc_id]:
                    by_query.setdefault(number, []).append(ordinal)
            doc_ids += in_block
            segment = open_segment(memoryview(path.read_bytes()), str(path), digest)
            whole = MemoryCollection([], [segment])  # the texts are not kept
            collection = PartCollection(whole, whole.segments, counts)
            numbers = list(by_query)
            for begin in range(0, len(numbers), AT_ONCE):
                some = numbers[begin : begin + AT_ONCE]
                texts = [queries[names[number]] for number in some]
                found = rank_candidates(encoder, collection, texts, [by_query[n] for n in some], by)
                for number, ranked in zip(some, found, strict=True):
                    scores[number] += [(-hit.score, hit.ordinal) for hit in ranked]
                if scored is not None:
                    scored(sum(len(ranked) for ranked in found))
    there = set(doc_ids)
    return Reranked(
        rows={
            query_id: [(doc_ids[ordinal], -negated) for negated, ordinal in sorted(scores[number])]
            for number, query_id in enumerate(names)
        },
        missing=tuple(doc_id for doc_id in askers if doc_id not in there),
    )


def _counter(encoder: Encoder, long: Long, counts: Tally | None) -> Callable[[Document], object]:
    """A function that counts the words of a document as an index does, so that scores are the same."""

    def count(document: Document) -> None:
        if counts is not None:
            spans = row_spans(encoder, document, long, USUAL_CONTEXT)
            rows = [row.text for row in row_texts(encoder, document, spans, USUAL_CONTEXT)]
            for keyed in encoder.keys.of_texts(rows, encoder.config.profile.document_length):
                counts.add(keyed.keys)

    return count


def _askers(queries: Mapping[str, str], candidates: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """doc_id → the numbers of the queries with this candidate."""
    askers: dict[str, list[int]] = {}
    for number, (query_id, doc_ids) in enumerate(candidates.items()):
        if query_id not in queries:
            raise InputError(f"the query {query_id!r} has candidates but no text", "pass its text as well")
        for doc_id in _different(doc_ids):
            askers.setdefault(doc_id, []).append(number)
    return askers


def check_candidates(doc_ids: Iterable[Iterable[str]]) -> list[list[str]]:
    """Check the candidates of each query, passed from Python."""
    lists = check_list(doc_ids, "the candidates are", "pass one list of ids per query")
    return [_different(of_query) for of_query in lists]


def _different(doc_ids: Iterable[str]) -> list[str]:
    """Check the ids of one query's candidates; a duplicate is an error."""
    seen: set[str] = set()
    for doc_id in (checked := check_ids(doc_ids)):
        if doc_id in seen:
            raise InputError(f"duplicate candidate {doc_id!r} for one query", "remove one of the two")
        seen.add(doc_id)
    return checked


def _blocks(
    encoder: Encoder,
    documents: Iterable[Document],
    precision: Precision,
    long: Long,
    block_rows: int,
    encoded: Callable[[int], object] | None,
) -> Iterator[tuple[list[str], Segment]]:
    """The documents as an index stores them, in segments of bounded size, with their ids."""

    def fresh() -> SegmentBuilder:
        return SegmentBuilder(encoder.config.profile, encoder.config.n_t, encoder.config.n_c, precision)

    builder, block = fresh(), list[str]()
    for ordinal, (document, rows) in enumerate(encode_rows(encoder, documents, long, USUAL_CONTEXT)):
        if block and (len(builder) + len(rows) > block_rows or builder.bytes > BLOCK_BYTES):
            yield block, builder.finish()
            builder, block = fresh(), []
        block.append(document.doc_id)
        for span, vectors in rows:
            builder.add(ordinal, span, vectors)
        if encoded is not None:
            encoded(1)
    if block:
        yield block, builder.finish()


def _chosen(
    documents: Iterable[Document], wanted: Mapping[str, object], count: Callable[[Document], object]
) -> Iterator[Document]:
    """Count all documents and yield those that are candidates; a duplicate id among these is an error.

    Documents without text are left out of both, as they are left out of an index.
    """
    reading = documents if isinstance(documents, Documents) else None
    marks: dict[str, int] = {}
    for number, document in enumerate(documents, start=1):
        if not document.is_empty:
            count(document)
        if document.doc_id not in wanted:
            continue
        mark = reading.mark if reading is not None else number
        if document.doc_id in marks:
            first = marks[document.doc_id]
            if reading is not None:
                raise DuplicateId(document.doc_id, reading.place_of(first, document.doc_id), reading.place)
            raise DuplicateId(document.doc_id, f"document {first}", f"document {number}")
        marks[document.doc_id] = mark
        if not document.is_empty:
            yield document
