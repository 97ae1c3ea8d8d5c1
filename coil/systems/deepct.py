"""Term weights that a language model gives to tokens in context (the idea of DeepCT, and of uniCOIL).

It is COIL-tok with token vectors of one number that is never negative, and without document expansion.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from coil.systems.coil import CoilTok
from coil.systems.system import option
from coil.training.options import TrainingOptions


@dataclass(frozen=True)
class TermWeights(CoilTok):
    """An index of word pieces with trained weights instead of counts."""

    name: str = "DeepCT-like"
    n_t: int = option(1, "When trained: dimensions of the token vectors; 1 is a term weight.")

    def training_inputs(self) -> dict[str, Any]:
        """The shape, and that nothing is negative."""
        return {**super().training_inputs(), "non_negative": True}

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe with the shape of this model; weights start at about 1."""
        return replace(super().recipe(replace(shared, token_init="random")), non_negative=True)
