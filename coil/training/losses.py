"""The losses: the paper's contrastive loss and optional further terms. Each is a mean over queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from coil.training.batch_scores import BatchScores, TextVectors
from coil.training.options import TrainingOptions


@dataclass(frozen=True, eq=False)
class Targets:
    """The targets of the loss."""

    positives: Tensor  # [Q] position of the positive
    excluded: Tensor  # [Q, D] other positives, which are masked
    teacher: Tensor | None = None  # [Q, D] teacher scores, NaN where there is none
    kept_queries: Tensor | None = None  # [Q, n_c] sentence vectors of the starting model
    kept_passages: Tensor | None = None  # [D, n_c]
    kept_query_tokens: Tensor | None = None  # [mentions, n_t] token vectors of the starting model
    kept_passage_tokens: Tensor | None = None  # [mentions, n_t]


def loss_parts(
    computed: BatchScores,
    queries: TextVectors,
    passages: TextVectors,
    targets: Targets,
    options: TrainingOptions,
) -> dict[str, Tensor]:
    """All terms with their weights applied; the loss is their sum."""
    scores = computed.whole
    parts: dict[str, Tensor] = {}
    if options.contrast:
        parts["contrast"] = options.contrast * contrast(scores, targets)
    if options.token_only and computed.tokens is not None:
        parts["token_only"] = options.token_only * contrast(computed.tokens, targets)
    if targets.teacher is not None:
        parts["teacher"] = options.teacher_weight * divergence(scores, targets, options.teacher_scale)
    kept = targets.kept_queries, targets.kept_passages
    if options.keep:
        parts["keep"] = options.keep * distance((queries.sentences, passages.sentences), kept)
    kept_tokens = targets.kept_query_tokens, targets.kept_passage_tokens
    if options.keep_tokens:
        parts["keep_tokens"] = options.keep_tokens * distance(
            (queries.vectors, passages.vectors), kept_tokens
        )
    return parts


def distance(now: Sequence[Tensor | None], start: Sequence[Tensor | None]) -> Tensor:
    """The mean cosine distance of vectors from those of the starting model."""
    far = []
    for vectors, before in zip(now, start, strict=True):
        assert vectors is not None
        assert before is not None
        far.append(1.0 - functional.cosine_similarity(vectors, before, dim=-1))
    return torch.cat(far).mean()


def contrast(scores: Tensor, targets: Targets) -> Tensor:
    """−log of the positive's softmax probability among all passages of the batch (eq. 7)."""
    return functional.cross_entropy(
        scores.masked_fill(targets.excluded, float("-inf")), targets.positives, reduction="mean"
    )


def divergence(scores: Tensor, targets: Targets, scale: float) -> Tensor:
    """KL from the teacher's distribution to the model's, over the passages that the teacher scored."""
    assert targets.teacher is not None
    silent = targets.excluded | targets.teacher.isnan()
    lowest = torch.finfo(scores.dtype).min
    model = scores.masked_fill(silent, lowest).log_softmax(-1)
    teacher = (scale * targets.teacher.nan_to_num()).masked_fill(silent, lowest).softmax(-1)
    log_teacher = teacher.clamp_min(1e-12).log()
    return (teacher * (log_teacher - model).masked_fill(silent, 0.0)).sum(-1).mean()
