"""Precision: how vectors are stored, and the error relative to fp32.

int8 stores one byte per dimension and one byte of scale per vector. The scale depends only on the vector
itself, so how a vector is stored does not depend on the others: after adding, deleting and merging, an index
has the same bytes as one built from scratch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError

Precision = Literal["int8", "fp16", "fp32", "int8+fp16", "int8+fp32"]
"""How vectors are stored; the last two add a precise copy to int8, which decides close scores."""
Stored = Literal["int8", "fp16", "fp32"]

LEVELS = 127
QUERY_LEVELS = 16_383  # a query vector has 15 bits per dimension
STEPS_AN_OCTAVE = 8
ZERO_OCTAVE = 160  # the scale byte of the scale 1
# The scale of each scale byte: from 2^-20 up to 2^11.9 in steps of 2^(1/8), about 9 %.
SCALES: NDArray[np.float32] = np.exp2((np.arange(256) - ZERO_OCTAVE) / STEPS_AN_OCTAVE).astype(np.float32)
LARGEST = float(SCALES[-1]) * LEVELS


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """Vectors as they are stored. Rows can be selected with a slice, a mask or an array of rows."""

    values: NDArray[Any]  # [rows, dim] int8, float16 or float32
    scales: NDArray[np.uint8] | None  # [rows] scale bytes of int8, None otherwise

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice | NDArray[Any]) -> StoredVectors:
        return StoredVectors(self.values[rows], None if self.scales is None else self.scales[rows])

    @property
    def dim(self) -> int:
        """The number of dimensions of a vector."""
        return int(self.values.shape[1])

    def decode(self) -> NDArray[np.float32]:
        """The vectors that the stored bytes represent, [rows, dim]."""
        decoded = self.values.astype(np.float32)
        return decoded if self.scales is None else decoded * SCALES[self.scales][:, None]


def searched_form(precision: Precision) -> Stored:
    """The form used for searching."""
    forms: dict[str, Stored] = {"fp16": "fp16", "fp32": "fp32"}
    return forms.get(precision, "int8")


def precise_form(precision: Precision) -> Stored | None:
    """The precise form stored in addition, or None."""
    forms: dict[str, Stored] = {"int8+fp16": "fp16", "int8+fp32": "fp32"}
    return forms.get(precision)


def store(vectors: NDArray[np.float32], precision: Stored) -> StoredVectors:
    """Convert vectors to the form in which they are stored."""
    if vectors.size and not np.isfinite(vectors).all():
        raise InputError("a vector contains NaN or infinity", "check the model")
    if precision == "fp32":
        return StoredVectors(np.ascontiguousarray(vectors, dtype=np.float32), None)
    largest = np.abs(vectors).max(axis=1, initial=0.0) if vectors.shape[1] else np.zeros(len(vectors))
    limit = LARGEST if precision == "int8" else float(np.finfo(np.float16).max)
    if len(largest) and largest.max() > limit:
        raise InputError(
            f"a vector contains {largest.max():.3g}, which exceeds the range of {precision} ({limit:.3g})",
            "store the vectors with --precision fp32",
        )
    if precision == "fp16":
        return StoredVectors(vectors.astype(np.float16), None)
    scales = scale_bytes(largest, LEVELS)
    codes = np.rint(vectors / SCALES[scales][:, None])
    return StoredVectors(np.clip(codes, -LEVELS, LEVELS).astype(np.int8), scales)


def scale_bytes(largest: NDArray[Any], levels: int) -> NDArray[np.uint8]:
    """The smallest scale for which the largest entry of each vector fits into ±levels."""
    with np.errstate(divide="ignore"):
        exact = np.log2(largest / levels) * STEPS_AN_OCTAVE + ZERO_OCTAVE
    found: NDArray[np.uint8] = np.clip(np.ceil(exact), 0, 255).astype(np.uint8)
    # log2 is inexact: where the scale is one step too small, take the next.
    small = (largest > SCALES[found] * levels) & (found < 255)
    found[small] += 1
    return found


def largest_error(vectors: NDArray[np.float32], stored: StoredVectors) -> float:
    """The largest ‖v − v̂‖ of any vector v stored as v̂; so |q·v − q·v̂| is at most ‖q‖ times this."""
    if not len(vectors) or not vectors.shape[1]:
        return 0.0
    difference = vectors.astype(np.float64) - stored.decode().astype(np.float64)
    return float(np.sqrt((difference**2).sum(axis=1)).max())


def quantise_queries(vectors: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """15-bit codes and scales of query vectors: vector ≈ code × scale. [n, dim] → [n, dim] and [n]"""
    largest = np.abs(vectors).max(axis=1, initial=0.0) if vectors.shape[1] else np.zeros(len(vectors))
    scales = (largest / QUERY_LEVELS).astype(np.float32)
    safe = np.where(scales > 0, scales, np.float32(1.0))[:, None]
    codes = np.clip(np.rint(vectors / safe), -QUERY_LEVELS, QUERY_LEVELS)
    return codes.astype(np.int16), scales
