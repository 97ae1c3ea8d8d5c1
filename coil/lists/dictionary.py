"""Dictionary: the keys of a segment's lists in ascending order of their UTF-8 bytes, front-coded.

A block has sixteen keys. A key is stored as two bytes (the number of bytes that it shares with the previous
key, and the number of its remaining bytes) and the remaining bytes; the first key of a block shares none. A
lookup is a binary search over the first keys of the blocks and a scan of one block; the rest is not read.
docs/format.md specifies the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import DamagedSegment
from coil.tokens.list_keys import LONGEST_KEY

BLOCK_KEYS = 16


@dataclass(frozen=True, eq=False)
class Dictionary:
    """The keys of a segment's lists; the number of a list is the position of its key."""

    keys: NDArray[np.uint8]  # bytes of all blocks
    key_blocks: NDArray[np.uint32]  # [blocks + 1] where each block begins, and the end
    count: int

    @classmethod
    def of(cls, keys: Sequence[str]) -> Dictionary:
        """The dictionary of these keys, which must be in ascending order of their UTF-8 bytes."""
        coded = bytearray()
        begins = []
        before = b""
        for number, key in enumerate(keys):
            encoded = key.encode()
            assert len(encoded) <= LONGEST_KEY
            shared = 0
            if number % BLOCK_KEYS == 0:
                begins.append(len(coded))
            else:
                longest = min(len(before), len(encoded))
                while shared < longest and before[shared] == encoded[shared]:
                    shared += 1
            coded += bytes((shared, len(encoded) - shared)) + encoded[shared:]
            before = encoded
        blocks = np.array([*begins, len(coded)], dtype=np.uint32)
        return cls(np.frombuffer(bytes(coded), np.uint8), blocks, len(keys))

    def __len__(self) -> int:
        return self.count

    def find(self, key: str) -> int:
        """The position of a key, -1 if it is not there."""
        wanted = key.encode()
        low, high = 0, len(self.key_blocks) - 1  # the block that may contain the key is in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            if next(self._block(middle)) <= wanted:
                low = middle
            else:
                high = middle
        if low == high:
            return -1
        for number, found in enumerate(self._block(low)):
            if found == wanted:
                return low * BLOCK_KEYS + number
        return -1

    def key(self, place: int) -> str:
        """The key at a position."""
        for number, found in enumerate(self._block(place // BLOCK_KEYS)):
            if number == place % BLOCK_KEYS:
                return _text(found)
        raise _damaged()

    def __iter__(self) -> Iterator[str]:
        for block in range(len(self.key_blocks) - 1):
            for found in self._block(block):
                yield _text(found)

    def _block(self, block: int) -> Iterator[bytes]:
        """The keys of a block; even if the bytes are damaged, nothing outside the block is read."""
        begin, end = int(self.key_blocks[block]), int(self.key_blocks[block + 1])
        if not 0 <= begin <= end <= len(self.keys):
            raise _damaged()
        coded = self.keys[begin:end].tobytes()
        before, at = b"", 0
        for _ in range(min(BLOCK_KEYS, self.count - block * BLOCK_KEYS)):
            if at + 2 > len(coded):
                raise _damaged()
            shared, own = coded[at], coded[at + 1]
            if shared > len(before) or at + 2 + own > len(coded) or shared + own > LONGEST_KEY:
                raise _damaged()
            before = before[:shared] + coded[at + 2 : at + 2 + own]
            at += 2 + own
            yield before
        if at != len(coded):
            raise _damaged()


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise _damaged() from error


def _damaged() -> DamagedSegment:
    return DamagedSegment("the dictionary of a segment is damaged", "run `coil verify`")
