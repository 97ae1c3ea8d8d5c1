"""The native kernels behind Python: segments in the form they read, and a scorer over them."""

from __future__ import annotations

import importlib
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery

_LISTS: WeakKeyDictionary[Segment, Any] = WeakKeyDictionary()
WIDEST = 1024  # dimensions; beyond, whole-number sums could overflow


def load_native() -> Any | None:
    """The extension module, None where it was not built (no C++ compiler)."""
    try:
        return importlib.import_module("coil._native")
    except ModuleNotFoundError:
        return None


class NativeScorer:
    """Scores with the kernels of one instruction set, by default the best that this processor has."""

    def __init__(self, instruction_set: str | None = None) -> None:
        self.native = importlib.import_module("coil._native")
        self.instruction_set = instruction_set or self.native.instruction_sets()[0]

    def __call__(self, query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
        """The score of every row of the segment, [rows]."""
        scores: NDArray[np.int64] = self.native.score_segment(
            self.instruction_set, self.lists(segment), query.native
        )
        return scores

    def lists(self, segment: Segment) -> Any:
        """A segment as the kernels read it; it keeps the arrays alive, and lives as long as the segment."""
        found = _LISTS.get(segment)
        if found is None:
            found = _LISTS[segment] = self._lists(segment)
        return found

    def _lists(self, segment: Segment) -> Any:
        kinds = {"int8": "int8", "float16": "fp16", "float32": "fp32"}
        bounds = segment.bounds
        return self.native.Lists(
            list_ids=_flat(segment.list_ids),
            list_offsets=_flat(segment.list_offsets),
            mention_rows=_flat(segment.mention_rows),
            mentions=_bytes(segment.vectors.values),
            mention_scales=None if segment.vectors.scales is None else _flat(segment.vectors.scales),
            n_t=segment.vectors.dim,
            sentences=_bytes(segment.sentences.values),
            sentence_scales=None if segment.sentences.scales is None else _flat(segment.sentences.scales),
            n_c=segment.sentences.dim,
            row_documents=_flat(segment.row_documents),
            list_norms=_flat(bounds.list_norms),
            block_offsets=_flat(bounds.block_offsets),
            block_norms=_flat(bounds.block_norms),
            sentence_norms=_flat(bounds.sentence_norms),
            sketches=_bytes(bounds.sketches.sketches),
            sketch_scales=_flat(bounds.sketches.sketch_scales),
            row_norms=_flat(bounds.sketches.row_norms),
            tail_norms=_flat(bounds.sketches.tail_norms),
            sketch_axes=_flat(bounds.sketches.sketch_axes),
            norm_step=float(bounds.sketches.norm_step[0]),
            precision=kinds[segment.vectors.values.dtype.name],
        )


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(array).reshape(-1)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = _flat(array).view(np.uint8)
    return found
