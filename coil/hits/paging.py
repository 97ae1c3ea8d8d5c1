"""Paging: later pages of hits, sorting by a field, and folding of duplicates."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from coil.errors import InputError
from coil.hits.ranking import Ranking
from coil.texts.values import Document

SORTED = 10_000  # this many of the best hits are sorted by a field
MOST_OFFSET = 1_000_000
_FIELD = re.compile(r"-?[^\W\d][\w.-]*")
_NUMBER = re.compile(r"\s*-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\s*")
_LONGEST_NAME = 1_000  # characters of a field
_MORE = 64  # hits checked for duplicates in addition to twice the requested number
_COMPARED = 256  # characters by which texts are sorted
_LONGEST_WHOLE = 400  # characters of a whole number; a longer one exceeds all floats


class KnowsFields(Protocol):
    """A source of fields and texts."""

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order."""
        ...

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterable[tuple[int, Any]]:
        """The values of a field of these documents, by ordinal; documents without the field are left out."""
        ...

    def blocks(self, ordinals: Sequence[int]) -> Iterable[Sequence[int]]:
        """Split ordinals into blocks whose documents are read together."""
        ...


@dataclass(frozen=True)
class Paging:
    """Which hits to return.

    The first `offset` hits are skipped. With `sort`, the best 10,000 hits are sorted by this field ("-year":
    descending). With `fold`, hits with the same text as an earlier one are folded into it.
    """

    offset: int = 0
    sort: str | None = None
    fold: bool = False

    def __post_init__(self) -> None:
        if self.sort is not None and len(self.sort) > _LONGEST_NAME:
            raise InputError(
                f"the field to sort by has {len(self.sort):,} characters, which exceeds the limit of "
                f"{_LONGEST_NAME:,}",
                "sort by an existing field",
            )
        if self.sort is not None and not _FIELD.fullmatch(self.sort):
            raise InputError(
                f"{self.sort[:80]!r} is not the name of a field to sort by", 'write it as "year" or "-year"'
            )
        if self.offset > MOST_OFFSET:
            raise InputError(
                f"the offset {self.offset:,} exceeds the limit of {MOST_OFFSET:,}", "narrow the query instead"
            )

    @property
    def field(self) -> str | None:
        """The field to sort by."""
        return None if self.sort is None else self.sort.removeprefix("-")

    def depth(self, k: int) -> int:
        """How many hits to find first."""
        wanted = self.offset + k
        if not k or not (self.sort or self.fold):
            return wanted if k else 0
        # Every page sorts the same hits; one more tells whether there are others.
        return SORTED + 1 if self.sort else 2 * wanted + _MORE


class Page(NamedTuple):
    """Hits in the order of display, and the ordinals that were folded into each."""

    ranking: Ranking
    duplicates: list[tuple[int, ...]] | None = None
    sorted_best: int | None = None  # if not all hits were sorted: how many of the best were

    @property
    def ordinals(self) -> list[int]:
        """The ordinals of all hits and of the documents folded into them."""
        hits: list[int] = self.ranking.ordinals.tolist()
        return hits + [ordinal for of in self.duplicates or () for ordinal in of]


def turn_to_page(
    found: Ranking,
    k: int,
    paging: Paging,
    collection: KnowsFields,
    deadline: float | None,
    check_time: Callable[[], object],
) -> Page:
    """The requested page of a ranking. If it has fewer than k hits, more may have to be found first."""
    wanted = slice(paging.offset, paging.offset + k)
    sorted_best = None
    if paging.sort is not None:
        sorted_best = SORTED if len(found) > SORTED else None
        found = found[:SORTED]
        found = _take(found, _sorted_places(found, paging.sort, collection, deadline))
    if not paging.fold:
        return Page(found[wanted], sorted_best=sorted_best)
    places: list[int] = []
    duplicates: list[list[int]] = []
    known: dict[bytes, int] = {}
    for place, digest in enumerate(_digests(found.ordinals.tolist(), collection, check_time)):
        first = known.setdefault(digest, len(places))
        if first < len(places):
            duplicates[first].append(int(found.ordinals[place]))
        elif len(places) == wanted.stop:
            break
        else:
            places.append(place)
            duplicates.append([])
    return Page(_take(found, places[wanted]), [tuple(of) for of in duplicates[wanted]], sorted_best)


def _take(found: Ranking, places: Sequence[int]) -> Ranking:
    at = np.array(places, dtype=np.intp)
    return type(found)(*(column[at] for column in found.columns))


def _sorted_places(
    found: Ranking, sort: str, collection: KnowsFields, deadline: float | None
) -> Sequence[int]:
    """Sort by the field, then by the score.

    Numbers come before texts (in descending order, after them). Documents without the field come last.
    """
    ordinals = found.ordinals.tolist()
    values = collection.field_values(sort.removeprefix("-"), ordinals, deadline)
    keys = {ordinal: _sort_key(value) for ordinal, value in values if value is not None}
    places = [place for place, ordinal in enumerate(ordinals) if ordinal in keys]
    # The sort is stable in both directions: equal values keep the order by score.
    places.sort(key=lambda place: keys[ordinals[place]], reverse=sort.startswith("-"))
    return places + [place for place, ordinal in enumerate(ordinals) if ordinal not in keys]


def _sort_key(value: Any) -> tuple[int, float, str]:
    """A sort key: numbers, and texts that are entirely a number, by value; others as texts."""
    if isinstance(value, int | float):
        return 0, value, ""  # Python compares whole numbers and floats exactly
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        whole = len(value) <= _LONGEST_WHOLE and value.strip().lstrip("-").isdigit()
        return 0, int(value) if whole else float(value), ""
    text = value if isinstance(value, str) else json.dumps(value)
    return 1, 0.0, text[:_COMPARED]


def _digests(
    ordinals: Sequence[int], collection: KnowsFields, check_time: Callable[[], object]
) -> Iterator[bytes]:
    """Digests of the texts, ignoring case and differences in white space."""
    for some in collection.blocks(ordinals):
        check_time()
        for document in collection.fetch(some):
            text = " ".join(document.text.split()).casefold()
            yield hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()
