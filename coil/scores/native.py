"""The Python side of the native kernels: segments in the form that they read, and a scorer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.compiled import compiled_code, import_undisturbed
from coil.errors import DamagedSegment, TooLittleMemory
from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery

WIDEST = 1024  # dimensions; with more, integer sums could overflow


@dataclass(frozen=True, eq=False)
class KernelSegment:
    """A segment in the form that the kernels read, and its arrays, which must outlive it."""

    read: Any
    arrays: dict[str, NDArray[Any]]


def import_native() -> Any:
    """The extension module."""
    return import_undisturbed("coil._native")


def load_native() -> Any | None:
    """The extension module; None, with one warning, if it was not built (no C++ compiler)."""
    try:
        return import_native()
    except ModuleNotFoundError:
        _warn_of_slowness()
        return None


@lru_cache(1)
def _warn_of_slowness() -> None:
    warnings.warn(
        "coil was installed without its native core; searches work but are many times slower. "
        "Install a C++ compiler and reinstall coil.",
        RuntimeWarning,
        stacklevel=2,
    )


class NativeScorer:
    """Scores with the kernels of one instruction set, by default the best that this processor supports."""

    def __init__(self, instruction_set: str | None = None) -> None:
        self.native = import_native()
        self.instruction_set = instruction_set or self.native.instruction_sets()[0]

    def __call__(self, query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
        """The score of every row of the segment, [rows]."""
        found = self.segment(segment)
        with native_errors():
            scores: NDArray[np.int64] = self.native.score_segment(
                self.instruction_set, found.read, query.native
            )
        return scores

    def segment(self, segment: Segment) -> KernelSegment:
        """A segment in the form that the kernels read, cached for as long as the segment lives."""
        found: KernelSegment | None = vars(segment).get("kernel_segment")
        if found is None:
            arrays = named_arrays(segment)
            with native_errors():
                read = self.native.Segment(
                    arrays, segment.vectors.dim, segment.longest_sentence, segment.k1, segment.b
                )
            found = vars(segment)["kernel_segment"] = KernelSegment(read, arrays)
        return found


def key_finder(segments: Sequence[Segment]) -> Callable[[str], Sequence[int]]:
    """A function that looks up a key in several segments: the number of its list in each, -1 if none."""
    native = load_native()
    if native is None or any(max(of.vectors.dim, of.sentences.dim) > WIDEST for of in segments):
        return lambda key: [segment.find(key) for segment in segments]
    scorer = NativeScorer()
    prepared = [scorer.segment(segment) for segment in segments]

    def find(key: str) -> Sequence[int]:
        with native_errors():
            places: list[int] = native.find_keys([of.read for of in prepared], [key.encode()])[:, 0].tolist()
        return places

    return find


def named_arrays(segment: Segment) -> dict[str, NDArray[Any]]:
    """The arrays that the kernels read, by their names in docs/format.md."""
    bounds = segment.bounds
    head, tail = segment.sentences.parts
    arrays: dict[str, NDArray[Any] | None] = {
        "keys": segment.dictionary.keys,
        "key_blocks": segment.dictionary.key_blocks,
        "list_offsets": segment.list_offsets,
        "posting_offsets": segment.posting_offsets,
        "posting_rows": segment.posting_rows,
        "posting_starts": segment.posting_starts,
        "vectors": segment.vectors.values,
        "vector_scales": segment.vectors.scales,
        "sentence_heads": head.values,
        "sentence_head_scales": head.scales,
        "sentence_tails": tail.values,
        "sentence_tail_scales": tail.scales,
        "row_documents": segment.row_documents,
        "row_lengths": segment.row_lengths,
        **{field.name: getattr(bounds, field.name) for field in fields(bounds)},
    }
    return {name: np.ascontiguousarray(array) for name, array in arrays.items() if array is not None}


@contextmanager
def native_errors() -> Iterator[None]:
    """Wrap a call of the kernels: their errors become errors of this library."""
    try:
        with compiled_code():
            yield
    except ValueError as error:  # inconsistent arrays
        raise DamagedSegment(f"a segment cannot be searched: {error}", "run `coil verify`") from error
    except MemoryError as error:
        raise TooLittleMemory(
            "the search ran out of memory", "request fewer hits, or send fewer queries at a time"
        ) from error
    except RuntimeError as error:
        raise TooLittleMemory(
            f"a search thread could not be started: {error}", "search with fewer threads"
        ) from error
