"""TokenStore: the tokens of many texts in memory-mapped files, so that they do not take up memory.

Each token is stored with the number of its list. Slicing a text slices both, so a part that begins in the
middle of a word does not have that word's list.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer

NO_LIST = -1
_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class TextTokens:
    """A text, or a part of one, as numbers."""

    ids: NDArray[np.int32]  # [tokens]
    lists: NDArray[np.int32]  # [tokens] number of the list; -1 for no list, and for later pieces of a word

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> TextTokens:
        return TextTokens(self.ids[part], self.lists[part])

    @classmethod
    def without_lists(cls, ids: Iterable[int]) -> TextTokens:
        """Tokens that match nothing, such as the special ones."""
        given = np.array(list(ids), dtype=np.int32)
        return cls(given, np.full(len(given), NO_LIST, dtype=np.int32))

    @classmethod
    def join(cls, *parts: TextTokens) -> TextTokens:
        """Concatenate parts."""
        return cls(
            np.concatenate([part.ids for part in parts]), np.concatenate([part.lists for part in parts])
        )


class ListNumbers:
    """Numbers the lists in the order in which texts first mention them."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._number)

    @property
    def keys(self) -> list[str]:
        """The keys by number."""
        return list(self._number)

    def of(self, key: str | None) -> int:
        """The number of a key, which is assigned if the key is new; -1 for no list."""
        return NO_LIST if key is None else self._number.setdefault(key, len(self._number))

    def save(self, path: Path) -> None:
        """Write the keys in order of their numbers."""
        path.write_text(json.dumps(self.keys) + "\n", encoding="utf-8")


def number_tokens(
    texts: Iterable[str], tokenizer: Tokenizer, keys: ListKeys, numbers: ListNumbers, length: int
) -> Iterator[TextTokens]:
    """The tokens of texts without special tokens; with them, a text has at most `length`."""
    stream = iter(texts)
    while block := list(islice(stream, _AT_ONCE)):
        for text, tokens in zip(block, tokenizer.cut(block, length), strict=True):
            keyed = keys.of(text, tokens)
            ids = tokens.input_ids[tokens.first : tokens.first + len(tokens.spans)]
            lists = np.full(len(ids), NO_LIST, dtype=np.int32)
            lists[keyed.places] = [numbers.of(key) for key in keyed.keys]
            yield TextTokens(ids, lists)


class TokenStore:
    """Texts in one array: text i is at `offsets[i]:offsets[i + 1]` of the tokens and of their lists."""

    def __init__(self, tokens: TextTokens, offsets: NDArray[np.int64]) -> None:
        self._tokens = tokens
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, text: int) -> TextTokens:
        found = self._tokens[self._offsets[text] : self._offsets[text + 1]]
        return TextTokens(np.asarray(found.ids), np.asarray(found.lists))

    def blocks(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """All mentions in blocks of texts: (text of each mention, its list)."""
        for start in range(0, len(self), _AT_ONCE):
            end = min(start + _AT_ONCE, len(self))
            rows = np.repeat(np.arange(start, end), np.diff(self._offsets[start : end + 1]))
            lists = np.asarray(self._tokens.lists[self._offsets[start] : self._offsets[end]])
            listed = lists != NO_LIST
            yield rows[listed], lists[listed]

    @classmethod
    def write(cls, path: Path, texts: Iterable[TextTokens]) -> None:
        """Write texts to `path` and to files next to it."""
        offsets = array("q", [0])
        with path.open("wb") as ids, path.with_suffix(".lists").open("wb") as lists:
            for text in texts:
                ids.write(text.ids.astype(np.int32).tobytes())
                lists.write(text.lists.astype(np.int32).tobytes())
                offsets.append(offsets[-1] + len(text))
        np.save(path.with_suffix(".offsets.npy"), np.frombuffer(offsets, dtype=np.int64))

    @classmethod
    def open(cls, path: Path) -> TokenStore:
        """Memory-map the files that `write` wrote."""
        offsets = np.load(path.with_suffix(".offsets.npy"), allow_pickle=False)
        if not offsets[-1]:
            return cls(TextTokens.without_lists([]), offsets)
        ids, lists = (np.memmap(p, dtype=np.int32, mode="r") for p in (path, path.with_suffix(".lists")))
        return cls(TextTokens(ids, lists), offsets)
