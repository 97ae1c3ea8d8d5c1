"""Stored vectors: how close int8 is, and what cannot be stored."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import (
    InputError,
)
from coil.lists.precision import LARGEST, largest_error, store


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**20), rows=st.integers(0, 6), dim=st.integers(0, 9), size=st.floats(1e-6, 1e4))
def test_int8_is_as_close_as_its_scale_allows(seed: int, rows: int, dim: int, size: float) -> None:
    vectors = (np.random.default_rng(seed).standard_normal((rows, dim)) * size).astype(np.float32)
    stored = store(vectors, "int8")
    decoded = stored.decode()
    largest = np.abs(vectors).max(axis=1, initial=0.0)
    step = np.maximum(largest / 127 * 2 ** (1 / 8), 2.0**-20)  # one scale step up at most
    assert (np.abs(decoded - vectors) <= step[:, None] * 0.5 * 1.0001).all()
    assert largest_error(vectors, stored) <= (step.max(initial=0.0) * 0.5001) * max(dim, 1) ** 0.5
    again = store(vectors[::-1], "int8")
    assert np.array_equal(again.values[::-1], stored.values)


def test_what_cannot_be_stored_is_refused() -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(InputError, match="NaN or infinity"):
            store(np.array([[1.0, bad]], dtype=np.float32), "fp32")
    with pytest.raises(InputError, match="exceeds the range of int8"):
        store(np.array([[LARGEST * 2]], dtype=np.float32), "int8")
    with pytest.raises(InputError, match="exceeds the range of fp16"):
        store(np.array([[70000.0]], dtype=np.float32), "fp16")
