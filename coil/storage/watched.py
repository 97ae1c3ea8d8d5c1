"""Watched: which documents came from the files and folders that `coil index --watch` follows.

Each source has runs of ordinals. Every living document in a run came from that source; all others came from
elsewhere, and a watch leaves them alone. Ordinals are never used again, so a run needs no list of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among

Run = tuple[int, int]  # the first ordinal, and the one after the last

_LARGEST = 2**62


@dataclass(frozen=True)
class Watched:
    """The runs of each source, by its absolute path."""

    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)

    @property
    def n_runs(self) -> int:
        """The number of runs of all sources."""
        return sum(map(len, self.runs.values()))

    def came_from(self, source: str, ordinals: NDArray[np.int64]) -> NDArray[np.bool_]:
        """For each ordinal, whether it is in a run of the source."""
        runs = self.runs.get(source, ())
        if not runs:
            return np.zeros(len(ordinals), dtype=bool)
        bounds = np.array(runs, dtype=np.int64)
        places = np.searchsorted(bounds[:, 0], ordinals, side="right") - 1
        inside: NDArray[np.bool_] = (places >= 0) & (ordinals < bounds[places, 1])
        return inside

    def added(self, source: str, first: int, end: int) -> Watched:
        """A copy with new documents of a source; their ordinals are above all others."""
        runs = self.runs.get(source, ())
        if runs and runs[-1][1] == first:
            first, runs = runs[-1][0], runs[:-1]
        return Watched({**self.runs, source: (*runs, (first, end))})

    def assigned(self, living: NDArray[np.int64], taken: Mapping[str, Sequence[int]]) -> Watched:
        """A copy with documents that a source takes over, in as few runs as the living documents allow."""
        sources = list(dict.fromkeys((*self.runs, *taken)))
        owners = np.full(len(living), -1)
        for number, source in enumerate(sources):
            owners[self.came_from(source, living)] = number
        for number, source in enumerate(sources):
            owners[is_among(living, list(taken.get(source, ())))] = number
        edges = np.flatnonzero(np.diff(owners, prepend=-2, append=-2))
        runs: dict[str, list[Run]] = {}
        for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if owners[begin] >= 0:
                run = int(living[begin]), int(living[end - 1]) + 1
                runs.setdefault(sources[int(owners[begin])], []).append(run)
        return Watched({source: tuple(of_source) for source, of_source in sorted(runs.items())})

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest."""
        return {source: [list(run) for run in runs] for source, runs in self.runs.items()}

    @classmethod
    def from_json(cls, value: Any) -> Watched:
        """Parse it from the manifest; raises ValueError or TypeError if malformed."""
        if not isinstance(value, dict):
            raise ValueError("the watched sources are not an object")
        found: dict[str, tuple[Run, ...]] = {}
        for source, written in value.items():
            runs = tuple((first, end) for first, end in written)
            flat = [ordinal for run in runs for ordinal in run]
            if not all(type(ordinal) is int and 0 < ordinal <= _LARGEST for ordinal in flat):
                raise ValueError("a watched source has an empty range of ordinals")
            ordered = all(first < end for first, end in runs)
            if not ordered or flat != sorted(flat):
                raise ValueError("the ranges of a watched source are not in order")
            found[source] = runs
        return cls(found)
