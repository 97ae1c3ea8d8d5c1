"""Bounds: how long the vectors of a list, a block or a row are: a search leaves out what cannot win.

|q · v| is at most ‖q‖ ‖v‖. Lengths are rounded up. A sketch is a sentence vector in four bits a dimension:
its product with a query is cheap, and off by at most ‖q‖ times its distance from the vector.

Boxes (the least and the largest value of each dimension in a block) were tried as well: on the bundled
model's vectors they are looser than lengths, list by list and block by block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.groups import GroupedVectors
from coil.lists.precision import SCALES, StoredVectors, scale_bytes

BLOCK = 64  # mentions of a list, or rows, that share one bound
SKETCH_LEVELS = 7
_AT_ONCE = 1 << 18  # vectors decoded at a time


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lengths and sketches of a segment. Only lists longer than BLOCK have block norms."""

    list_norms: NDArray[np.float32]  # [lists]
    block_offsets: NDArray[np.int64]  # [lists + 1]
    block_norms: NDArray[np.float32]  # [blocks]
    sentence_norms: NDArray[np.float32]  # [blocks of rows]
    sketches: NDArray[np.uint8]  # [rows, ceil(n_c / 2)], or empty
    sketch_scales: NDArray[np.uint8]  # [rows], or empty
    sketch_errors: NDArray[np.uint8]  # [rows], or empty


def find_bounds(list_offsets: NDArray[np.int64], vectors: GroupedVectors, sentences: StoredVectors) -> Bounds:
    """The bounds of a segment's vectors as they are stored."""
    lengths = np.diff(list_offsets)
    norms = np.concatenate(
        [
            np.zeros(0, np.float32),
            *(norms_of(vectors[begin : begin + _AT_ONCE]) for begin in range(0, len(vectors), _AT_ONCE)),
        ]
    )
    list_norms = np.maximum.reduceat(norms, list_offsets[:-1]) if len(lengths) else np.zeros(0, np.float32)
    long = lengths > BLOCK
    blocks = np.where(long, -(-lengths // BLOCK), 0)
    block_offsets = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    of_long = norms[np.repeat(long, lengths)]
    begins = np.concatenate([[0], np.cumsum(lengths[long])])[:-1]
    within = np.arange(block_offsets[-1]) - np.repeat(block_offsets[:-1][long], blocks[long])
    starts = np.repeat(begins, blocks[long]) + within * BLOCK
    block_norms = np.maximum.reduceat(of_long, starts) if len(starts) else np.zeros(0, np.float32)
    of_rows = norms_of(sentences)
    row_blocks = np.arange(0, len(sentences), BLOCK)
    sentence_norms = np.maximum.reduceat(of_rows, row_blocks) if len(row_blocks) else np.zeros(0, np.float32)
    return Bounds(
        list_norms.astype(np.float32),
        block_offsets,
        block_norms.astype(np.float32),
        sentence_norms.astype(np.float32),
        *make_sketches(sentences),
    )


def norms_of(stored: StoredVectors) -> NDArray[np.float32]:
    """The length of each vector, rounded up."""
    if not stored.dim:
        return np.zeros(len(stored), np.float32)
    decoded = stored.decode().astype(np.float64)
    exact = np.sqrt(np.einsum("rd,rd->r", decoded, decoded)) * (1 + 1e-12)
    norms: NDArray[np.float32] = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    return norms


def make_sketches(
    stored: StoredVectors,
) -> tuple[NDArray[np.uint8], NDArray[np.uint8], NDArray[np.uint8]]:
    """Sketches, their scale bytes, and their distances from the vectors as scale bytes, rounded up.

    Byte j holds dimension j in its low half and dimension ceil(n_c / 2) + j in its high half, both plus 8.
    Vectors too large for a scale byte have no sketches.
    """
    none = np.zeros((0, 0), np.uint8), np.zeros(0, np.uint8), np.zeros(0, np.uint8)
    if not stored.dim or not len(stored):
        return none
    decoded = stored.decode()
    largest = np.abs(decoded).max(axis=1)
    if largest.max() > SCALES[-1]:
        return none
    scales = scale_bytes(largest, SKETCH_LEVELS)
    codes = np.clip(np.rint(decoded / SCALES[scales][:, None]), -SKETCH_LEVELS, SKETCH_LEVELS)
    difference = decoded.astype(np.float64) - codes.astype(np.float64) * SCALES[scales][:, None]
    errors = np.sqrt((difference**2).sum(axis=1)) * (1 + 1e-6)
    half = -(-stored.dim // 2)
    shifted = np.full((len(stored), 2 * half), 8, dtype=np.uint8)
    shifted[:, : stored.dim] = (codes + 8).astype(np.uint8)
    sketches = np.bitwise_or(shifted[:, :half], np.left_shift(shifted[:, half:], 4), dtype=np.uint8)
    return sketches, scales, scale_bytes(errors, 1)
