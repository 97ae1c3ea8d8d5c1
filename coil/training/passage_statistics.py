"""Statistics of the training passages, for the weights of the equation.

Each pairs file is a separate collection: a word may be rare in one and common in another.
"""

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
    """The rarity of each list and the mean length of passages, for each source."""

    rarity: Tensor  # [sources, lists] ln(1 + (N − df + ½)/(df + ½))
    mean_length: Tensor  # [sources] mean number of listed mentions per passage

    @classmethod
    def of(cls, passages: TokenStore, n_lists: int, members: NDArray[np.bool_]) -> PassageStatistics:
        """Count the passages in each list; `members` [sources, passages] says which passages a source has."""
        frequency = np.zeros((len(members), n_lists), dtype=np.int64)
        total = np.zeros(len(members), dtype=np.int64)
        for rows, lists in passages.blocks():
            once_rows, once_lists = np.unique(np.stack([rows, lists.astype(np.int64)]), axis=1)
            for source, has in enumerate(members):
                total[source] += np.count_nonzero(has[rows])
                frequency[source] += np.bincount(once_lists[has[once_rows]], minlength=n_lists)
        count = members.sum(axis=1)
        rarity = np.log1p((count[:, None] - frequency + 0.5) / (frequency + 0.5))
        mean_length = np.where(total > 0, total / np.maximum(count, 1), 1.0)
        return cls(torch.from_numpy(rarity).float(), torch.from_numpy(mean_length).float())

    @property
    def n_lists(self) -> int:
        """The number of lists."""
        return self.rarity.shape[1]

    def to(self, device: torch.device) -> PassageStatistics:
        """The same on a device."""
        return PassageStatistics(self.rarity.to(device), self.mean_length.to(device))

    def weights(
        self, lists: Tensor, sources: Tensor, counts: Tensor, lengths: Tensor, profile: ScoringProfile
    ) -> Tensor:
        """The weights w_i of matches, given their lists and sources, the number of mentions in the passage,
        and the length of the passage."""
        penalty = profile.k1 * (1.0 - profile.b + profile.b * lengths / self.mean_length[sources])
        return self.rarity[sources, lists] * counts / (counts + penalty)
