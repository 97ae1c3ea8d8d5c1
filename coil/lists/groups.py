"""Vectors in groups of sixteen: the layout in which the kernels read token lists.

The vectors of all lists are stored back to back. Sixteen consecutive vectors form a group; the last may be
smaller. Within a group, the first four dimensions (int8) or the first one (fp16, fp32) of all its vectors
come first, then the next, and so on; the last step may have fewer dimensions. A 64-byte register then holds
the same dimensions of sixteen vectors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import StoredVectors

LANES = 16
_AT_ONCE = LANES << 12  # vectors


@dataclass(frozen=True, eq=False)
class GroupedVectors:
    """Stored vectors in groups; `[begin:end]` returns some of them as consecutive vectors."""

    values: NDArray[Any]  # [count * dim] int8, float16 or float32
    scales: NDArray[np.uint8] | None  # [count] scale bytes of int8, None otherwise
    dim: int
    count: int

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, part: slice) -> StoredVectors:
        begin, end, step = part.indices(self.count)
        assert step == 1
        if not self.dim:
            scales = None if self.scales is None else self.scales[begin:end]
            return StoredVectors(np.zeros((max(end - begin, 0), 0), self.values.dtype), scales)
        first, last = begin // LANES, -(-end // LANES)
        whole = min(last, self.count // LANES)
        size = LANES * self.dim
        parts = [_ungroup(self.values[first * size : whole * size], LANES, self.dim)] if whole > first else []
        if last > whole and end > begin:
            parts.append(_ungroup(self.values[whole * size :], self.count % LANES, self.dim))
        empty = np.zeros((0, self.dim), self.values.dtype)
        rows = np.concatenate([empty, *parts])[begin - first * LANES : end - first * LANES]
        return StoredVectors(rows, None if self.scales is None else self.scales[begin:end])


def group_vectors(stored: StoredVectors) -> GroupedVectors:
    """Arrange consecutive vectors in groups."""
    return gather_groups(stored, np.arange(len(stored)))


def gather_groups(stored: StoredVectors, order: NDArray[np.intp]) -> GroupedVectors:
    """Arrange vectors in this order in groups, some at a time, to avoid a second copy of all of them."""
    count, dim = len(order), stored.dim
    values = np.empty(count * dim, stored.values.dtype)
    whole = count // LANES * LANES
    for begin in range(0, whole, _AT_ONCE):
        end = min(begin + _AT_ONCE, whole)
        values[begin * dim : end * dim] = _group(stored.values[order[begin:end]], LANES)
    values[whole * dim :] = _group(stored.values[order[whole:]], max(count - whole, 1))
    return GroupedVectors(values, None if stored.scales is None else stored.scales[order], dim, count)


def _width(dtype: np.dtype[Any]) -> int:
    return 4 if dtype == np.int8 else 1


def _group(rows: NDArray[Any], lanes: int) -> NDArray[Any]:
    """[n * lanes, dim] → flat, each group of `lanes` rows by dimensions."""
    dim, width = rows.shape[1], _width(rows.dtype)
    main = dim // width * width
    groups = len(rows) // lanes
    first = rows[:, :main].reshape(groups, lanes, main // width, width).transpose(0, 2, 1, 3)
    rest = rows[:, main:].reshape(groups, lanes * (dim - main))
    return np.concatenate([first.reshape(groups, lanes * main), rest], axis=1).reshape(-1)


def _ungroup(flat: NDArray[Any], lanes: int, dim: int) -> NDArray[Any]:
    """The inverse of `_group`."""
    width = _width(flat.dtype)
    main = dim // width * width
    n = len(flat) // (lanes * dim) if dim else 0
    groups = flat.reshape(n, lanes * dim)
    first = groups[:, : lanes * main].reshape(n, main // width, lanes, width).transpose(0, 2, 1, 3)
    rest = groups[:, lanes * main :].reshape(n, lanes, dim - main)
    return np.concatenate([first.reshape(n, lanes, main), rest], axis=2).reshape(n * lanes, dim)
