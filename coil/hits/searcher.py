"""Searcher: finds the hits of queries in the segments of a collection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from coil.forks import cached
from coil.hits.answering import Answering
from coil.hits.certificate import rank_certified
from coil.hits.collection import Collection, MemoryCollection
from coil.hits.hit import Hit
from coil.hits.rankers import NativeRanker, Rankings, Selection, fits_kernels, rank_with_scorer
from coil.hits.ranking import Ranking
from coil.hits.torch_ranker import TorchRanker
from coil.scores.native import load_native
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import Scorer, score_with_numpy
from coil.texts.questions import check_query
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors


class Searcher(Answering[Collection]):
    """An immutable snapshot to search: an encoder for queries, lists, and documents.

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
        super().__init__(encoder, collection)
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
        """A searcher over documents in memory; for `progress` see `MemoryCollection.build`."""
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

    def rank(self, query_vectors: TokenVectors, k: int, allowed: NDArray[np.int64] | None = None) -> Ranking:
        """The k best documents for an encoded query, by score, descending, then by ordinal."""
        return self.rank_many([query_vectors], Selection(k, allowed))[0][0]

    def rank_many(self, queries: Sequence[TokenVectors], selection: Selection, by: By = "coil") -> Rankings:
        """The k best documents for each of many encoded queries, with the cost of each."""
        return self.rank_prepared(self.prepare(queries, by), selection)

    def rank_prepared(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """Like `rank_many`, for queries that were prepared for this collection."""
        if not queries:
            return []
        if not self._precise:
            return self._rank_searched(queries, selection)
        return rank_certified(self._rank_searched, queries, self.collection.segments, selection)

    def _rank_searched(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """Rank by the searched vectors."""
        if self._device is not None:
            return self._torch_ranker.rank(queries, selection)
        ranker = self._ranker
        if ranker is not None:
            return ranker.rank(queries, selection, self._prune)
        return rank_with_scorer(self._any_scorer, queries, self.collection.segments, selection)

    @property
    def _precise(self) -> bool:
        """Whether precise vectors are stored in addition to the searched ones."""
        segments = self.collection.segments
        return bool(segments) and segments[0].segment.precise_vectors is not None

    @property
    def exact_in(self) -> str:
        """The form of the vectors for which hits and scores are exact."""
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

    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Do nothing: the documents are local."""

    def chunks(self, found: Ranking) -> list[tuple[int, int]]:
        """The part of the text that gave each document its score."""
        return [(start, end) for start, end in self.spans(found).tolist()]

    def spans(self, found: Ranking) -> NDArray[np.int64]:
        """The chunks as an array. [ranked, 2]"""
        spans = np.zeros((len(found), 2), dtype=np.int64)
        for number in set(found.segments.tolist()):
            places = np.flatnonzero(found.segments == number)
            spans[places] = self.collection.segments[number].segment.row_spans[found.rows[places]]
        return spans
