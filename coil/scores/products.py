"""Products of a query vector with stored vectors, in the arithmetic that all scorers share.

int8: the query has 15 bits per dimension; the sum of products is an exact integer and is multiplied by both
scales. fp16 and fp32: sums of fp32 products in a fixed order. So NumPy, every instruction set and every
number of threads produce the same bits.

The contribution of a product to a score is a multiple of 2^-32 (the grid): such sums are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import SCALES, StoredVectors, quantise_queries

GRID = 2.0**32
_PARTS = 16


@dataclass(frozen=True, eq=False)
class QueryVector:
    """A vector of a query: exact, and in 15 bits."""

    exact: NDArray[np.float32]  # [dim]
    codes: NDArray[np.int16]  # [dim]
    scale: np.float32

    @classmethod
    def of(cls, vector: NDArray[np.float32]) -> QueryVector:
        """The forms of one vector."""
        codes, scales = quantise_queries(vector[None])
        return cls(np.ascontiguousarray(vector, dtype=np.float32), codes[0], scales[0])

    @property
    def coded(self) -> NDArray[np.float32]:
        """The vector used for products with int8 lists."""
        return self.codes.astype(np.float32) * self.scale


def to_grid(products: NDArray[np.float32]) -> NDArray[np.int64]:
    """Products as multiples of 2^-32."""
    grid: NDArray[np.int64] = np.rint(products.astype(np.float64) * GRID).astype(np.int64)
    return grid


def mention_products(stored: StoredVectors, query: QueryVector) -> NDArray[np.float32]:
    """q · v of each vector of a list, summed dimension by dimension. [mentions]"""
    if stored.scales is not None:
        return _scaled_products(stored, query)
    sums = np.zeros(len(stored), np.float32)
    values = stored.values.astype(np.float32)
    for d in range(stored.dim):
        sums += values[:, d] * query.exact[d]
    return sums


def row_products(stored: StoredVectors, query: QueryVector) -> NDArray[np.float32]:
    """q · v of each sentence vector: sixteen partial sums, then added pairwise. [rows]"""
    if stored.scales is not None:
        return _scaled_products(stored, query)
    blocks = -(-stored.dim // _PARTS)
    values = np.zeros((len(stored), blocks * _PARTS), np.float32)
    values[:, : stored.dim] = stored.values
    vector = np.zeros(blocks * _PARTS, np.float32)
    vector[: stored.dim] = query.exact
    sums = np.zeros((len(stored), _PARTS), np.float32)
    for begin in range(0, blocks * _PARTS, _PARTS):
        sums += values[:, begin : begin + _PARTS] * vector[begin : begin + _PARTS]
    half = _PARTS // 2
    while half:
        sums[:, :half] += sums[:, half : 2 * half]
        half //= 2
    return sums[:, 0].copy()


def _scaled_products(stored: StoredVectors, query: QueryVector) -> NDArray[np.float32]:
    """int8: high and low seven bits of the query separately, so that the fp32 sums of both are exact."""
    assert stored.scales is not None
    halves = np.stack([query.codes >> 7, query.codes & 127], axis=1).astype(np.float32)
    sums = stored.values.astype(np.float32) @ halves  # [vectors, 2], exact up to 1,024 dimensions
    whole = sums[:, 0].astype(np.int64) * 128 + sums[:, 1].astype(np.int64)
    found: NDArray[np.float32] = whole.astype(np.int32).astype(np.float32) * (
        SCALES[stored.scales] * query.scale
    )
    return found
