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
from coil.training.matching import EncodingModel, Matching, factors_of
from coil.training.options import TrainingOptions
from coil.training.processes import Processes
from coil.training.teachers import StartingModel, hybrid
from coil.training.token_store import TextTokens


def in_bfloat16(forward: Forward, options: TrainingOptions, device: torch.device) -> Forward:
    """Runs the language model in bfloat16 on a GPU, if the options say so; weights stay in fp32."""
    enabled = options.bf16 and device.type == "cuda"

    def run(ids: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=enabled):
            return forward(ids, mask)

    return run


def encode_share(
    texts: Sequence[TextTokens],
    layout: Layout,
    forward: Forward,
    options: TrainingOptions,
    processes: Processes,
) -> tuple[CachedTexts, Tensor | None, Tensor | None]:
    """Encode this process's share of texts; gather the token and sentence vectors of all."""
    mine = processes.share(len(texts))
    run = in_bfloat16(forward, options, processes.device)
    cached = CachedTexts(texts[mine], layout.part(mine), run, options.micro_batch_tokens, processes.device)
    bounds = [len(texts) * rank // processes.count for rank in range(processes.count + 1)]
    vectors, sentences = cached.vectors, cached.sentences
    if vectors is not None:
        vectors = processes.gather(vectors, np.diff(layout.starts[bounds]).tolist())
    if sentences is not None:
        sentences = processes.gather(sentences, np.diff(bounds).tolist())
    return cached, vectors, sentences


class Step:
    """Computes the loss of a batch and accumulates its gradient in the weights."""

    def __init__(
        self,
        model: EncodingModel,
        matching: Matching,
        options: TrainingOptions,
        processes: Processes,
        start: StartingModel | None = None,
        bm25: BatchEquation | None = None,
    ) -> None:
        """`start` is a copy of the model before the first step; `bm25` is one part of the hybrid teacher."""
        self._model, self._options, self._processes, self._start = model, options, processes, start
        self._matching, self._bm25 = matching, bm25

    def __call__(self, batch: Batch) -> dict[str, float]:
        """Add the gradient of the loss of this batch to the weights; returns the loss and its parts."""
        query_texts = [self._matching.read_query(text) for text in batch.queries]
        passage_texts = [self._matching.read_passage(text) for text in batch.passages]
        q_layout, d_layout = lay_out(query_texts), lay_out(passage_texts)
        queries, all_queries = self._encode(query_texts, q_layout)
        passages, all_passages = self._encode(passage_texts, d_layout)
        sources = torch.from_numpy(batch.sources).to(self._processes.device)
        factors = factors_of(self._model)
        scores = self._matching.equation(all_queries, all_passages, sources, factors)
        targets = self._targets(batch, q_layout, d_layout, sources)
        parts = loss_parts(scores, all_queries, all_passages, targets, self._options)
        loss = torch.stack(list(parts.values())).sum()
        torch.autograd.backward(loss)
        queries.backward()
        passages.backward()
        learned = getattr(self._model, "log_factors", None)
        if learned is not None and learned.grad is not None:
            # Every process has computed all of this gradient, but only its share of the others.
            learned.grad /= self._processes.count
        self._processes.sum_gradients(p for p in self._model.parameters() if p.requires_grad)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _encode(self, texts: Sequence[TextTokens], layout: Layout) -> tuple[CachedTexts, TextVectors]:
        """Encode this process's share of the texts; gather the vectors of all."""
        cached, vectors, sentences = encode_share(texts, layout, self._model, self._options, self._processes)
        return cached, text_vectors(layout, vectors, sentences)

    def _targets(self, batch: Batch, queries: Layout, passages: Layout, sources: Tensor) -> Targets:
        device = self._processes.device
        excluded = torch.from_numpy(batch.excluded).to(device)
        teacher: Tensor | None = None
        kept_queries = kept_passages = query_tokens = passage_tokens = None
        if self._start is not None:
            query_tokens, pooled_queries, kept_queries = self._remember(batch.queries, queries)
            passage_tokens, pooled_passages, kept_passages = self._remember(batch.passages, passages)
            if self._bm25 is not None:
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
        """The output of the starting model for all texts: token, pooled and sentence vectors."""
        assert self._start is not None
        start = self._start

        def both(ids: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
            tokens, pooled, sentence = start(ids, mask)
            return tokens, torch.cat([pooled.float(), sentence.float()], dim=-1)

        # Every process needs all of them; the frozen model is cheap enough to run on all texts everywhere.
        cached = CachedTexts(
            texts,
            layout,
            in_bfloat16(both, self._options, self._processes.device),
            self._options.micro_batch_tokens,
            self._processes.device,
        )
        assert cached.sentences is not None
        width = cached.sentences.shape[1] - self._options.n_c
        joined = cached.sentences.detach()
        tokens = cached.vectors.detach() if cached.vectors is not None else None
        return tokens, joined[:, :width], joined[:, width:]
