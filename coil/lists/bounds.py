"""Bounds: let a search skip lists, blocks of lists and sentence vectors that cannot contribute a hit.

|q · v| is at most ‖q‖ ‖v‖, so a list adds at most its largest factor of term frequency and length times (base
+ ‖q‖ · the length of its longest vector). Norms and factors are rounded up. In a long list, every block of 64
postings has such bounds as well. The tail of a sentence vector adds at most the product of the lengths of
both tails.

The factors are computed with the segment's own mean length m. For another mean M, the factor of a row is at
most max(1, M / m) times as large (and at most 1), since BM25's K = k1·(1 − b + b·len/mean) is at least
min(1, m / M) times as large.

Boxes (the minimum and maximum of each dimension in a block) were tried as well: for the vectors of the first
bundled model, they are looser than norms, both per list and per block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.groups import GroupedVectors
from coil.lists.precision import StoredVectors
from coil.lists.sentences import Sentences

BLOCK = 64  # postings of a list that share one bound
STEPS = 255  # quantization levels of factors and of the lengths of tails
_AT_ONCE = 1 << 14  # vectors decoded at a time


@dataclass(frozen=True, eq=False)
class Bounds:
    """Norms and factors of a segment. Only lists of more than BLOCK postings are long and have blocks."""

    list_norms: NDArray[np.float32]  # [lists] of the longest vector
    list_factors: NDArray[np.uint8]  # [lists] of the largest factor, in steps of 1/255
    long_lists: NDArray[np.uint32]  # [long lists] their numbers, ascending
    long_offsets: NDArray[np.uint32]  # [long lists + 1] where their blocks begin
    block_mentions: NDArray[np.uint32]  # [blocks] first mention
    block_norms: NDArray[np.float32]  # [blocks]
    block_factors: NDArray[np.uint8]  # [blocks]
    tail_norms: NDArray[np.uint8]  # [rows] in steps of `norm_step`
    norm_step: NDArray[np.float32]  # [1]


def find_bounds(
    list_offsets: NDArray[np.uint32],
    posting_offsets: NDArray[np.uint32],
    posting_mentions: NDArray[np.int64],
    factors: NDArray[np.float64],
    vectors: GroupedVectors,
    sentences: Sentences,
) -> Bounds:
    """Compute the bounds of vectors as stored; `posting_mentions` is the first mention of each posting."""
    lists = len(list_offsets) - 1
    norms = np.concatenate(
        [
            np.zeros(0, np.float32),
            *(norms_of(vectors[begin : begin + _AT_ONCE]) for begin in range(0, len(vectors), _AT_ONCE)),
        ]
    )
    in_steps = np.minimum(np.ceil(factors * (STEPS * (1 + 1e-6))), STEPS).astype(np.uint8)  # [postings]
    offsets = posting_offsets.astype(np.int64)
    counts = offsets[1:] - offsets[:-1]
    long = np.flatnonzero(counts > BLOCK)
    blocks = -(-counts[long] // BLOCK)
    long_offsets = np.concatenate([[0], np.cumsum(blocks)])
    within = np.arange(long_offsets[-1]) - np.repeat(long_offsets[:-1], blocks)
    first_postings = np.repeat(posting_offsets[long].astype(np.int64), blocks) + within * BLOCK
    # A block ends where the next one begins; the last block of a list ends with the list.
    last_postings = np.minimum(
        first_postings + BLOCK, np.repeat(posting_offsets[long + 1].astype(np.int64), blocks)
    )
    block_mentions = posting_mentions[first_postings]
    ends = np.append(posting_mentions, len(norms))[last_postings]
    return Bounds(
        _highest(norms, list_offsets[:-1].astype(np.int64), lists, np.float32),
        _highest(in_steps, posting_offsets[:-1].astype(np.int64), lists, np.uint8),
        long.astype(np.uint32),
        long_offsets.astype(np.uint32),
        block_mentions.astype(np.uint32),
        _highest_between(norms, block_mentions, ends),
        _highest_between(in_steps, first_postings, last_postings),
        *_tail_norms(sentences.tail),
    )


def norms_of(stored: StoredVectors) -> NDArray[np.float32]:
    """The length of each vector, rounded up."""
    if not stored.dim:
        return np.zeros(len(stored), np.float32)
    decoded = stored.decode().astype(np.float64)
    exact = np.sqrt(np.einsum("rd,rd->r", decoded, decoded)) * (1 + 1e-12)
    norms: NDArray[np.float32] = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    return norms


def saturate(
    counts: NDArray[np.int64], lengths: NDArray[np.integer], mean: float, k1: float, b: float
) -> NDArray[np.float64]:
    """tf / (tf + k1·(1 − b + b·len/mean)), BM25's factor of term frequency and length."""
    found: NDArray[np.float64] = counts / (counts + k1 * (1 - b + b * lengths / max(mean, 1e-9)))
    return found


def _highest(values: NDArray[np.generic], begins: NDArray[np.int64], count: int, dtype: type) -> NDArray:  # type: ignore[type-arg]
    return np.maximum.reduceat(values, begins).astype(dtype) if count else np.zeros(0, dtype)


def _highest_between(values: NDArray, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray:  # type: ignore[type-arg]
    """The largest of values[begin:end] for each pair; no pair is empty."""
    if not len(begins):
        return np.zeros(0, values.dtype)
    padded = np.append(values, values[-1:])  # reduceat does not accept an end after the last value
    pairs = np.stack([begins, ends], axis=1).reshape(-1)
    return np.maximum.reduceat(padded, pairs)[::2]


def _tail_norms(tail: StoredVectors) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    norms = norms_of(tail).astype(np.float64)
    if not len(norms) or not norms.max():
        return np.zeros(len(norms), np.uint8), np.zeros(1, np.float32)
    step = np.nextafter(np.float32(norms.max() / STEPS), np.float32(np.inf))
    steps = np.minimum(np.ceil(norms / np.float64(step)), STEPS)
    return steps.astype(np.uint8), np.array([step], np.float32)
