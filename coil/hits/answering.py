"""Answering: turns queries into pages of hits, with any ranker of prepared queries."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coil.errors import AnswerTooLarge, InputError
from coil.hits.hit import Hit, Shelf, load_texts
from coil.hits.paging import Page, Paging, turn_to_page
from coil.hits.rankers import NO_THRESHOLD, Counts, Rankings, Selection, check_deadline
from coil.hits.ranking import Ranking
from coil.scores.prepared import KnowsCollection, PreparedQuery
from coil.scores.products import GRID
from coil.texts.questions import check_k, check_min_score, check_min_share, check_most_text, check_queries
from coil.texts.values import Document
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder, read_queries
from coil.vectors.token_vectors import TokenVectors

# The deadline is checked between slices.
ENCODE_SLICE = 32  # queries
FETCH_SLICE = 1_000  # hits: a few milliseconds
FIRST_PAGE = Paging()


@dataclass(frozen=True)
class SearchStats:
    """The cost of one query. In a batch, the time is divided equally among the queries.

    A mention or sentence vector is skipped if it provably cannot change the hits; the head of a skipped
    sentence vector may have been read. If precise vectors are stored beside int8, the rows that could be hits
    are scored again with them.
    """

    mentions_scored: int = 0
    mentions_skipped: int = 0
    sentences_scored: int = 0
    sentences_skipped: int = 0
    heads_scored: int = 0
    rescored: int = 0
    exact_in: str = ""  # the form of the vectors for which the hits are provably the best
    encode_ms: float = 0.0
    score_ms: float = 0.0
    fetch_ms: float = 0.0
    query_dropped: int = 0  # tokens that were not read, because the query is too long for the model
    filter_ms: float = 0.0  # selecting the documents that filter and conditions allow; in shards: score_ms

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
    unknown_fields: tuple[str, ...] = ()  # without hits: fields of the filter that no document has
    sorted_best: int | None = None  # how many of the best hits were sorted by a field, if not all
    text_bytes: int = 0  # of the texts and fields that were loaded with the hits, if there was a limit
    is_large: bool = False  # whether they were not loaded, because they exceed a limit


class Answerable(Protocol):
    """What answering needs: the statistics for weights, and the documents by ordinal."""

    @property
    def statistics(self) -> KnowsCollection:
        """The statistics that weights are computed from."""
        ...

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order."""
        ...

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterable[tuple[int, Any]]:
        """The values of a field of these documents, by ordinal; documents without the field are left out."""
        ...

    def blocks(self, ordinals: Sequence[int]) -> Iterable[Sequence[int]]:
        """Split ordinals into blocks whose documents are read together."""
        ...

    def sizes_of(self, ordinals: Sequence[int]) -> Iterable[int]:
        """The bytes of each document's text and fields, which are not read for that."""
        ...


C = TypeVar("C", bound=Answerable)


class Answering(ABC, Generic[C]):
    """Encodes queries, ranks documents, selects the requested page and fetches its documents.

    Subclasses implement the ranking: over segments or over shards.
    """

    def __init__(self, encoder: Encoder, collection: C) -> None:
        self.encoder, self.collection = encoder, collection

    @abstractmethod
    def rank_prepared(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """The k best documents of each query, by score, descending, then by ordinal, with the cost."""

    @property
    @abstractmethod
    def exact_in(self) -> str:
        """The form of the vectors for which hits and scores are exact."""

    @abstractmethod
    def chunks(self, found: Ranking) -> list[tuple[int, int]]:
        """The part of the text that gave each document its score."""

    @abstractmethod
    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Called before documents are fetched, with the ordinals for all queries."""

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
        most_each: int | None = None,
    ) -> list[Answer]:
        """The k best documents for each of many queries, and their cost.

        An empty or blank query has no hits, not even through the sentence vector. Without a sentence part, a
        document with a score of exactly 0 is not a hit. `allowed` restricts the search to documents with
        these ordinals; `by` selects the scoring system; `min_score` and `min_share` omit hits below a value
        (see `Hit.share`). After `deadline`, a time of `time.monotonic`, encoding, ranking or fetching raises
        SearchTimeout. With `texts`, texts and fields of the hits are loaded immediately, except for queries
        whose hits have more than `most_each` bytes of them: these answers are marked as large. If all others
        exceed `most_text` bytes in total, it raises AnswerTooLarge and loads none. `paging` selects other
        hits than the first k.
        """
        asked = check_queries(queries)
        min_score, min_share = check_min_score(min_score), check_min_share(min_share)
        most_text, most_each = check_most_text(most_text), check_most_text(most_each, "most_each")
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
        pages = []
        for query, of_query in zip(prepared, ranked, strict=True):
            check_deadline(selection)
            pages.append(self._page(query, of_query, k, paging, min_share, selection))
        self.expect([ordinal for page, _ in pages for ordinal in page.ordinals], texts)
        sizes: Sequence[int | None] = [0] * len(pages)
        if texts and (most_text is not None or most_each is not None):
            sizes = self._measure([page for page, _ in pages], most_text, most_each, selection)
        paging_ms = (time.perf_counter() - scored) * share
        for number, query, (page, cost), size in zip(sensible, prepared, pages, sizes, strict=True):
            fetching = time.perf_counter()
            check_deadline(selection)
            hits = self._hits(page, query.own_score, paging.offset, selection)
            if texts and size is not None:
                self._load(hits, page.ranking, selection)
            fetch_ms = paging_ms + (time.perf_counter() - fetching) * 1000
            dropped = vectors[number].dropped
            stats = _stats(cost, exact_in, encode_ms, score_ms, fetch_ms, dropped)
            answer = Answer(hits, stats, vectors[number], query.own_score, sorted_best=page.sorted_best)
            answers[number] = replace(answer, text_bytes=size or 0, is_large=size is None)
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

    def _encode(self, queries: Sequence[str], selection: Selection) -> list[TokenVectors]:
        """Encode all queries at once, or in slices if there is a deadline."""
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
        """The requested page. If folding leaves too few hits, the search is repeated with a larger k."""
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
        parts = zip(ids, found.scores.tolist(), self.chunks(found), folded, strict=True)
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

    def _measure(
        self, pages: Sequence[Page], most_text: int | None, most_each: int | None, selection: Selection
    ) -> list[int | None]:
        """The bytes of texts and fields of each page; None for more than `most_each`."""
        sizes: list[int | None] = []
        for page in pages:
            check_deadline(selection)
            size = sum(self.collection.sizes_of(page.ranking.ordinals.tolist()))
            sizes.append(None if most_each is not None and size > most_each else size)
        if most_text is not None and sum(size or 0 for size in sizes) > most_text:
            raise AnswerTooLarge("the texts of the hits exceed the limit", "request fewer hits")
        return sizes

    def _load(self, hits: Sequence[Hit], found: Ranking, selection: Selection) -> None:
        """Load the texts of hits, some at a time."""
        begin = 0
        for some in self.collection.blocks(found.ordinals[: len(hits)].tolist()):
            check_deadline(selection)
            block, begin = hits[begin : begin + len(some)], begin + len(some)
            load_texts(block)


def _above(found: Ranking, own_score: float | None, min_share: float | None) -> Ranking:
    """The documents whose share is large enough; the ranking is sorted by score."""
    if min_share is None:
        return found
    if own_score is None or not own_score > 0.0:
        return found[:0]
    return found[: int(np.sum(found.scores / own_score >= min_share))]


def asks_anything(query: str, vectors: TokenVectors) -> bool:
    """Whether a query contains any token; otherwise no document has a score."""
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
