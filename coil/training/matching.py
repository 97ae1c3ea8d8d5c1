"""How the vectors of queries and passages meet in training: which tokens take part, and the score.

COIL: tokens of one list, by the equation. ColBERT: all tokens with all tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import BatchEquation, BatchScores, TextVectors
from coil.training.max_sim import MaxSim
from coil.training.passage_statistics import PassageStatistics
from coil.training.token_store import TextTokens
from coil.vectors.late_interaction import LateInteractionModel, fill_up
from coil.vectors.torch_model import CoilModel

EncodingModel = CoilModel | LateInteractionModel
Read = Callable[[TextTokens], TextTokens]


class Equation(Protocol):
    """The scores of all queries for all passages of a batch."""

    def __call__(
        self, queries: TextVectors, passages: TextVectors, sources: Tensor, factors: Tensor | None = None
    ) -> BatchScores:
        """`sources` [Q]: the pairs file of each query; `factors`: α, β and γ where they are learned."""


@dataclass(frozen=True, eq=False)
class Matching:
    """The equation, and the tokens of texts that have vectors in it."""

    equation: Equation
    read_query: Read
    read_passage: Read


def matching_of(model: EncodingModel, statistics: PassageStatistics, tokenizer: Tokenizer) -> Matching:
    """How a model matches; the statistics are on its device."""
    if isinstance(model, CoilModel):
        return Matching(BatchEquation(model.config.profile, statistics), _as_it_is, _as_it_is)
    fill = model.shape.fill
    return Matching(
        MaxSim(),
        lambda text: _all_tokens(fill_up(text.ids, fill, tokenizer)),
        lambda text: _all_tokens(text.ids),
    )


def factors_of(model: EncodingModel) -> Tensor | None:
    """α, β and γ as they are now; None where they are constants."""
    return model.factors() if isinstance(model, CoilModel) else None


def _as_it_is(text: TextTokens) -> TextTokens:
    return text


def _all_tokens(ids: NDArray[np.int32]) -> TextTokens:
    """One list for all tokens, the special ones too: each meets every other."""
    return TextTokens(ids, np.zeros(len(ids), dtype=np.int32))
