"""Training of a cross-encoder: each query is paired with its positive and its hard negatives.

The loss is the same contrastive loss, but only over the query's own passages. There are no in-batch
negatives, because each would cost a pass of the language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coil.training.batches import Batch
from coil.training.grad_cache import CachedTexts, lay_out
from coil.training.learner import Setting
from coil.training.losses import Targets, contrast, divergence
from coil.training.step import encode_share
from coil.training.token_store import TextTokens
from coil.training.validation import CandidateValidation
from coil.vectors.cross_encoder import CrossEncoder, join_pair


class CrossEncoding:
    """The `Learner` of a cross-encoder."""

    def __init__(self, setting: Setting, model: CrossEncoder) -> None:
        self.model, self._setting = model, setting
        setting.processes.start_equal(model)
        self._validation = CandidateValidation(setting.data, setting.options, setting.tokenizer)

    def _pair(self, query: TextTokens, passage: TextTokens) -> TextTokens:
        """Query and passage, each with its special tokens → one input of the language model."""
        tokenizer = self._setting.tokenizer
        bare = passage.ids[len(tokenizer.prefix) : len(passage) - len(tokenizer.suffix)]
        joined = join_pair(query.ids, bare, tokenizer.suffix, self.model.shape.length)
        return TextTokens.without_lists(joined)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compute the loss of a batch and accumulate its gradient in the weights."""
        options, processes = self._setting.options, self._setting.processes
        size = len(batch.passages) // len(batch.queries)  # of a query's own group
        pairs = [self._pair(batch.queries[i // size], passage) for i, passage in enumerate(batch.passages)]
        cached, _, scores = encode_share(pairs, lay_out(pairs), self.model, options, processes)
        assert scores is not None
        targets = self._targets(batch, size)
        grouped = scores.view(-1, size)
        parts = {}
        if options.contrast:
            parts["contrast"] = options.contrast * contrast(grouped, targets)
        if targets.teacher is not None:
            parts["teacher"] = options.teacher_weight * divergence(grouped, targets, options.teacher_scale)
        loss = torch.stack(list(parts.values())).sum()
        torch.autograd.backward(loss)
        cached.backward()
        processes.sum_gradients(p for p in self.model.parameters() if p.requires_grad)
        return {"loss": float(loss.detach()), **{name: float(part.detach()) for name, part in parts.items()}}

    def _targets(self, batch: Batch, size: int) -> Targets:
        """Targets for groups instead of the batch; the positive is the first passage of each group."""
        device = self._setting.processes.device
        own = np.arange(len(batch.passages)).reshape(-1, size)  # [queries, group]

        def of_groups(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(np.take_along_axis(values, own, axis=1)).to(device)

        return Targets(
            torch.from_numpy(batch.targets - own[:, 0]).to(device),
            of_groups(batch.excluded),
            of_groups(batch.taught) if batch.taught is not None else None,
        )

    def reciprocal_ranks(self) -> NDArray[np.float64]:
        """The reciprocal rank of each held-out query's positive among its candidates."""
        return self._validation.reciprocal_ranks(self.model, self._scores)

    def _scores(self, queries: Sequence[TextTokens], passages: Sequence[TextTokens]) -> Tensor:
        pairs = [self._pair(query, passage) for query, passage in zip(queries, passages, strict=True)]
        options, device = self._setting.options, self._setting.processes.device
        cached = CachedTexts(pairs, lay_out(pairs), self.model, options.micro_batch_tokens, device)
        assert cached.sentences is not None
        return cached.sentences[:, 0]

    def watched(self) -> dict[str, float]:
        """No numbers in addition to the loss."""
        return {}

    def save(self, folder: Path) -> None:
        """Write the model."""
        self.model.save_pretrained(folder, torch.float16 if self._setting.options.half else torch.float32)
