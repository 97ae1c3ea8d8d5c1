"""ColBERT's score over a batch, differentiable: each query token is matched with its best passage token.

    s(q, d) = Σ_i max_j v_i^q · v_j^d

The best tokens are found in blocks and without a graph; only their products are then differentiated, so
memory does not grow with the length of the passages.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coil.training.batch_scores import BatchScores, TextVectors


class MaxSim:
    """All tokens of a query against all tokens of a passage."""

    def __init__(self, at_once: int = 2**25) -> None:
        """`at_once`: the number of products kept in memory at a time."""
        self._at_once = at_once

    def __call__(
        self, queries: TextVectors, passages: TextVectors, sources: Tensor, factors: Tensor | None = None
    ) -> BatchScores:
        """All scores, returned as the token part; `sources` and `factors` are not used."""
        if not (len(queries.vectors) and len(passages.vectors)):
            return BatchScores(queries.vectors.new_zeros((queries.n_texts, passages.n_texts)), None)
        lengths = passages.lengths
        per_block = max(1, self._at_once // (len(queries.vectors) * int(lengths.max())))
        starts = lengths.cumsum(0) - lengths
        scores = []
        for begin in range(0, passages.n_texts, per_block):
            part = slice(begin, begin + per_block)
            best = self._best(queries.vectors, passages.vectors, starts[part], lengths[part])
            chosen = passages.vectors.index_select(0, best.flatten()).view(*best.shape, -1)
            similarity = (queries.vectors[:, None] * chosen).sum(-1)  # [query mentions, passages]
            similarity = similarity * (lengths[part] > 0)  # a passage without tokens matches nothing
            total = similarity.new_zeros((queries.n_texts, similarity.shape[1]))
            scores.append(total.index_add(0, queries.rows, similarity))
        return BatchScores(torch.cat(scores, dim=1), None)

    @staticmethod
    @torch.no_grad()
    def _best(queries: Tensor, passages: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        """The mention of each passage that is nearest to each query mention, [query mentions, passages]."""
        within = torch.arange(max(1, int(lengths.max())), device=queries.device)
        real = within < lengths[:, None]  # [passages, length]
        last = len(passages) - 1  # places beyond it are padding, which is masked
        mentions = (starts[:, None] + within).clamp_max(last)
        products = torch.einsum("qn,dln->qdl", queries, passages[mentions])
        nearest = products.masked_fill(~real, float("-inf")).argmax(-1)
        return (starts + nearest).clamp_max(last)
