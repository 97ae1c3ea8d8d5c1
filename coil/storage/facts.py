"""Facts: counts of what is in an index, excluding deleted documents."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import SearchTimeout
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.lists.segment import LiveSegment
from coil.storage.snapshot import Snapshot


@dataclass(frozen=True)
class IndexFacts:
    """The data of `coil inspect`. Rows, mentions and lists exclude deleted documents."""

    folder: str
    model: dict[str, Any]
    precision: Precision
    long: Long
    documents: int
    rows: int
    deleted_rows: int  # in addition; `coil compact` reclaims their space
    mentions: int
    lists: int
    longest_lists: tuple[tuple[str, int], ...]  # their keys and numbers of mentions
    truncated_documents: int
    segments: int
    version: int  # increases with every change
    unfinished: bool  # `coil index` was interrupted; --resume continues it
    bytes_lists: int
    bytes_documents: int
    bytes_a_mention: float  # of the lists, including dictionary and bounds, without sentence vectors
    token_error: float
    sentence_error: float


_AT_ONCE = 1_000  # lists counted between two checks of the deadline


def gather_facts(
    snapshot: Snapshot, unfinished: bool, longest: int, seconds: float | None = None
) -> IndexFacts:
    """Count the contents of a snapshot, once, including the keys of the `longest` lists."""
    known = snapshot.facts.get(longest)
    if known is None:
        deadline = None if seconds is None else time.monotonic() + seconds
        known = _count(snapshot, unfinished, longest, deadline)
        snapshot.facts = {longest: known}
    return known


def _count(snapshot: Snapshot, unfinished: bool, longest: int, deadline: float | None) -> IndexFacts:
    manifest, segments = snapshot.manifest, snapshot.segments
    lists_of, mentions = 0, 0

    def counted() -> Iterator[tuple[str, int]]:
        nonlocal lists_of, mentions
        for key, length in list_lengths(segments, deadline):
            lists_of, mentions = lists_of + 1, mentions + length
            yield key, length

    try:
        truncated = snapshot.count_truncated(deadline)
    except SearchTimeout as error:  # its message refers to a filter
        raise _late() from error
    top = nsmallest(max(longest, 1), counted(), key=lambda item: (-item[1], item[0]))[:longest]
    stored = sum(live.segment.n_mentions for live in segments)
    lists = sum(entry.lists.bytes for entry in manifest.segments)
    beside = sum(_bytes_beside(live) for live in segments)
    deleted = sum(int((~live.alive).sum()) for live in segments if live.alive is not None)
    settings = manifest.settings
    return IndexFacts(
        folder=str(snapshot.path),
        model={name: settings[name] for name in ("model", "fingerprint", "config")},
        precision=settings["precision"],
        long=settings["long"],
        documents=manifest.n_documents,
        rows=sum(live.segment.n_rows for live in segments) - deleted,
        deleted_rows=deleted,
        mentions=mentions,
        lists=lists_of,
        longest_lists=tuple(top),
        truncated_documents=truncated,
        segments=len(segments),
        version=manifest.version,
        unfinished=unfinished,
        bytes_lists=lists,
        bytes_documents=sum(entry.texts.bytes for entry in manifest.segments),
        bytes_a_mention=(lists - beside) / stored if stored else 0.0,
        token_error=max((live.segment.token_error for live in segments), default=0.0),
        sentence_error=max((live.segment.sentence_error for live in segments), default=0.0),
    )


def _check_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise _late()


def _late() -> SearchTimeout:
    reason = "counting what the index holds took longer than it was given"
    return SearchTimeout(reason, "allow more time, or ask when there is less to do")


def list_lengths(segments: Sequence[LiveSegment], deadline: float | None = None) -> Iterator[tuple[str, int]]:
    """Every list with its living mentions, key by key: all keys at once may exceed memory."""
    of_segments = [
        zip(live.segment.dictionary, memoryview(count_living(live).data), strict=True) for live in segments
    ]
    for number, (key, same) in enumerate(groupby(merge(*of_segments), key=itemgetter(0))):
        if number % _AT_ONCE == 0:
            _check_time(deadline)
        length = sum(length for _, length in same)
        if length:
            yield key, length


def count_living(live: LiveSegment) -> NDArray[np.int64]:
    """The number of mentions of living rows in each list. [lists]"""
    offsets = live.segment.list_offsets.astype(np.int64)
    if live.alive is None:
        return np.diff(offsets)
    before = np.concatenate(([0], np.cumsum(live.alive[live.segment.mention_rows()])))  # [mentions + 1]
    return np.diff(before[offsets])


def _bytes_beside(live: LiveSegment) -> int:
    """The size of a lists file besides mentions: sentence vectors and precise forms."""
    segment = live.segment
    head, tail = segment.sentences.parts
    arrays = [part.values for part in (head, tail)] + [part.scales for part in (head, tail)]
    arrays += [of.values for of in (segment.precise_vectors, segment.precise_sentences) if of is not None]
    return segment.bounds.tail_norms.nbytes + sum(array.nbytes for array in arrays if array is not None)
