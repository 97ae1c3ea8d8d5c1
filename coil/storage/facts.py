"""Facts: what is in an index, counted without what is deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge, nsmallest
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.lists.segment import LiveSegment
from coil.storage.snapshot import Snapshot


@dataclass(frozen=True)
class IndexFacts:
    """What `coil inspect` tells. Rows, mentions and lists are those of documents that are there."""

    folder: str
    model: dict[str, Any]
    precision: Precision
    long: Long
    documents: int
    rows: int
    deleted_rows: int  # beside these; `coil compact` gives their space back
    mentions: int
    lists: int
    longest_lists: tuple[tuple[str, int], ...]  # their keys and how many mentions they have
    truncated_documents: int
    segments: int
    version: int  # grows with every change
    unfinished: bool  # `coil index` was interrupted, and --resume can go on
    bytes_lists: int
    bytes_documents: int
    bytes_a_mention: float  # all of the lists, dictionary and bounds included, without sentence vectors
    token_error: float
    sentence_error: float


def gather_facts(snapshot: Snapshot, unfinished: bool, longest: int) -> IndexFacts:
    """Count what a snapshot holds; the `longest` lists are named."""
    manifest, segments = snapshot.manifest, snapshot.segments
    lists_of, mentions = 0, 0

    def counted() -> Iterator[tuple[str, int]]:
        nonlocal lists_of, mentions
        for key, length in list_lengths(segments):
            lists_of, mentions = lists_of + 1, mentions + length
            yield key, length

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
        truncated_documents=snapshot.count_truncated(),
        segments=len(segments),
        version=manifest.version,
        unfinished=unfinished,
        bytes_lists=lists,
        bytes_documents=sum(entry.texts.bytes for entry in manifest.segments),
        bytes_a_mention=(lists - beside) / stored if stored else 0.0,
        token_error=max((live.segment.token_error for live in segments), default=0.0),
        sentence_error=max((live.segment.sentence_error for live in segments), default=0.0),
    )


def list_lengths(segments: Sequence[LiveSegment]) -> Iterator[tuple[str, int]]:
    """Every list with its living mentions, key by key: all keys at once may be more than memory holds."""
    of_segments = [
        zip(live.segment.dictionary, memoryview(count_living(live).data), strict=True) for live in segments
    ]
    for key, same in groupby(merge(*of_segments), key=itemgetter(0)):
        length = sum(length for _, length in same)
        if length:
            yield key, length


def count_living(live: LiveSegment) -> NDArray[np.int64]:
    """How many mentions of rows that are there each list has. [lists]"""
    offsets = live.segment.list_offsets.astype(np.int64)
    if live.alive is None:
        return np.diff(offsets)
    before = np.concatenate(([0], np.cumsum(live.alive[live.segment.mention_rows()])))  # [mentions + 1]
    return np.diff(before[offsets])


def _bytes_beside(live: LiveSegment) -> int:
    """What a lists file holds besides mentions: sentence vectors and precise forms."""
    segment = live.segment
    head, tail = segment.sentences.parts
    arrays = [part.values for part in (head, tail)] + [part.scales for part in (head, tail)]
    arrays += [of.values for of in (segment.precise_vectors, segment.precise_sentences) if of is not None]
    return segment.bounds.tail_norms.nbytes + sum(array.nbytes for array in arrays if array is not None)
