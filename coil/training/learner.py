"""The Learner protocol: what the training loop needs to know about a kind of model.

The loop (coil/training/train.py) contains everything that is common to all kinds: data, batches, learning
rates, clipping, checkpoints, validation and progress. A learner contains what differs: the model, and how the
loss of a batch is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import Batch
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.processes import Processes
from coil.vectors.backbone import BackboneModel


@dataclass(frozen=True, eq=False)
class Setting:
    """The arguments of every learner."""

    options: TrainingOptions
    processes: Processes
    tokenizer: Tokenizer
    data: PairData
    base: Path
    tell: Callable[[str], object] = lambda text: None  # called with progress messages


class Learner(Protocol):
    """The methods that the loop calls."""

    @property
    def model(self) -> BackboneModel:
        """The model, on its device."""

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compute the loss of a batch and accumulate its gradient in the weights; returns `loss` and its
        parts."""

    def reciprocal_ranks(self) -> NDArray[np.float64]:
        """For each held-out query, 1 / rank of its first positive, 0 beyond rank 10; empty if there are no
        held-out queries."""

    def watched(self) -> dict[str, float]:
        """Numbers to log in addition to the loss."""

    def save(self, folder: Path) -> None:
        """Write the current model, without its tokenizer."""
