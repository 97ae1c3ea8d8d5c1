"""Statistics of the training passages: what the equation's weights take from the collection."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coil.tokens.profile import ScoringProfile
from coil.training.token_store import TokenStore


@dataclass(frozen=True, eq=False)
class PassageStatistics:
    """How much a match of each list says, and how long a passage is, over all passages of the data."""

    rarity: NDArray[np.float32]  # [lists] ln(1 + (N − df + ½)/(df + ½))
    mean_length: float  # listed mentions of a passage on average

    @classmethod
    def of(cls, passages: TokenStore, n_lists: int) -> PassageStatistics:
        """Count the passages of each list."""
        frequency = np.zeros(n_lists, dtype=np.int64)
        total = 0
        for rows, lists in passages.blocks():
            total += len(lists)
            once = np.unique(np.stack([rows, lists.astype(np.int64)]), axis=1)[1]
            frequency += np.bincount(once, minlength=n_lists)
        rarity = np.log1p((len(passages) - frequency + 0.5) / (frequency + 0.5))
        return cls(rarity.astype(np.float32), total / len(passages) if total else 1.0)

    def weights(self, lists: Tensor, counts: Tensor, lengths: Tensor, profile: ScoringProfile) -> Tensor:
        """w_i of matches: of these lists, mentioned so often, in passages of these lengths."""
        rarity = torch.from_numpy(self.rarity).to(lists.device)[lists]
        penalty = profile.k1 * (1.0 - profile.b + profile.b * lengths / self.mean_length)
        return rarity * counts / (counts + penalty)
