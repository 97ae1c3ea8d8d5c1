"""Watched: which documents came from the files and folders that `coil index --watch` follows.

Each source has runs of ordinals. Every living document in a run came from that source; all others came from
elsewhere, and a watch leaves them alone. Ordinals are never used again, so a run needs no list of ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.texts.columns import Columns

Run = tuple[int, int]  # the first ordinal, and the one after the last

_LARGEST = 2**62


@dataclass(frozen=True)
class Watched:
    """The runs of each source, by its absolute path, and the columns named for it, if there are any."""

    runs: Mapping[str, tuple[Run, ...]] = field(default_factory=dict)
    columns: Mapping[str, Columns] = field(default_factory=dict)

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
        return replace(self, runs={**self.runs, source: (*runs, (first, end))})

    def read_with(self, columns: Mapping[str, Columns]) -> Watched:
        """A copy with the columns of some sources; those without named columns are not listed."""
        both = {**self.columns, **columns}
        return replace(self, columns={source: of for source, of in sorted(both.items()) if of.named})

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
        in_order = {source: tuple(of_source) for source, of_source in sorted(runs.items())}
        return replace(self, runs=in_order)

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest; what is empty is left out."""
        runs = {source: [list(run) for run in runs] for source, runs in self.runs.items()}
        columns = {source: of.to_json() for source, of in self.columns.items()}
        value = {"watched": runs, "watched_columns": columns}
        return {name: of_name for name, of_name in value.items() if of_name}

    @classmethod
    def from_json(cls, value: Any, columns: Any) -> Watched:
        """Parse both from the manifest; raises ValueError or TypeError if malformed."""
        if not isinstance(value, dict) or not isinstance(columns, dict):
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
        return cls(found, {source: Columns.from_json(of_source) for source, of_source in columns.items()})
