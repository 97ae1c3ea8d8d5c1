"""MaxSim in plain loops: the oracle of ColBERT's score."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def max_sim(query: NDArray[np.float32], passage: NDArray[np.float32]) -> float:
    """Σ over query tokens of the largest product with any passage token; 0 if the passage has none."""
    total = 0.0
    for a in query.tolist():
        best: float | None = None
        for b in passage.tolist():
            product = 0.0
            for x, y in zip(a, b, strict=True):
                product += x * y
            if best is None or product > best:
                best = product
        total += best or 0.0
    return total
