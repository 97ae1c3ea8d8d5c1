"""Validation: the held-out queries, searched in a pool of passages or in a few candidates each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import TextVectors
from coil.training.batches import wrap
from coil.training.grad_cache import CachedTexts, Forward, lay_out, text_vectors
from coil.training.matching import EncodingModel, Matching, factors_of
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.token_store import TextTokens, TokenStore

CANDIDATES = 32  # candidates per held-out query, for models that read query and passage together
DEPTH = 10
_QUERIES_AT_ONCE = 64
ScorePairs = Callable[[Sequence[TextTokens], Sequence[TextTokens]], Tensor]  # pairs → [pairs]


class _Validation:
    """The held-out queries and the texts of queries and passages."""

    def __init__(self, data: PairData, options: TrainingOptions, tokenizer: Tokenizer) -> None:
        self._data, self._options, self._tokenizer = data, options, tokenizer
        self._queries = np.unique(data.query_of[data.held_out])

    def _texts(self, store: TokenStore, chosen: NDArray[np.int64], side: int) -> list[TextTokens]:
        length = self._options.lengths[side]
        return [wrap(store[int(text)], self._tokenizer, length) for text in chosen]

    def _reciprocal_rank(self, query: int, ranked: NDArray[np.int64]) -> float:
        """1 / rank of the first positive among the ten best passages, else 0."""
        hits = np.flatnonzero(np.isin(ranked[:DEPTH], self._data.positives[query]))
        return 1.0 / (1 + int(hits[0])) if len(hits) else 0.0


class PoolValidation(_Validation):
    """A fixed pool: the positives of the held-out queries first, other passages up to the limit."""

    def __init__(
        self, data: PairData, options: TrainingOptions, tokenizer: Tokenizer, matching: Matching
    ) -> None:
        super().__init__(data, options, tokenizer)
        self._matching = matching
        positives = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(data.positives[q] for q in self._queries)])
        )
        others = np.setdiff1d(np.arange(len(data.passages)), positives)
        room = max(0, options.validation_passages - len(positives))
        rng = np.random.default_rng([options.seed, 6])
        self._pool = np.concatenate([positives, rng.permutation(others)[:room]])
        self._source_of = np.zeros(len(data.queries), dtype=np.int64)
        self._source_of[data.query_of] = data.source_of

    @torch.no_grad()
    def reciprocal_ranks(self, model: EncodingModel, device: torch.device) -> NDArray[np.float64]:
        """For each query, 1 / rank of its first positive, 0 beyond rank 10; their mean is MRR@10."""
        if not len(self._queries):
            return np.zeros(0)
        was_training = model.training
        model.eval()
        texts = self._texts(self._data.passages, self._pool, 1)
        passages = self._vectors([self._matching.read_passage(text) for text in texts], model, device)
        found: list[float] = []
        for begin in range(0, len(self._queries), _QUERIES_AT_ONCE):
            chosen = self._queries[begin : begin + _QUERIES_AT_ONCE]
            texts = self._texts(self._data.queries, chosen, 0)
            queries = self._vectors([self._matching.read_query(text) for text in texts], model, device)
            sources = torch.from_numpy(self._source_of[chosen]).to(device)
            scores = self._matching.equation(queries, passages, sources, factors_of(model)).whole
            best = scores.topk(min(DEPTH, scores.shape[1]), dim=1).indices.cpu().numpy()
            for query, ranked in zip(chosen, best, strict=True):
                found.append(self._reciprocal_rank(int(query), self._pool[ranked]))
        model.train(was_training)
        return np.array(found, dtype=np.float64)

    def _vectors(self, texts: Sequence[TextTokens], forward: Forward, device: torch.device) -> TextVectors:
        layout = lay_out(texts)
        cached = CachedTexts(texts, layout, forward, self._options.micro_batch_tokens, device)
        return text_vectors(layout, cached.vectors, cached.sentences)


class CandidateValidation(_Validation):
    """For each held-out query, a few candidates: its positives, hard negatives and other passages."""

    def _candidates(self, query: int) -> NDArray[np.int64]:
        rng = np.random.default_rng([self._options.seed, 7, query])
        positives = self._data.positives[query]
        others = rng.permutation(self._data.negatives[query])
        more = rng.permutation(len(self._data.passages))[: 2 * CANDIDATES]
        rest = np.concatenate([others, more[~np.isin(more, others)]])
        rest = rest[~np.isin(rest, positives)]
        # Positives last: a tie with one of them ranks before it.
        return np.concatenate([rest[: max(0, CANDIDATES - len(positives))], positives])

    @torch.no_grad()
    def reciprocal_ranks(self, model: nn.Module, score: ScorePairs) -> NDArray[np.float64]:
        """For each query, 1 / rank of its first positive among its candidates, 0 beyond rank 10."""
        was_training = model.training
        model.eval()
        found: list[float] = []
        for query in self._queries.tolist():
            candidates = self._candidates(query)
            queries = self._texts(self._data.queries, np.full(len(candidates), query), 0)
            scores = score(queries, self._texts(self._data.passages, candidates, 1)).cpu().numpy()
            found.append(self._reciprocal_rank(query, candidates[np.argsort(-scores, kind="stable")]))
        model.train(was_training)
        return np.array(found, dtype=np.float64)
