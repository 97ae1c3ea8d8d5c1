"""One training step: encode the batch, compute the loss, propagate its gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coil.training.batch_scores import BatchEquation, TextVectors
from coil.training.batches import Batch
from coil.training.grad_cache import CachedTexts, Forward, Layout, lay_out, text_vectors
from coil.training.losses import Targets, loss_parts
from coil.training.options import TrainingOptions
from coil.training.passage_statistics import PassageStatistics
from coil.training.processes import Processes
from coil.training.teachers import StartingModel, hybrid
from coil.training.token_store import TextTokens
from coil.vectors.torch_model import CoilModel


class Step:
    """Leaves the gradient of a batch's loss in the weights."""

    def __init__(
        self,
        model: CoilModel,
        statistics: PassageStatistics,
        options: TrainingOptions,
        processes: Processes,
        start: StartingModel | None = None,
    ) -> None:
        self._model, self._options, self._processes, self._start = model, options, processes, start
        profile, statistics = model.config.profile, statistics.to(processes.device)
        self._equation = BatchEquation(profile, statistics)
        self._bm25 = BatchEquation(profile.answering("bm25"), statistics)

    def _autocast(self, forward: Forward) -> Forward:
        device = self._processes.device.type
        enabled = self._options.bf16 and device == "cuda"

        def run(ids: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
            with torch.autocast(device, dtype=torch.bfloat16, enabled=enabled):
                return forward(ids, mask)

        return run

    def __call__(self, batch: Batch) -> dict[str, float]:
        """Add the gradient of the loss of this batch to the weights; returns the loss and its parts."""
        q_layout, d_layout = lay_out(batch.queries), lay_out(batch.passages)
        queries, all_queries = self._encode(batch.queries, q_layout)
        passages, all_passages = self._encode(batch.passages, d_layout)
        sources = torch.from_numpy(batch.sources).to(self._processes.device)
        scores = self._equation(all_queries, all_passages, sources, self._model.factors())
        targets = self._targets(batch, q_layout, d_layout, sources)
        parts = loss_parts(scores, all_queries, all_passages, targets, self._options)
        loss = torch.stack(list(parts.values())).sum()
        torch.autograd.backward(loss)
        queries.backward()
        passages.backward()
        factors = self._model.log_factors
        if factors is not None and factors.grad is not None:
            # Every process has computed all of this one, and only a share of the others.
            factors.grad /= self._processes.count
        self._processes.sum_gradients(p for p in self._model.parameters() if p.requires_grad)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _encode(self, texts: Sequence[TextTokens], layout: Layout) -> tuple[CachedTexts, TextVectors]:
        """Encode this process's share of the texts; gather the vectors of all."""
        mine = self._processes.share(len(texts))
        cached = CachedTexts(
            texts[mine],
            layout.part(mine),
            self._autocast(self._model),
            self._options.micro_batch_tokens,
            self._processes.device,
        )
        bounds = [len(texts) * rank // self._processes.count for rank in range(self._processes.count + 1)]
        vectors, sentences = cached.vectors, cached.sentences
        if vectors is not None:
            vectors = self._processes.gather(vectors, np.diff(layout.starts[bounds]).tolist())
        if sentences is not None:
            sentences = self._processes.gather(sentences, np.diff(bounds).tolist())
        return cached, text_vectors(layout, vectors, sentences)

    def _targets(self, batch: Batch, queries: Layout, passages: Layout, sources: Tensor) -> Targets:
        device = self._processes.device
        excluded = torch.from_numpy(batch.excluded).to(device)
        teacher: Tensor | None = None
        kept_queries = kept_passages = query_tokens = passage_tokens = None
        if self._start is not None:
            query_tokens, pooled_queries, kept_queries = self._remember(batch.queries, queries)
            passage_tokens, pooled_passages, kept_passages = self._remember(batch.passages, passages)
            if self._options.teacher == "hybrid":
                lexical = self._bm25(
                    text_vectors(queries, None, pooled_queries),
                    text_vectors(passages, None, pooled_passages),
                    sources,
                ).tokens
                assert lexical is not None
                teacher = hybrid(
                    pooled_queries @ pooled_passages.T, lexical, excluded, self._options.teacher_dense
                )
        if batch.taught is not None:
            teacher = torch.from_numpy(batch.taught).to(device)
        return Targets(
            torch.from_numpy(batch.targets).to(device),
            excluded,
            teacher,
            kept_queries,
            kept_passages,
            query_tokens,
            passage_tokens,
        )

    @torch.no_grad()
    def _remember(self, texts: Sequence[TextTokens], layout: Layout) -> tuple[Tensor | None, Tensor, Tensor]:
        """What the starting model says of all texts: token vectors, pooled vectors and sentence vectors."""
        assert self._start is not None
        start = self._start

        def both(ids: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
            tokens, pooled, sentence = start(ids, mask)
            return tokens, torch.cat([pooled.float(), sentence.float()], dim=-1)

        # Every process needs all of them; the frozen model is cheap enough to run whole everywhere.
        cached = CachedTexts(
            texts, layout, self._autocast(both), self._options.micro_batch_tokens, self._processes.device
        )
        assert cached.sentences is not None
        width = cached.sentences.shape[1] - self._options.n_c
        joined = cached.sentences.detach()
        tokens = cached.vectors.detach() if cached.vectors is not None else None
        return tokens, joined[:, :width], joined[:, width:]
