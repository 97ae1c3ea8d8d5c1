"""Arrays that contradict themselves: the native core refuses them before it reads anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from coil.lists.segment import LiveSegment
from coil.scores.native import load_native, named_arrays
from coil.tokens.profile import WORDS
from tests.made_up_segments import make_segments

native = load_native()
pytestmark = pytest.mark.skipif(native is None, reason="the native extension was not built: no C++ compiler?")
Arrays = dict[str, NDArray[Any]]
N_T = 8


@pytest.fixture(scope="module")
def live() -> LiveSegment:
    [made] = make_segments(np.random.default_rng(3), [300], N_T, 20, longest=20, chunks=True)
    return made


def with_values(name: str, *changes: tuple[int, int]) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[name] = np.array(arrays[name])
        for place, value in changes:
            arrays[name][place] = value

    return change


def with_array(name: str, make: Callable[[NDArray[Any]], Any]) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[name] = make(arrays[name])

    return change


def misaligned(array: NDArray[Any]) -> NDArray[Any]:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return raw[1:].view(array.dtype)


HUGE, SMALL = 2**32 - 1, -(2**63)
BLOCKS = ("block_mentions", "block_norms", "block_factors")
HOSTILE: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "first list offset": (with_values("list_offsets", (0, 1)), "list_offsets does not run from 0"),
    "falling list offset": (with_values("list_offsets", (2, 0), (1, 1)), "list_offsets is not ascending"),
    "huge list offset": (with_values("list_offsets", (1, HUGE)), "list_offsets is not ascending"),
    "last list offset": (with_values("list_offsets", (-1, HUGE)), "posting_starts has the wrong size"),
    "too few list offsets": (with_array("list_offsets", lambda a: a[:-1]), "has the wrong size"),
    "no list offsets": (with_array("list_offsets", lambda a: a[:0]), "list_offsets has the wrong size"),
    "first posting offset": (with_values("posting_offsets", (0, 1)), "posting_offsets does not run from 0"),
    "huge posting offset": (with_values("posting_offsets", (1, HUGE)), "posting_offsets is not ascending"),
    "last posting offset": (with_values("posting_offsets", (-1, HUGE)), "posting_offsets does not run"),
    "no posting offsets": (with_array("posting_offsets", lambda a: a[:0]), "posting_offsets has the wrong"),
    "short starts": (with_array("posting_starts", lambda a: a[:-1]), "posting_starts has the wrong size"),
    "first key block": (with_values("key_blocks", (0, 1)), "key_blocks does not run from 0"),
    "last key block": (with_values("key_blocks", (-1, HUGE)), "key_blocks does not run from 0"),
    "more key blocks": (with_array("key_blocks", lambda a: np.append(a, a[-1:])), "key_blocks has the wrong"),
    "no key blocks": (with_array("key_blocks", lambda a: a[:0]), "key_blocks has the wrong size"),
    "another long list": (with_values("long_lists", (0, 11)), "long_lists does not match the lengths"),
    "too few long lists": (
        lambda arrays: arrays.update(
            long_lists=arrays["long_lists"][:-1], long_offsets=arrays["long_offsets"][:-1],
            **{name: arrays[name][: arrays["long_offsets"][-2]] for name in BLOCKS},
        ),
        "long_lists does not match the lengths of lists",
    ),
    "wrong number of blocks": (with_values("long_offsets", (1, 1)), "wrong number of blocks"),
    "first block": (with_values("long_offsets", (0, 1)), "long_offsets does not run from 0"),
    "huge long offset": (with_values("long_offsets", (-1, HUGE)), "block_mentions has the wrong size"),
    "too many block norms": (with_array("block_norms", lambda a: np.append(a, a)), "block_norms has the"),
    "too few factors": (with_array("block_factors", lambda a: a[:-1]), "block_factors has the wrong size"),
    "falling documents": (with_values("row_documents", (5, 10**6)), "row_documents is not ascending"),
    "negative documents": (with_values("row_documents", (0, -1)), "row_documents contains a negative number"),
    "many rows": (
        lambda arrays: arrays.update(row_documents=np.arange(70_000), row_lengths=np.ones(70_000, np.uint32)),
        "more than 65,536 rows",
    ),
    "other number of rows": (with_array("row_documents", lambda a: a[:-1]), "row_lengths has the wrong size"),
    "long rows": (with_values("row_lengths", (3, HUGE)), "row_lengths contains a number that is too large"),
    "short vectors": (with_array("vectors", lambda a: a[:-1]), "vectors has the wrong size"),
    "short scales": (with_array("vector_scales", lambda a: a[:-1]), "vector_scales has the wrong size"),
    "no scales": (lambda arrays: arrays.pop("vector_scales"), "vector_scales is missing"),
    "no lists": (lambda arrays: arrays.pop("list_offsets"), "list_offsets is missing"),
    "other type": (with_array("posting_rows", lambda a: a.astype(np.int64)), "posting_rows has the wrong"),
    "other vectors": (with_array("vectors", lambda a: a.astype(np.int16)), "vectors has the wrong element"),
    "not an array": (with_array("keys", lambda a: "1 2 3"), "keys is not an array"),
    "other byte order": (with_array("row_lengths", lambda a: a.astype(">u4")), "row_lengths"),
    "every second": (with_array("posting_rows", lambda a: np.repeat(a, 2)[::2]), "posting_rows is not cont"),
    "misaligned": (with_array("list_offsets", misaligned), "list_offsets is not aligned"),
    "flat sentences": (with_array("sentence_heads", lambda a: a.reshape(-1)), "sentence_heads is not a"),
    "wide sentences": (with_array("sentence_tails", lambda a: np.zeros((0, 2**40), np.int8)), "width"),
    "wide heads": (with_array("sentence_heads", lambda a: np.repeat(a, 4, axis=1)), "sentence_heads has the"),
    "short list norms": (with_array("list_norms", lambda a: a[:-1]), "list_norms has the wrong size"),
    "NaN norms": (with_array("list_norms", lambda a: a * np.float32(np.nan)), "list_norms contains"),
    "negative norms": (with_array("block_norms", lambda a: -a), "block_norms contains a negative number"),
    "short tails": (with_array("tail_norms", lambda a: a[:-1]), "tail_norms has the wrong size"),
    "no step": (with_array("norm_step", lambda a: a[:0]), "norm_step is not a length"),
    "endless step": (with_array("norm_step", lambda a: np.full_like(a, np.inf)), "norm_step is not a length"),
}  # fmt: skip


def make_native(arrays: Arrays, n_t: int = N_T) -> Any:
    assert native is not None
    return native.Segment(arrays, n_t, 10.0, WORDS.k1, WORDS.b)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays_are_refused(case: str, live: LiveSegment) -> None:
    change, message = HOSTILE[case]
    arrays = named_arrays(live.segment)
    make_native(arrays)  # as they are, they are fine
    change(arrays)
    with pytest.raises(ValueError, match=message):
        make_native(arrays)


@pytest.mark.parametrize("n_t", [-1, 7, 9, 2**31, 2**60, 2**63 - 1, -(2**63)])
def test_a_width_that_does_not_fit_the_vectors_is_refused(n_t: int, live: LiveSegment) -> None:
    with pytest.raises(ValueError, match="vectors has"):
        make_native(named_arrays(live.segment), n_t)
