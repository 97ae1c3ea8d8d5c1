"""The Learner: one idea of how a query and a passage are matched, as the loop trains it.

The loop (coil/training/train.py) has all that the ideas share: data, batches, learning rates, clipping,
checkpoints, validation and progress. A learner has what differs: the model, and what it makes of a batch.
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
    """What every learner receives."""

    options: TrainingOptions
    processes: Processes
    tokenizer: Tokenizer
    data: PairData
    base: Path
    tell: Callable[[str], object] = lambda text: None  # called with progress messages


class Learner(Protocol):
    """What the loop asks of an idea."""

    @property
    def model(self) -> BackboneModel:
        """The model, on its device."""

    def learn(self, batch: Batch) -> dict[str, float]:
        """Leave the gradient of the batch's loss in the weights; returns `loss` and its parts."""

    def reciprocal_ranks(self) -> NDArray[np.float64]:
        """Per held-out query, 1 / rank of its first positive, 0 beyond rank 10; empty without any."""

    def watched(self) -> dict[str, float]:
        """Numbers to log in addition to the loss."""

    def save(self, folder: Path) -> None:
        """Write the model as it is now, without its tokenizer."""
