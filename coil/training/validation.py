"""Validation: MRR@10 of the held-out queries in a pool of passages."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import TextVectors, sentence_scores, token_scores
from coil.training.grad_cache import CachedTexts, Forward, lay_out, text_vectors
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.vectors.torch_model import CoilModel

_QUERIES_AT_ONCE = 64


class Validation:
    """A fixed pool: the positives of the held-out queries first, other passages up to the limit."""

    def __init__(
        self, data: PairData, options: TrainingOptions, tokenizer: Tokenizer, keys: ListKeys
    ) -> None:
        self._options, self._keys, self._tokenizer = options, keys, tokenizer
        self._queries = np.unique(data.query_of[data.held_out])
        positives = np.unique(
            np.concatenate([np.zeros(0, np.int64), *(data.positives[q] for q in self._queries)])
        )
        others = np.setdiff1d(np.arange(len(data.passages)), positives)
        room = max(0, options.validation_passages - len(positives))
        rng = np.random.default_rng([options.seed, 6])
        self._pool = np.concatenate([positives, rng.permutation(others)[:room]])
        self._data = data

    def __len__(self) -> int:
        return len(self._queries)

    @torch.no_grad()
    def mrr_at_10(self, model: CoilModel, forward: Forward, device: torch.device) -> float:
        """The mean over queries of 1 / rank of the first positive, 0 beyond rank 10."""
        was_training = model.training
        model.eval()
        texts = [self._wrap(self._data.passages[int(p)]) for p in self._pool]
        passages = self._vectors(texts, forward, device)
        total = 0.0
        for begin in range(0, len(self._queries), _QUERIES_AT_ONCE):
            chosen = self._queries[begin : begin + _QUERIES_AT_ONCE]
            queries = self._vectors([self._wrap(self._data.queries[int(q)]) for q in chosen], forward, device)
            scores = self._scores(queries, passages)
            best = scores.topk(min(10, scores.shape[1]), dim=1).indices.cpu().numpy()
            for query, ranked in zip(chosen, best, strict=True):
                hits = np.flatnonzero(np.isin(self._pool[ranked], self._data.positives[int(query)]))
                total += 1.0 / (1 + hits[0]) if len(hits) else 0.0
        model.train(was_training)
        return total / max(1, len(self._queries))

    def _scores(self, queries: TextVectors, passages: TextVectors) -> torch.Tensor:
        sentences = sentence_scores(queries, passages)
        if not self._options.n_t:
            assert sentences is not None
            return sentences
        tokens = token_scores(queries, passages, self._options.floor)
        return tokens if sentences is None else tokens + sentences

    def _wrap(self, text: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.array([*self._tokenizer.prefix, *text, *self._tokenizer.suffix], dtype=np.int32)

    def _vectors(
        self, texts: Sequence[NDArray[np.int32]], forward: Forward, device: torch.device
    ) -> TextVectors:
        ends = (len(self._tokenizer.prefix), len(self._tokenizer.suffix))
        layout = lay_out(texts, self._keys, ends)
        cached = CachedTexts(texts, layout, forward, self._options.micro_batch_tokens, device)
        return text_vectors(layout, cached.vectors, cached.sentences)
