"""Bounds: how long the vectors of a list, a block or a row are: a search leaves out what cannot win.

|q · v| is at most ‖q‖ ‖v‖. Lengths are rounded up. Of a sentence vector, the product with the query is at
most that of the heads (the first sixteen dimensions) plus the product of the lengths of the tails: a fifth of
the bytes, and with the bundled model, whose first dimensions say most, it rules out most rows.

Boxes (the least and the largest value of each dimension in a block) were tried as well: on the bundled
model's vectors they are looser than lengths, list by list and block by block. Sketches of four bits a
dimension are tighter than heads, but take three times the bytes and gain nothing in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.groups import LANES, GroupedVectors
from coil.lists.precision import LARGEST, StoredVectors, store

BLOCK = 64  # mentions of a list, or rows, that share one bound
HEAD = 16  # dimensions of a sentence vector that bounds look at
_AT_ONCE = 1 << 14  # vectors decoded at a time


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lengths and heads of a segment. Only lists longer than BLOCK have block norms."""

    list_norms: NDArray[np.float32]  # [lists]
    block_offsets: NDArray[np.int64]  # [lists + 1]
    block_norms: NDArray[np.float32]  # [blocks]
    sentence_norms: NDArray[np.float32]  # [blocks of rows]
    heads: NDArray[np.int8]  # [groups of 16 rows, chunks of 4 dimensions, 64], or empty
    head_scales: NDArray[np.uint8]  # [rows], or empty
    tail_norms: NDArray[np.float32]  # [rows], or empty


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
        *find_heads(sentences),
    )


def norms_of(stored: StoredVectors) -> NDArray[np.float32]:
    """The length of each vector, rounded up."""
    if not stored.dim:
        return np.zeros(len(stored), np.float32)
    decoded = stored.decode().astype(np.float64)
    exact = np.sqrt(np.einsum("rd,rd->r", decoded, decoded)) * (1 + 1e-12)
    norms: NDArray[np.float32] = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    return norms


def find_heads(
    stored: StoredVectors,
) -> tuple[NDArray[np.int8], NDArray[np.uint8], NDArray[np.float32]]:
    """The heads of sentence vectors in int8, their scale bytes, and the lengths of the tails.

    Heads stand in groups of sixteen rows as token vectors do (`coil.lists.groups`), filled up to whole groups
    and to four dimensions. Vectors too large for a scale byte have none.
    """
    none = np.zeros((0, 0, 64), np.int8), np.zeros(0, np.uint8), np.zeros(0, np.float32)
    if not stored.dim or not len(stored):
        return none
    decoded = stored.decode()
    if np.abs(decoded).max() > LARGEST:
        return none
    head = store(decoded[:, :HEAD], "int8")
    groups, chunks = -(-len(stored) // LANES), -(-head.dim // 4)
    whole = np.zeros((groups * LANES, chunks * 4), dtype=np.int8)
    whole[: len(stored), : head.dim] = head.values
    grouped = whole.reshape(groups, LANES, chunks, 4).transpose(0, 2, 1, 3).reshape(groups, chunks, 64)
    assert head.scales is not None
    tails = norms_of(StoredVectors(decoded[:, HEAD:], None))
    return np.ascontiguousarray(grouped), head.scales, tails
