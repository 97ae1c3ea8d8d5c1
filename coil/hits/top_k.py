"""top_k: the best ordinals, with ties broken the same way on every backend."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def top_k(scores: NDArray[np.floating[Any]], k: int, without_zero: bool) -> NDArray[np.int64]:
    """The ordinals of the k best scores: score descending, then ordinal ascending.

    `without_zero` leaves out documents that score exactly 0: without a sentence part they have nothing in
    common with the query. A k below 1 gives nothing, a k above the collection gives all of it.
    """
    ordinals = np.flatnonzero(scores) if without_zero else np.arange(len(scores))
    k = min(max(k, 0), len(ordinals))
    if not k:
        return ordinals[:0]
    values = scores[ordinals]
    if k < len(ordinals):
        # A partition alone picks any of the documents that tie at the k-th place. So it only tells the
        # k-th score: what lies above is in, and of those that tie with it, the first in order fill up.
        last = np.partition(values, len(values) - k)[len(values) - k]
        above = ordinals[values > last]
        ordinals = np.concatenate([above, ordinals[values == last][: k - len(above)]])
    # Equal scores still stand by ordinal here, and a stable sort leaves them so.
    return ordinals[np.argsort(-scores[ordinals], kind="stable")]
