"""Training of models that encode queries and passages separately: COIL in all its forms, and ColBERT.

The positive competes with its hard negatives and all other passages of the batch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coil.training.batch_scores import BatchEquation
from coil.training.batches import Batch
from coil.training.learner import Setting
from coil.training.matching import EncodingModel, matching_of
from coil.training.principal_directions import start_at_principal_directions
from coil.training.starting_point import is_second_round
from coil.training.step import Step
from coil.training.teachers import StartingModel
from coil.training.validation import PoolValidation
from coil.vectors.torch_model import CoilModel


class BiEncoding:
    """The `Learner` of such models."""

    def __init__(self, setting: Setting, model: EncodingModel) -> None:
        options, processes = setting.options, setting.processes
        self.model, self._setting = model, setting
        starts = {options.sentence_init if options.n_c else "", options.token_init if options.n_t else ""}
        if "principal" in starts and not is_second_round(setting.base):
            setting.tell("computing the principal directions of texts and words")
            start_at_principal_directions(model, setting.data, options, setting.tokenizer, processes.device)
        processes.start_equal(model)
        statistics = setting.data.statistics.to(processes.device)
        start = bm25 = None
        if isinstance(model, CoilModel):
            if options.teacher == "hybrid":
                bm25 = BatchEquation(model.config.profile.answering("bm25"), statistics)
            if bm25 is not None or options.keep or options.keep_tokens:
                start = StartingModel(model)
        matching = matching_of(model, statistics, setting.tokenizer)
        self._step = Step(model, matching, options, processes, start, bm25)
        self._validation = PoolValidation(setting.data, options, setting.tokenizer, matching)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compute the loss of a batch and accumulate its gradient in the weights."""
        return self._step(batch)

    def reciprocal_ranks(self) -> NDArray[np.float64]:
        """The reciprocal rank of each held-out query in a pool of passages."""
        return self._validation.reciprocal_ranks(self.model, self._setting.processes.device)

    def watched(self) -> dict[str, float]:
        """The current α, β and γ, if they are learned."""
        factors = self.model.factors() if isinstance(self.model, CoilModel) else None
        return {} if factors is None else dict(zip(("alpha", "beta", "gamma"), factors.tolist(), strict=True))

    def save(self, folder: Path) -> None:
        """Write the model."""
        self.model.save_pretrained(folder, torch.float16 if self._setting.options.half else torch.float32)
