"""Ranking: the documents that a search found, best first, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from coil.scores.products import GRID

if TYPE_CHECKING:
    from typing import Self


class Ranked(NamedTuple):
    """A document by its ordinal, with the row that gave it its score (a multiple of 2^-32)."""

    grid_score: int
    ordinal: int
    segment: int
    row: int

    @property
    def score(self) -> float:
        """The score as a number."""
        return self.grid_score / GRID


@dataclass(frozen=True, eq=False)
class Ranking(Sequence[Ranked]):
    """Documents by score, descending, then by ordinal: a sequence of `Ranked`, created on access."""

    grid_scores: NDArray[np.int64]
    ordinals: NDArray[np.int64]
    segments: NDArray[np.int32]
    rows: NDArray[np.int32]

    @classmethod
    def of(cls, ranked: Iterable[Ranked]) -> Self:
        """The ranking of these documents, in this order."""
        table = np.array(list(ranked), dtype=np.int64).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2].astype(np.int32), table[:, 3].astype(np.int32))

    @classmethod
    def joined(cls, parts: Sequence[Self], k: int) -> Self:
        """The k best of all parts."""
        if not parts:
            return cls.of([])
        of_parts = zip(*(part.columns for part in parts), strict=True)
        columns = [np.concatenate(column) for column in of_parts]
        order = np.lexsort((columns[1], -columns[0]))[: max(k, 0)]
        return cls(*(column[order] for column in columns))

    @property
    def columns(self) -> tuple[NDArray[Any], ...]:
        """Scores on the grid, ordinals, segments and rows."""
        return self.grid_scores, self.ordinals, self.segments, self.rows

    @property
    def scores(self) -> NDArray[np.float64]:
        """The scores as numbers."""
        return self.grid_scores / GRID

    def __len__(self) -> int:
        return len(self.ordinals)

    @overload
    def __getitem__(self, place: int) -> Ranked: ...
    @overload
    def __getitem__(self, place: slice) -> Ranking: ...
    def __getitem__(self, place: int | slice) -> Ranked | Ranking:
        if isinstance(place, slice):
            return type(self)(*(column[place] for column in self.columns))
        return Ranked(*(int(column[place]) for column in self.columns[:4]))

    def __iter__(self) -> Iterator[Ranked]:
        return map(Ranked, *(column.tolist() for column in self.columns[:4]))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ranking):
            return NotImplemented
        return all(np.array_equal(a, b) for a, b in zip(self.columns, other.columns, strict=True))

    __hash__ = None  # type: ignore[assignment]
