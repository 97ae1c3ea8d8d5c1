"""Validation: the held-out queries, searched in a pool of passages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import BatchEquation, TextVectors
from coil.training.batches import wrap
from coil.training.grad_cache import CachedTexts, Forward, lay_out, text_vectors
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.token_store import TextTokens, TokenStore
from coil.vectors.torch_model import CoilModel

_QUERIES_AT_ONCE = 64


class Validation:
    """A fixed pool: the positives of the held-out queries first, other passages up to the limit."""

    def __init__(self, data: PairData, options: TrainingOptions, tokenizer: Tokenizer) -> None:
        self._options, self._tokenizer = options, tokenizer
        self._queries = np.unique(data.query_of[data.held_out])
        positives = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(data.positives[q] for q in self._queries)])
        )
        others = np.setdiff1d(np.arange(len(data.passages)), positives)
        room = max(0, options.validation_passages - len(positives))
        rng = np.random.default_rng([options.seed, 6])
        self._pool = np.concatenate([positives, rng.permutation(others)[:room]])
        self._data = data
        self._source_of = np.zeros(len(data.queries), dtype=np.int64)
        self._source_of[data.query_of] = data.source_of

    def __len__(self) -> int:
        return len(self._queries)

    @torch.no_grad()
    def reciprocal_ranks(
        self, model: CoilModel, forward: Forward, device: torch.device
    ) -> NDArray[np.float64]:
        """Per query, 1 / rank of its first positive, 0 beyond rank 10; their mean is MRR@10."""
        was_training = model.training
        model.eval()
        equation = BatchEquation(model.config.profile, self._data.statistics.to(device))
        passages = self._vectors(self._texts(self._data.passages, self._pool, 1), forward, device)
        found: list[float] = []
        for begin in range(0, len(self._queries), _QUERIES_AT_ONCE):
            chosen = self._queries[begin : begin + _QUERIES_AT_ONCE]
            queries = self._vectors(self._texts(self._data.queries, chosen, 0), forward, device)
            sources = torch.from_numpy(self._source_of[chosen]).to(device)
            scores = equation(queries, passages, sources, model.factors()).whole
            best = scores.topk(min(10, scores.shape[1]), dim=1).indices.cpu().numpy()
            for query, ranked in zip(chosen, best, strict=True):
                hits = np.flatnonzero(np.isin(self._pool[ranked], self._data.positives[int(query)]))
                found.append(1.0 / (1 + hits[0]) if len(hits) else 0.0)
        model.train(was_training)
        return np.array(found, dtype=np.float64)

    def _texts(self, store: TokenStore, chosen: NDArray[np.int64], side: int) -> list[TextTokens]:
        length = self._options.lengths[side]
        return [wrap(store[int(text)], self._tokenizer, length) for text in chosen]

    def _vectors(self, texts: Sequence[TextTokens], forward: Forward, device: torch.device) -> TextVectors:
        layout = lay_out(texts)
        cached = CachedTexts(texts, layout, forward, self._options.micro_batch_tokens, device)
        return text_vectors(layout, cached.vectors, cached.sentences)
