"""Sentence vectors in two parts: the head (the first 64 dimensions) and the tail (the rest).

The dimensions of a model are ordered by principal directions, so the head carries most of the information. A
search reads all heads; the lengths of the tails then show which tails cannot matter. Each part has its own
int8 scale, and a product is the sum of both parts on the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import StoredVectors

HEAD = 64  # dimensions


def head_width(n_c: int) -> int:
    """The number of dimensions in the head of a sentence vector."""
    return min(n_c, HEAD)


@dataclass(frozen=True, eq=False)
class Sentences:
    """The sentence vectors of rows. Rows can be selected with a slice, a mask or an array of rows."""

    head: StoredVectors  # [rows, up to 64]
    tail: StoredVectors  # [rows, the rest]

    def __len__(self) -> int:
        return len(self.head)

    def __getitem__(self, rows: slice | NDArray[Any]) -> Sentences:
        return Sentences(self.head[rows], self.tail[rows])

    @property
    def dim(self) -> int:
        """The number of dimensions of a sentence vector."""
        return self.head.dim + self.tail.dim

    @property
    def parts(self) -> tuple[StoredVectors, StoredVectors]:
        """Head and tail."""
        return self.head, self.tail

    def decode(self) -> NDArray[np.float32]:
        """The vectors that the stored bytes represent, [rows, n_c]."""
        return np.concatenate([self.head.decode(), self.tail.decode()], axis=1)
