"""Searcher: queries in, hits out, over the segments of a collection."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.forks import cached
from coil.hits.certificate import rank_certified
from coil.hits.collection import Collection, MemoryCollection
from coil.hits.hit import Hit, Shelf, load_texts
from coil.hits.paging import Page, Paging, turn_to_page
from coil.hits.rankers import (
    NO_THRESHOLD,
    Counts,
    NativeRanker,
    Rankings,
    Selection,
    check_deadline,
    fits_kernels,
    rank_with_scorer,
)
from coil.hits.ranking import Ranking
from coil.hits.torch_ranker import TorchRanker
from coil.scores.native import load_native
from coil.scores.prepared import PreparedQuery
from coil.scores.products import GRID
from coil.scores.scorer import Scorer, score_with_numpy
from coil.texts.questions import (
    check_k,
    check_min_score,
    check_min_share,
    check_most_text,
    check_queries,
    check_query,
)
from coil.texts.values import Document
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder, read_queries
from coil.vectors.token_vectors import TokenVectors

# Between slices the deadline is checked.
ENCODE_SLICE = 32  # queries
FETCH_SLICE = 1_000  # hits between two looks at the clock: a few milliseconds
FIRST_PAGE = Paging()


@dataclass(frozen=True)
class SearchStats:
    """The cost of one query. In a batch, each query bears an equal share of the time.

    A mention or sentence vector is skipped if it provably cannot change the hits; the head of the sentence
    vector may have been read before that. If precise vectors are stored beside int8, the rows that could be
    hits are scored again with them.
    """

    mentions_scored: int = 0
    mentions_skipped: int = 0
    sentences_scored: int = 0
    sentences_skipped: int = 0
    heads_scored: int = 0
    rescored: int = 0
    exact_in: str = ""  # the form of the vectors in which these are provably the best
    encode_ms: float = 0.0
    score_ms: float = 0.0
    fetch_ms: float = 0.0
    query_dropped: int = 0  # tokens of the query that were not read, because it is too long for the model

    def plus(self, other: SearchStats) -> SearchStats:
        """The sum of two costs."""
        sums = {
            name: value + getattr(other, name)
            for name, value in asdict(self).items()
            if not isinstance(value, str)
        }
        return SearchStats(exact_in=other.exact_in, **sums)


@dataclass(frozen=True)
class Answer:
    """The hits of one query, and their cost. Shares of hits are relative to `own_score`."""

    hits: list[Hit]
    stats: SearchStats
    query_vectors: TokenVectors | None = field(default=None, repr=False, compare=False)  # to explain the hits
    own_score: float | None = None


class Searcher:
    """An immutable snapshot to search: the encoder for queries, the lists, and the documents.

    It uses the native kernels if they were built, and NumPy otherwise; `scorer` selects another scorer, and
    `device` a PyTorch device, in which case every row is scored. Hits and scores are bit-identical.
    """

    def __init__(
        self,
        encoder: Encoder,
        collection: Collection,
        scorer: Scorer | None = None,
        threads: int = 1,
        prune: bool = True,
        device: str | None = None,
    ) -> None:
        self.encoder = encoder
        self.collection = collection
        self._scorer = scorer
        self._threads, self._prune, self._device = threads, prune, device

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        documents: Iterable[Document],
        progress: Callable[[int], object] | None = None,
        scorer: Scorer | None = None,
    ) -> Searcher:
        """Encode documents and search them in memory; `progress` is called with the number of further
        documents."""
        return cls(encoder, MemoryCollection.build(encoder, documents, progress=progress), scorer)

    def search(
        self, query: str, k: int = 10, allowed: NDArray[np.int64] | None = None, by: By = "coil"
    ) -> list[Hit]:
        """The k best documents for a query; see `answer_many` for what counts as a hit."""
        return self.search_many([check_query(query)], k, allowed, by)[0]

    def search_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        allowed: NDArray[np.int64] | None = None,
        by: By = "coil",
    ) -> list[list[Hit]]:
        """The k best documents for each of many queries; see `answer_many`."""
        return [answer.hits for answer in self.answer_many(queries, k, allowed, by)]

    def answer_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        allowed: NDArray[np.int64] | None = None,
        by: By = "coil",
        min_score: float | None = None,
        min_share: float | None = None,
        deadline: float | None = None,
        texts: bool = False,
        most_text: int | None = None,
        paging: Paging = FIRST_PAGE,
    ) -> list[Answer]:
        """The k best documents for each of many queries, and their cost.

        An empty or blank query has no hits, not even through the sentence vector. Without a sentence part, a
        document with a score of exactly 0 is not a hit. `allowed` restricts the search to documents with
        these ordinals; `by` selects the scoring system; `min_score` and `min_share` omit hits below a value
        (see `Hit.share`). After `deadline`, a time of `time.monotonic`, encoding, ranking or fetching raises
        SearchTimeout. With `texts`, texts and fields of the hits are loaded immediately; if they exceed
        `most_text` characters in total, it raises AnswerTooLarge and loads no more. `paging` selects other
        hits than the first k.
        """
        asked = check_queries(queries)
        min_score, min_share = check_min_score(min_score), check_min_share(min_share)
        most_text = check_most_text(most_text)
        at_least = NO_THRESHOLD if min_score is None else grid_at_least(min_score)
        k = check_k(k)
        selection = Selection(paging.depth(k), allowed, at_least, deadline)
        began = time.perf_counter()
        vectors = self.encode(asked, by, selection)
        encoded = time.perf_counter()
        sensible = [number for number, text in enumerate(asked) if asks_anything(text, vectors[number])]
        prepared = self.prepare([vectors[number] for number in sensible], by)
        ranked = self.rank_prepared(prepared, selection)
        scored = time.perf_counter()
        share = 1000 / max(len(asked), 1)
        encode_ms, score_ms = (encoded - began) * share, (scored - encoded) * share
        exact_in = self.exact_in
        nothing = _stats(Counts(), exact_in, encode_ms, score_ms, 0.0, 0)
        answers = [Answer([], nothing, of_query) for of_query in vectors]
        for number, query, (found, counts) in zip(sensible, prepared, ranked, strict=True):
            fetching = time.perf_counter()
            check_deadline(selection)
            page, cost = self._page(query, (found, counts), k, paging, min_share, selection)
            hits = self._hits(page, query.own_score, paging.offset, selection)
            if texts:
                read = self._load(hits, page.ranking, selection, most_text)
                most_text = None if most_text is None else most_text - read
            fetch_ms = (time.perf_counter() - fetching) * 1000
            dropped = vectors[number].dropped
            stats = _stats(cost, exact_in, encode_ms, score_ms, fetch_ms, dropped)
            answers[number] = Answer(hits, stats, vectors[number], query.own_score)
        return answers

    def encode(
        self, queries: Sequence[str], by: By, selection: Selection | None = None
    ) -> list[TokenVectors]:
        """The vectors of queries, or only their words if no vectors are needed."""
        profile = check_parts(self.encoder.config, by)
        if profile.beta == 0.0 and not profile.uses_sentence:
            return read_queries(self.encoder, queries)
        return self._encode(queries, selection or Selection(0))

    def prepare(self, queries: Sequence[TokenVectors], by: By = "coil") -> list[PreparedQuery]:
        """Encoded queries with their weights from the statistics of this collection."""
        profile = check_parts(self.encoder.config, by)
        statistics = self.collection.statistics
        return [PreparedQuery.of(query, profile, statistics) for query in queries]

    def rank(self, query_vectors: TokenVectors, k: int, allowed: NDArray[np.int64] | None = None) -> Ranking:
        """The k best documents for a query that is already encoded: score descending, then ordinal."""
        return self.rank_many([query_vectors], Selection(k, allowed))[0][0]

    def rank_many(self, queries: Sequence[TokenVectors], selection: Selection, by: By = "coil") -> Rankings:
        """The same for many queries, with the cost of each."""
        return self.rank_prepared(self.prepare(queries, by), selection)

    def rank_prepared(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """The same for queries that were prepared for the collection of this searcher."""
        if not queries:
            return []
        if not self._precise:
            return self._rank_searched(queries, selection)
        return rank_certified(self._rank_searched, queries, self.collection.segments, selection)

    def _rank_searched(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """In the form that is searched."""
        if self._device is not None:
            return self._torch_ranker.rank(queries, selection)
        ranker = self._ranker
        if ranker is not None:
            return ranker.rank(queries, selection, self._prune)
        return rank_with_scorer(self._any_scorer, queries, self.collection.segments, selection)

    @property
    def _precise(self) -> bool:
        """Whether a precise form is kept beside the one that is searched."""
        segments = self.collection.segments
        return bool(segments) and segments[0].segment.precise_vectors is not None

    @property
    def exact_in(self) -> str:
        """The precision in which hits and scores are exact."""
        for live in self.collection.segments:
            precise = live.segment.precise_vectors
            values = live.segment.vectors.values if precise is None else precise.values
            return {"int8": "int8", "float16": "fp16", "float32": "fp32"}[values.dtype.name]
        return ""

    @cached
    def _ranker(self) -> NativeRanker | None:
        segments = self.collection.segments
        if self._scorer is not None or load_native() is None or not fits_kernels(segments):
            return None
        return NativeRanker(segments, self._threads)

    @cached
    def _torch_ranker(self) -> TorchRanker:
        assert self._device is not None
        return TorchRanker(self.collection.segments, self._device)

    @property
    def _any_scorer(self) -> Scorer:
        return self._scorer if self._scorer is not None else score_with_numpy

    def _encode(self, queries: Sequence[str], selection: Selection) -> list[TokenVectors]:
        """All queries at once, or slice by slice where there is a deadline to keep."""
        if selection.deadline is None:
            return list(self.encoder.encode_queries(queries))
        vectors: list[TokenVectors] = []
        for begin in range(0, len(queries), ENCODE_SLICE):
            check_deadline(selection)
            vectors += self.encoder.encode_queries(queries[begin : begin + ENCODE_SLICE])
        return vectors

    def _page(
        self,
        query: PreparedQuery,
        ranked: tuple[Ranking, Counts],
        k: int,
        paging: Paging,
        min_share: float | None,
        selection: Selection,
    ) -> tuple[Page, Counts]:
        """The page that is asked for. Where too much of what was found is folded, more is looked for."""
        found, counts = ranked
        check_time = partial(check_deadline, selection)
        while True:
            found = _above(found, query.own_score, min_share)
            page = turn_to_page(found, k, paging, self.collection, selection.deadline, check_time)
            if not paging.fold or paging.sort or len(page.ranking) >= k or len(found) < selection.k:
                return page, counts
            selection = replace(selection, k=4 * selection.k)
            [(found, more)] = self.rank_prepared([query], selection)
            counts = counts.plus(more)

    def _hits(self, page: Page, own_score: float | None, offset: int, selection: Selection) -> list[Hit]:
        found = page.ranking
        ordinals = found.ordinals.tolist()
        shelf = Shelf(self.collection, ordinals)
        ids = self._ids(ordinals, selection)
        folded: list[tuple[str, ...]] = [()] * len(ids)
        if page.duplicates is not None:
            names = iter(self._ids([ordinal for of in page.duplicates for ordinal in of], selection))
            folded = [tuple(islice(names, len(of))) for of in page.duplicates]
        hits = []
        parts = zip(ids, found.scores.tolist(), self._chunks(found), folded, strict=True)
        for place, (doc_id, score, chunk, duplicates) in enumerate(parts):
            share = score / own_score if own_score is not None and own_score > 0.0 else None
            hits.append(Hit(offset + place + 1, doc_id, score, chunk, shelf, share, place, duplicates))
        return hits

    def _ids(self, ordinals: Sequence[int], selection: Selection) -> list[str]:
        ids: list[str] = []
        for begin in range(0, len(ordinals), FETCH_SLICE):
            check_deadline(selection)
            some = self.collection.fetch(ordinals[begin : begin + FETCH_SLICE], texts=False)
            ids += [document.doc_id for document in some]
        return ids

    def _load(self, hits: Sequence[Hit], found: Ranking, selection: Selection, most_text: int | None) -> int:
        """Read the texts of hits, some at a time; returns how many characters they have."""
        total = begin = 0
        for some in self.collection.blocks(found.ordinals[: len(hits)].tolist()):
            check_deadline(selection)
            block, begin = hits[begin : begin + len(some)], begin + len(some)
            total += load_texts(block, None if most_text is None else most_text - total)
        return total

    def _chunks(self, found: Ranking) -> list[tuple[int, int]]:
        """The part of the text that each row is."""
        spans = np.zeros((len(found), 2), dtype=np.int64)
        for number in set(found.segments.tolist()):
            places = np.flatnonzero(found.segments == number)
            spans[places] = self.collection.segments[number].segment.row_spans[found.rows[places]]
        return [(start, end) for start, end in spans.tolist()]


def _above(found: Ranking, own_score: float | None, min_share: float | None) -> Ranking:
    """Those whose share is large enough; they are sorted by score."""
    if min_share is None:
        return found
    if own_score is None or not own_score > 0.0:
        return found[:0]
    return found[: int(np.sum(found.scores / own_score >= min_share))]


def asks_anything(query: str, vectors: TokenVectors) -> bool:
    """Whether a query contains any token. Otherwise, no document has a score."""
    return bool(query.strip()) and len(vectors) > 0


def check_parts(config: ModelConfig, by: By) -> ScoringProfile:
    """The profile of a scoring system; the model must have the vectors that it needs."""
    profile = config.profile.answering(by)
    if by == "tokens" and not config.n_t:
        raise InputError("the model has no token vectors to search by", "search by bm25, dense or hybrid")
    if by in ("dense", "hybrid") and not config.n_c:
        raise InputError("the model has no sentence vector to search by", "search by coil, tokens or bm25")
    return profile


def grid_at_least(score: float) -> int:
    """The smallest score on the grid that is not below this one."""
    return math.ceil(score * GRID)


def _stats(
    counts: Counts, exact_in: str, encode_ms: float, score_ms: float, fetch_ms: float, dropped: int
) -> SearchStats:
    return SearchStats(
        counts.mentions_scored,
        counts.mentions_skipped,
        counts.sentences_scored,
        counts.sentences_skipped,
        counts.heads_scored,
        counts.rescored,
        exact_in,
        encode_ms,
        score_ms,
        fetch_ms,
        dropped,
    )
