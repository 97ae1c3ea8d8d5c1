"""How queries and passages are matched in training: which tokens are compared, and the score.

COIL compares tokens of the same list; ColBERT compares all tokens with all tokens.
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
        """`sources` [Q]: the pairs file of each query; `factors`: α, β and γ if they are learned."""


@dataclass(frozen=True, eq=False)
class Matching:
    """The equation, and which tokens of a text have vectors."""

    equation: Equation
    read_query: Read
    read_passage: Read


def matching_of(model: EncodingModel, statistics: PassageStatistics, tokenizer: Tokenizer) -> Matching:
    """How a model matches queries and passages; the statistics are on its device."""
    if isinstance(model, CoilModel):
        return Matching(BatchEquation(model.config.profile, statistics), _as_it_is, _as_it_is)
    fill = model.shape.fill
    return Matching(
        MaxSim(),
        lambda text: _all_tokens(fill_up(text.ids, fill, tokenizer)),
        lambda text: _all_tokens(text.ids),
    )


def factors_of(model: EncodingModel) -> Tensor | None:
    """The current α, β and γ; None if they are constants."""
    return model.factors() if isinstance(model, CoilModel) else None


def _as_it_is(text: TextTokens) -> TextTokens:
    return text


def _all_tokens(ids: NDArray[np.int32]) -> TextTokens:
    """One list for all tokens, including special ones, so that each is compared with every other."""
    return TextTokens(ids, np.zeros(len(ids), dtype=np.int32))
