"""top_k: the best ordinals, with ties broken the same way on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_k(scores: NDArray[np.floating[Any]], k: int, without_zero: bool) -> NDArray[np.int64]:
    """The ordinals of the k best scores, by score, descending, then by ordinal, ascending.

    `without_zero` leaves out documents that score exactly 0: without a sentence part, they have nothing in
    common with the query. A k below 1 returns none, a k above the number of documents returns all.
    """
    ordinals = np.flatnonzero(scores) if without_zero else np.arange(len(scores))
    k = min(max(k, 0), len(ordinals))
    if not k:
        return ordinals[:0]
    values = scores[ordinals]
    if k < len(ordinals):
        # A partition picks arbitrary documents among those that tie at the k-th place. So it only gives the
        # k-th score: all documents above it are taken, then the first of those that tie with it.
        last = np.partition(values, len(values) - k)[len(values) - k]
        above = ordinals[values > last]
        ordinals = np.concatenate([above, ordinals[values == last][: k - len(above)]])
    # Ties are in order of their ordinals here, and a stable sort keeps them so.
    return ordinals[np.argsort(-scores[ordinals], kind="stable")]
