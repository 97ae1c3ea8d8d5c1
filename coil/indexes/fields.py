"""The fields of an index: which names filters can use, found in a sample of the documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coil.errors import InputError
from coil.storage.filters import parse_filter
from coil.storage.snapshot import Snapshot, living_documents
from coil.texts.values import field_of

PER_SEGMENT = 2_000  # documents
SEGMENT_BYTES = 16 << 20  # of their texts and fields; larger documents are left out
MOST_NAMES = 200
_DEEPEST = 4  # fields inside fields
_LONGEST = 80  # characters of an example


@dataclass(frozen=True)
class FieldFacts:
    """A field that some documents have."""

    name: str
    documents: int  # of the sample, with a value that is not empty
    example: Any  # strings and lists are cut
    in_filters: bool  # whether a filter can contain its name


@dataclass(frozen=True)
class FieldSample:
    """The fields of some documents, the most frequent first."""

    fields: tuple[FieldFacts, ...]
    documents: int  # in the sample
    left_out: int  # further fields


def sample_fields(snapshot: Snapshot) -> FieldSample:
    """Read the first documents of each segment and count their fields."""
    counts: dict[str, int] = {}
    examples: dict[str, Any] = {}
    sampled = 0
    for ordinals in _ordinals(snapshot):
        for document in snapshot.fetch(ordinals):
            sampled += 1
            for name, value in _found(document.fields):
                counts[name] = counts.get(name, 0) + 1
                examples.setdefault(name, value)
    names = sorted(counts, key=lambda name: (-counts[name], name))
    return FieldSample(
        tuple(
            FieldFacts(name, counts[name], _cut(examples[name]), _is_in_filters(name))
            for name in names[:MOST_NAMES]
        ),
        sampled,
        max(0, len(names) - MOST_NAMES),
    )


def _ordinals(snapshot: Snapshot) -> Iterator[list[int]]:
    """The documents of the sample, in blocks."""
    for live in snapshot.segments:
        first = living_documents(live)[:PER_SEGMENT].tolist()
        taken, left = [], SEGMENT_BYTES
        for ordinal, size in zip(first, snapshot.sizes_of(first), strict=True):
            if size <= left:
                taken.append(ordinal)
                left -= size
        yield from snapshot.blocks(taken)


def _found(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names and values of fields that filters find, also of those inside others; empty ones are
    skipped."""
    for name in dict.fromkeys(_names(fields)):
        value = field_of(fields, name)
        if value not in (None, "", []) and not isinstance(value, dict):
            yield name, value


def _names(fields: Mapping[str, Any], above: str = "", depth: int = 1) -> Iterator[str]:
    """The names of fields, with dots for those inside others."""
    for name, value in fields.items():
        if not isinstance(value, dict):
            yield above + name
        elif depth < _DEEPEST:
            yield from _names(value, f"{above}{name}.", depth + 1)


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else str(value)
    if len(text) <= _LONGEST and not isinstance(value, list):
        return value
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _is_in_filters(name: str) -> bool:
    try:
        return parse_filter(f"{name} exists").names == (name,)
    except InputError:
        return False
