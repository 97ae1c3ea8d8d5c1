"""Teachers within the batch: the starting model's sentence similarity and BM25, summed as z-scores.

BM25 is the batch equation with different constants.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn import functional

from coil.vectors.torch_model import CoilModel


class StartingModel(nn.Module):
    """A frozen copy of the model before the first step."""

    def __init__(self, model: CoilModel) -> None:
        super().__init__()
        self._model = copy.deepcopy(model).eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        """[batch, length] → token vectors [batch, length, n_t], pooled vector of unit length [batch, width],
        sentence vector [batch, n_c]."""
        hidden = self._model.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        pooled = self._model.pool(hidden, attention_mask)
        sentence = self._model.sentence(pooled) if self._model.cls_proj is not None else pooled[:, :0]
        return self._model.token_vectors(hidden), functional.normalize(pooled, dim=-1), sentence


def z_scores(scores: Tensor, excluded: Tensor) -> Tensor:
    """The scores of each query, scaled to mean 0 and deviation 1 over unmasked passages. [Q, D]"""
    counted = (~excluded).to(scores.dtype)
    n = counted.sum(-1, keepdim=True).clamp_min(1.0)
    mean = (scores * counted).sum(-1, keepdim=True) / n
    variance = (((scores - mean) * counted) ** 2).sum(-1, keepdim=True) / n
    return (scores - mean) / variance.sqrt().clamp_min(1e-6)


def hybrid(dense: Tensor, lexical: Tensor, excluded: Tensor, share: float) -> Tensor:
    """The z-score sum of two systems, `share` of it from the dense one."""
    return share * z_scores(dense, excluded) + (1.0 - share) * z_scores(lexical, excluded)
