"""Searcher: questions in, hits out, over the segments of a collection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError, SearchTimeout
from coil.hits.top_k import top_k
from coil.lists.collection import Collection, MemoryCollection
from coil.lists.segment import Segment
from coil.lists.snapshot import LiveSegment
from coil.scores.scorer import Scorer, listed_tokens, score_with_numpy
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True)
class Hit:
    """One document found: `rank` counts from 1; `chunk` is the part of its text that scored best."""

    rank: int
    doc_id: str
    score: float
    text: str = field(repr=False)
    fields: dict[str, Any] = field(repr=False)
    chunk: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class SearchStats:
    """What one query cost. Of a batch, each query bears an equal share of the time to encode."""

    mentions_scored: int = 0
    mentions_skipped: int = 0
    sentences_scored: int = 0
    sentences_skipped: int = 0
    encode_ms: float = 0.0
    score_ms: float = 0.0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class Answer:
    """The hits of one query, and what they cost."""

    hits: list[Hit]
    stats: SearchStats


@dataclass(frozen=True)
class Ranked:
    """A document by its inside number, with the row that gave it its score."""

    ordinal: int
    score: float
    chunk: tuple[int, int]


class Searcher:
    """An immutable snapshot to search: the encoder for queries, the lists, and the documents behind them."""

    def __init__(self, encoder: Encoder, collection: Collection, scorer: Scorer = score_with_numpy) -> None:
        self.encoder = encoder
        self.collection = collection
        self._scorer = scorer

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        documents: Iterable[Document],
        progress: Callable[[int], object] | None = None,
        scorer: Scorer = score_with_numpy,
    ) -> Searcher:
        """Encode documents and search them in memory; `progress` hears how many more are done."""
        return cls(encoder, MemoryCollection.build(encoder, documents, progress=progress), scorer)

    def search(
        self, query: str, k: int = 10, allowed: NDArray[np.int64] | None = None, tok_only: bool = False
    ) -> list[Hit]:
        """The k best documents for a query; see `search_many` for what counts as a hit."""
        return self.search_many([query], k, allowed, tok_only)[0]

    def search_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        allowed: NDArray[np.int64] | None = None,
        tok_only: bool = False,
    ) -> list[list[Hit]]:
        """The k best documents for each of many queries; see `answer_many`."""
        return [answer.hits for answer in self.answer_many(queries, k, allowed, tok_only)]

    def answer_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        allowed: NDArray[np.int64] | None = None,
        tok_only: bool = False,
        deadline: float | None = None,
    ) -> list[Answer]:
        """The k best documents for each of many queries, which are encoded in one go, and what they cost.

        An empty or blank query has no hits, not even through the sentence vector: nothing was asked.
        Without a sentence vector (COIL-tok) a document that scores exactly 0 is no hit. `allowed` keeps only
        the documents of these ordinals, `tok_only` leaves the sentence vector out. After `deadline`, a time
        of `time.monotonic`, the search stops with SearchTimeout.
        """
        asked = list(queries)
        began = time.perf_counter()
        vectors = list(self.encoder.encode_queries(asked))
        encode_ms = (time.perf_counter() - began) * 1000 / max(len(asked), 1)
        return [
            self._answer(_question(of_query, tok_only), k, allowed, encode_ms, deadline)
            if text.strip() and len(of_query)
            else Answer([], SearchStats(encode_ms=encode_ms))
            for text, of_query in zip(asked, vectors, strict=True)
        ]

    def rank(
        self,
        query_vectors: TokenVectors,
        k: int,
        allowed: NDArray[np.int64] | None = None,
        deadline: float | None = None,
    ) -> list[Ranked]:
        """The k best documents for a query that is already encoded: score descending, then ordinal."""
        if query_vectors.sentence is None and not query_vectors.vectors.shape[1]:
            raise InputError("a dense model has no token part to search by", "search without --tok-only")
        profile, keys = self.encoder.config.profile, self.encoder.keys
        found: list[Ranked] = []
        for live in self.collection.segments:
            if deadline is not None and time.monotonic() > deadline:
                raise SearchTimeout("the search took longer than it was given", "ask for less, or allow more")
            scores = self._scorer(query_vectors, live.segment, profile, keys)
            found += _best_documents(live, scores, k, allowed, query_vectors.sentence is None)
        found.sort(key=lambda ranked: (-ranked.score, ranked.ordinal))
        return found[: max(k, 0)]

    def vectors_of(self, ordinal: int, query_vectors: TokenVectors) -> tuple[TokenVectors, tuple[int, int]]:
        """A document's stored vectors of the query's lists, from the chunk that scores best for that query.

        The lists do not say where in the text a mention stands; the tokenizer does: the n-th mention of a
        list is the n-th token of that list in the text.
        """
        live, rows = self._rows_of(ordinal)
        scores = self._scorer(query_vectors, live.segment, self.encoder.config.profile, self.encoder.keys)
        row = int(rows[np.argmax(scores[rows])])
        start, end = live.segment.row_spans[row].tolist()
        text = self.collection.document(ordinal).text[start:end]
        return self._stored(live.segment, row, text, start, query_vectors), (start, end)

    def _stored(
        self, segment: Segment, row: int, text: str, start: int, query_vectors: TokenVectors
    ) -> TokenVectors:
        tokenizer, keys = self.encoder.tokenizer, self.encoder.keys
        [tokens] = tokenizer.cut([text], self.encoder.config.profile.document_length)
        first = len(tokenizer.prefix)
        token_ids = tokens.input_ids[first : len(tokens) - len(tokenizer.suffix)]
        lists = keys.of(token_ids)
        asked = np.unique(keys.of(query_vectors.token_ids))
        places: list[NDArray[np.intp]] = []
        vectors: list[NDArray[np.float32]] = []
        for list_id in asked[asked != NO_LIST] if segment.vectors.dim else []:
            postings = segment.list_of(int(list_id))
            mine = postings.rows == row
            places.append(np.flatnonzero(lists == list_id))
            vectors.append(postings.vectors[mine].decode())
        joined = np.concatenate([np.zeros(0, np.intp), *places])
        order = np.argsort(joined, kind="stable")
        stored = np.concatenate([np.zeros((0, segment.vectors.dim), np.float32), *vectors])[order]
        kept = joined[order]
        sentence = segment.sentences[np.array([row])].decode()[0] if segment.sentences.dim else None
        return TokenVectors(
            token_ids=token_ids[kept],
            positions=(kept + first).astype(np.int32),
            spans=(tokens.spans[kept] + start).astype(np.int32),
            vectors=stored,
            sentence=sentence,
        )

    def _rows_of(self, ordinal: int) -> tuple[LiveSegment, NDArray[np.intp]]:
        for live in self.collection.segments:
            rows = np.flatnonzero(live.segment.row_documents == ordinal)
            if len(rows) and (live.alive is None or live.alive[rows[0]]):
                return live, rows
        raise InputError(f"no segment holds the document with the ordinal {ordinal}", "run `coil verify`")

    def _answer(
        self,
        query_vectors: TokenVectors,
        k: int,
        allowed: NDArray[np.int64] | None,
        encode_ms: float,
        deadline: float | None,
    ) -> Answer:
        began = time.perf_counter()
        found = self.rank(query_vectors, k, allowed, deadline)
        scored = time.perf_counter()
        hits = []
        for rank, ranked in enumerate(found, start=1):
            document = self.collection.document(ranked.ordinal)
            hits.append(
                Hit(rank, document.doc_id, ranked.score, document.text, document.fields, ranked.chunk)
            )
        lists = [list_id for list_id, _ in listed_tokens(query_vectors, self.encoder.keys)]
        segments = [live.segment for live in self.collection.segments]
        stats = SearchStats(
            mentions_scored=sum(len(segment.list_of(list_id)) for segment in segments for list_id in lists),
            sentences_scored=sum(s.n_rows for s in segments) if query_vectors.sentence is not None else 0,
            encode_ms=encode_ms,
            score_ms=(scored - began) * 1000,
            fetch_ms=(time.perf_counter() - scored) * 1000,
        )
        return Answer(hits, stats)


def _question(query_vectors: TokenVectors, tok_only: bool) -> TokenVectors:
    return replace(query_vectors, sentence=None) if tok_only else query_vectors


def _best_documents(
    live: LiveSegment,
    scores: NDArray[np.float32],
    k: int,
    allowed: NDArray[np.int64] | None,
    without_zero: bool,
) -> list[Ranked]:
    """The k best documents of one segment: a document scores what its best chunk scores."""
    segment = live.segment
    documents = segment.row_documents
    if not len(documents):
        return []
    starts = np.flatnonzero(np.diff(documents, prepend=-1))  # first row of each document
    of_document = np.maximum.reduceat(scores, starts)
    kept = np.ones(len(starts), dtype=bool) if live.alive is None else live.alive[starts]
    if allowed is not None:
        kept = kept & np.isin(documents[starts], allowed, assume_unique=False)
    places = np.flatnonzero(kept)
    best = places[top_k(of_document[places], k, without_zero)]
    found = []
    for place in best.tolist():
        end = starts[place + 1] if place + 1 < len(starts) else len(documents)
        row = int(starts[place] + np.argmax(scores[starts[place] : end]))
        begin, stop = segment.row_spans[row].tolist()
        found.append(Ranked(int(documents[row]), float(of_document[place]), (begin, stop)))
    return found
