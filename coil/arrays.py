"""Set operations on arrays of numbers, by sorting.

NumPy's own function for distinct values is C++ code that releases the interpreter lock: if a daemon thread is
running it when the process exits, the process aborts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def distinct(numbers: NDArray[Any]) -> NDArray[Any]:
    """The distinct numbers, ascending."""
    ordered = np.sort(numbers, kind="stable")
    return ordered[first_places(ordered)]


def first_places(ordered: NDArray[Any]) -> NDArray[np.intp]:
    """The positions at which a number differs from the one before it."""
    is_new = np.ones(len(ordered), dtype=bool)
    np.not_equal(ordered[1:], ordered[:-1], out=is_new[1:])
    return np.flatnonzero(is_new)


def is_among(numbers: NDArray[Any], others: Any) -> NDArray[np.bool_]:
    """For each number, whether it is one of the others."""
    ordered = np.sort(np.asarray(others), kind="stable")
    if not len(ordered):
        return np.zeros(len(numbers), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, numbers), len(ordered) - 1)
    among: NDArray[np.bool_] = ordered[places] == numbers
    return among
