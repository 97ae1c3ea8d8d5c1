"""TokenStore: the tokens of many texts in one memory-mapped file, so that they are not held in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.tokens.tokenizer import Tokenizer

_AT_ONCE = 2048


class TokenStore:
    """Token ids of texts back to back; text i is `tokens[offsets[i]:offsets[i + 1]]`, no special tokens."""

    def __init__(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, text: int) -> NDArray[np.int32]:
        return np.asarray(self._tokens[self._offsets[text] : self._offsets[text + 1]])

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many tokens each text has."""
        return np.diff(self._offsets)

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """All tokens in blocks of texts: (text of each token, token)."""
        for start in range(0, len(self), _AT_ONCE):
            end = min(start + _AT_ONCE, len(self))
            lengths = self.lengths[start:end]
            rows = np.repeat(np.arange(start, end), lengths)
            yield rows, np.asarray(self._tokens[self._offsets[start] : self._offsets[end]])

    @classmethod
    def write(cls, path: Path, texts: Iterable[str], tokenizer: Tokenizer, length: int) -> None:
        """Tokenize texts into a file, keeping at most `length` tokens of each (special tokens counted)."""
        offsets = array("q", [0])
        stream = iter(texts)
        with path.open("wb") as file:
            while block := list(islice(stream, _AT_ONCE)):
                for tokens in tokenizer.cut(block, length):
                    real = tokens.input_ids[len(tokenizer.prefix) : len(tokens) - len(tokenizer.suffix)]
                    file.write(real.astype(np.int32).tobytes())
                    offsets.append(offsets[-1] + len(real))
        np.save(path.with_suffix(".offsets.npy"), np.frombuffer(offsets, dtype=np.int64))

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Map what `write` wrote."""
        offsets = np.load(path.with_suffix(".offsets.npy"), allow_pickle=False)
        tokens = np.memmap(path, dtype=np.int32, mode="r") if offsets[-1] else np.zeros(0, np.int32)
        return cls(tokens, offsets)
