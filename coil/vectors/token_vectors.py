"""TokenVectors: the language model's output for one text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class TokenVectors:
    """The vectors of one text: of its words or of its word pieces, depending on the list key.

    They never include special tokens ([CLS], [SEP], padding). A token whose key is None has no list.
    """

    keys: tuple[str | None, ...]  # [n]
    positions: NDArray[np.int32]  # [n] position of the vector in the language model's input
    spans: NDArray[np.int32]  # [n, 2] characters of the text
    vectors: NDArray[np.float32]  # [n, n_t]
    sentence: NDArray[np.float32] | None  # [n_c], None for COIL-tok
    dropped: int = 0  # tokens that were cut off because the text is too long

    def __len__(self) -> int:
        return len(self.keys)
