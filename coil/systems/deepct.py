"""Term weights that a language model assigns to tokens in context (the idea of DeepCT and uniCOIL).

This is COIL-tok with one-dimensional, non-negative token vectors, without document expansion.
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
        """The shape, and that weights are non-negative."""
        return {**super().training_inputs(), "non_negative": True}

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe with the shape of this model; weights start at about 1."""
        return replace(
            super().recipe(replace(shared, token_init="random")), non_negative=True, token_norm="none"
        )
