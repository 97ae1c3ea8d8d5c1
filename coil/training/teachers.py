"""Teachers inside the batch: the starting model's sentence similarity and BM25, summed as z-scores."""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.training.grad_cache import Layout
from coil.training.token_store import TokenStore
from coil.vectors.torch_model import CoilModel

K1, B = 0.9, 0.4  # the constants of the BM25 that everyone compares with


class StartingModel(nn.Module):
    """A frozen copy of the model before the first step."""

    def __init__(self, model: CoilModel) -> None:
        super().__init__()
        self._model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        """[batch, length] → pooled vector of unit length [batch, width], sentence vector [batch, n_c]."""
        hidden = self._model.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = self._model.pool(hidden, attention_mask)
        sentence = self._model.sentence(pooled) if self._model.cls_proj is not None else pooled[:, :0]
        return functional.normalize(pooled, dim=-1), sentence


class BatchBM25:
    """BM25 over inverted-list keys; document frequencies come from all passages, counts from the batch."""

    def __init__(self, passages: TokenStore, keys: ListKeys) -> None:
        self._keys = keys
        frequency = np.zeros(keys.vocabulary_size, dtype=np.int64)
        total = 0
        for rows, tokens in passages.blocks():
            lists = keys.of(tokens)
            listed = lists != NO_LIST
            total += int(listed.sum())
            once = np.unique(np.stack([rows[listed], lists[listed]]), axis=1)[1]
            frequency += np.bincount(once, minlength=keys.vocabulary_size)
        n = max(len(passages), 1)
        self._idf = np.log1p((n - frequency + 0.5) / (frequency + 0.5))
        self._average = max(total / n, 1.0)

    def scores(self, queries: Layout, passages: Layout) -> NDArray[np.float32]:
        """BM25 of every query and passage, [Q, D]."""
        words = np.unique(queries.lists)
        weights = _counts(queries, words) * self._idf[words].astype(np.float32)  # [Q, words of the queries]
        counts = _counts(passages, words)  # [D, words of the queries]
        lengths = np.diff(passages.starts)[:, None].astype(np.float32)
        saturated = counts / (counts + K1 * (1.0 - B + B * lengths / self._average))
        return np.asarray(weights @ saturated.T, dtype=np.float32)


def _counts(texts: Layout, words: NDArray[np.int64]) -> NDArray[np.float32]:
    """How often each text has each of the words, [texts, words]."""
    known = np.isin(texts.lists, words)
    cells = texts.rows[known] * len(words) + np.searchsorted(words, texts.lists[known])
    counts = np.bincount(cells, minlength=texts.n_texts * len(words)).astype(np.float32)
    return counts.reshape(texts.n_texts, len(words))


def z_scores(scores: Tensor, excluded: Tensor) -> Tensor:
    """Scores of each query shifted and scaled to mean 0 and deviation 1 over what counts. [Q, D]"""
    counted = (~excluded).to(scores.dtype)
    n = counted.sum(-1, keepdim=True).clamp_min(1.0)
    mean = (scores * counted).sum(-1, keepdim=True) / n
    variance = (((scores - mean) * counted) ** 2).sum(-1, keepdim=True) / n
    return (scores - mean) / variance.sqrt().clamp_min(1e-6)


def hybrid(dense: Tensor, lexical: Tensor, excluded: Tensor, share: float) -> Tensor:
    """The z-score sum of two systems, `share` of it from the dense one."""
    return share * z_scores(dense, excluded) + (1.0 - share) * z_scores(lexical, excluded)
