"""Did training help? Compares the held-out queries before and after training, and suggests what to try."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import how_many
from coil.metrics.significance import randomisation_test
from coil.training.options import TrainingOptions

FEW_PAIRS = 1000
CHANCE = 0.05


@dataclass(frozen=True, eq=False)
class Outcome:
    """The reciprocal rank of each held-out query before the first step and with the saved model."""

    start: NDArray[np.float64]  # [queries] 1 / rank of the first positive, 0 beyond rank 10
    end: NDArray[np.float64]

    @property
    def improved(self) -> bool:
        """Whether MRR@10 is higher than at the start."""
        return float(self.end.mean()) > float(self.start.mean())

    @property
    def chance(self) -> float:
        """The p-value of the difference, by the randomisation test."""
        return randomisation_test(self.end - self.start)

    def __str__(self) -> str:
        better, worse = int((self.end > self.start).sum()), int((self.end < self.start).sum())
        return (
            f"MRR@10 of {how_many(len(self.start), 'held-out query')}: {self.start.mean():.4f} before "
            f"training, {self.end.mean():.4f} after ({better} better, {worse} worse, p = {self.chance:.2g})"
        )


def judge(outcome: Outcome | None, options: TrainingOptions, pairs: int, negatives: bool) -> list[str]:
    """The message at the end of a run: whether training helped and, if not, what to try."""
    if outcome is None:
        return [
            "no queries were held out, so it is unknown whether training helped; set --validation-queries to "
            "hold out up to a tenth of the queries"
        ]
    said = [str(outcome)]
    if not outcome.improved:
        said.append("training did NOT improve the held-out queries")
    if outcome.chance >= CHANCE:
        said.append(
            "such a small difference may be due to chance: evaluate more held-out queries with "
            "`coil search --run` and `coil evaluate`"
        )
    if not outcome.improved:
        said.append("keep the starting model, or try:")
        said += [f"  - {advice}" for advice in _advice(options, pairs, negatives)]
    return said


def _advice(options: TrainingOptions, pairs: int, negatives: bool) -> list[str]:
    """What to try, the most likely cause first."""
    found = []
    if not negatives:
        found.append("hard negatives: `coil mine --pairs ... --out FILE`, then --negatives FILE")
    found.append(f"a lower learning rate: --lr {options.lr / 3:.1g} (it was {options.lr:g})")
    if options.average < 0.5:
        found.append("--average 0.5, which keeps half of the starting weights")
    if pairs < FEW_PAIRS:
        found.append(f"more pairs (there were {pairs:,}), or more epochs with --epochs")
    else:
        found.append("fewer steps: the model may have forgotten more than it learned")
    found.append(
        "checking the pairs: every positive must answer its query, in the language of your documents"
    )
    return found
