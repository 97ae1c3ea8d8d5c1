"""Bounds: the norms and sketches that let a search skip what cannot win.

|q · v| is at most ‖q‖ ‖v‖. Lengths are rounded up. Of a sentence vector, the product with the query is at
most that of the sketches plus the product of the lengths of the tails. A sketch is the vector along the
sixteen axes that say most about a segment's sentence vectors, the tail is what they leave: a seventh of the
bytes, and it rules out most rows.

Boxes (the least and the largest value of each dimension in a block) were tried as well: on the bundled
model's vectors they are looser than lengths, list by list and block by block. Whole vectors in four bits a
dimension are tighter than sketches, but take three times the bytes and gain nothing in time. The first
sixteen dimensions instead of axes leave twice as many rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.groups import LANES, GroupedVectors
from coil.lists.precision import LARGEST, StoredVectors, store

BLOCK = 64  # mentions of a list, or rows, that share one bound
MOST_AXES = 16  # axes that bounds look at, at most
STEPS = 255  # in which the lengths of sentence vectors are counted
_FEW = 32  # rows that are not worth sketches
_ENOUGH = 1 << 13  # rows that tell the axes
_AT_ONCE = 1 << 14  # vectors decoded at a time


@dataclass(frozen=True, eq=False)
class Sketches:
    """Sentence vectors along a segment's main axes, in int8, and lengths in steps; all may be empty."""

    sketches: NDArray[np.int8]  # [groups of 16 rows, quads, 64]; a quad is 4 dimensions
    sketch_scales: NDArray[np.uint8]  # [rows]
    sketch_axes: NDArray[np.float32]  # [axes, n_c] of length 1, at right angles
    row_norms: NDArray[np.uint8]  # [rows] of the whole vectors
    tail_norms: NDArray[np.uint8]  # [rows] of what the axes leave
    norm_step: NDArray[np.float32]  # [1]

    @classmethod
    def none(cls) -> Sketches:
        """Without sketches, a search goes by the lengths of blocks."""
        some, floats = np.zeros(0, np.uint8), np.zeros((0, 0), np.float32)
        return cls(np.zeros((0, 0, 64), np.int8), some, floats, some, some, np.zeros(1, np.float32))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Lengths and sketches of a segment. Only lists longer than BLOCK have block norms."""

    list_norms: NDArray[np.float32]  # [lists]
    block_offsets: NDArray[np.int64]  # [lists + 1]
    block_norms: NDArray[np.float32]  # [blocks]
    sentence_norms: NDArray[np.float32]  # [blocks of rows]
    sketches: Sketches


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
        find_sketches(sentences),
    )


def norms_of(stored: StoredVectors) -> NDArray[np.float32]:
    """The length of each vector, rounded up."""
    if not stored.dim:
        return np.zeros(len(stored), np.float32)
    decoded = stored.decode().astype(np.float64)
    exact = np.sqrt(np.einsum("rd,rd->r", decoded, decoded)) * (1 + 1e-12)
    norms: NDArray[np.float32] = np.nextafter(exact.astype(np.float32), np.float32(np.inf))
    return norms


def find_sketches(stored: StoredVectors) -> Sketches:
    """The sketches of sentence vectors, with their axes and the lengths of vectors and tails.

    Sketches are in groups of sixteen rows as token vectors are (`coil.lists.groups`), padded to whole groups
    and whole quads. Vectors too large for a scale byte have none.
    """
    if not stored.dim or len(stored) < _FEW:  # the axes would cost more than looking at all rows
        return Sketches.none()
    decoded = stored.decode()
    if np.abs(decoded).max() > LARGEST:
        return Sketches.none()
    axes = main_axes(decoded[:: -(-len(decoded) // _ENOUGH)])
    along = decoded @ axes.T
    sketch = store(along, "int8")
    groups, quads = -(-len(stored) // LANES), -(-sketch.dim // 4)
    whole = np.zeros((groups * LANES, quads * 4), dtype=np.int8)
    whole[: len(stored), : sketch.dim] = sketch.values
    grouped = whole.reshape(groups, LANES, quads, 4).transpose(0, 2, 1, 3).reshape(groups, quads, 64)
    assert sketch.scales is not None
    norms, tails = norms_of(stored), norms_of(StoredVectors(decoded - along @ axes, None))
    step = np.nextafter(np.float32(max(norms.max(), tails.max()) / STEPS), np.float32(np.inf))
    in_steps = [np.minimum(np.ceil(lengths / np.float64(step)), STEPS) for lengths in (norms, tails)]
    return Sketches(
        np.ascontiguousarray(grouped),
        sketch.scales,
        axes,
        in_steps[0].astype(np.uint8),
        in_steps[1].astype(np.uint8),
        np.array([step], np.float32),
    )


def main_axes(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The axes along which vectors are longest on the whole. [axes, dim]"""
    _, found = np.linalg.eigh(vectors.T.astype(np.float64) @ vectors.astype(np.float64))
    axes: NDArray[np.float32] = np.ascontiguousarray(found[:, ::-1][:, :MOST_AXES].T.astype(np.float32))
    return axes
