"""Merging: keeps segments few, moves each row rarely, and leaves nothing deleted after a compaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from coil.arrays import distinct
from coil.errors import TooLittleMemory
from coil.lists.building import merge_segments
from coil.lists.segment import MOST_ROWS, Segment
from coil.storage.document_file import StoredDocument
from coil.storage.manifest import SegmentEntry
from coil.storage.memory import MERGING, MemoryPlan, show_size
from coil.storage.publishing import Publisher
from coil.storage.snapshot import Snapshot
from coil.storage.stored_segment import StoredSegment, check_bytes, write_stored_segment

FAN = 8  # this many neighbouring segments of one size class are merged into one
_KEY_BYTES = 25  # of a key in addition to its file: in memory, a string, a number and a hash table slot


def merge_small_segments(publisher: Publisher, most_bytes: int) -> None:
    """Merge neighbours of one size class, as a counter carries.

    If a segment or memory has no room for FAN of them, merge as many as fit.
    """
    while True:
        with publisher.holder.held() as current:
            count = _count_to_merge(current.manifest.segments, _sizes(current), most_bytes)
            if count < 2:
                return
            end = len(current.manifest.segments)
            merge_run(publisher, current, end - count, end)


def merge_tail(publisher: Publisher, most_bytes: int) -> None:
    """Merge the last segments that fit into one: a build commits often, and searches must not slow down."""
    with publisher.holder.held() as current:
        entries = current.manifest.segments
        count = rows = size = 0
        for entry, taken in zip(reversed(entries), reversed(_sizes(current)), strict=True):
            rows, size = rows + entry.rows, size + taken
            if rows > MOST_ROWS or size > most_bytes:
                break
            count += 1
        if count > 1:
            merge_run(publisher, current, len(entries) - count, len(entries))


def compact_segments(publisher: Publisher, plan: MemoryPlan) -> int:
    """Rewrite segments without deleted rows, each as full as memory allows; return their number."""
    begin = 0
    while True:
        with publisher.holder.held() as current:
            entries, sizes = current.manifest.segments, _sizes(current)
            if begin == len(entries):
                return len(entries)
            end, rows, size = begin, 0, 0
            while end < len(entries):
                alive = entries[end].alive
                living = entries[end].rows if alive is None else int(alive.sum())
                if end > begin and (rows + living > MOST_ROWS or size + sizes[end] > plan.merged):
                    break
                end, rows, size = end + 1, rows + living, size + sizes[end]
            if size > plan.rewritten and entries[begin].alive is not None:
                raise TooLittleMemory(
                    f"rewriting a segment of {show_size(size)} takes about {show_size(int(MERGING * size))} "
                    f"of memory; the limit of {show_size(plan.budget)} leaves "
                    f"{show_size(int(MERGING * plan.rewritten))}",
                    "open the index with a larger memory limit; what was compacted so far is kept",
                )
            begin += merge_run(publisher, current, begin, end)


def _sizes(current: Snapshot) -> list[int]:
    """The size of each segment for merging in bounded memory."""
    return [
        entry.lists.bytes + _KEY_BYTES * len(live.segment.dictionary)
        for entry, live in zip(current.manifest.segments, current.segments, strict=True)
    ]


def _count_to_merge(entries: Sequence[SegmentEntry], sizes: Sequence[int], most_bytes: int) -> int:
    """How many of the last segments to merge.

    That is FAN of one size class or, if sizes are mixed, all of the classes up to one if they are more than
    the digits of a counter to base FAN would allow. So there are never many.
    """
    if not entries:
        return 0
    last = _size_class(entries[-1].rows)
    for largest in range(last, _size_class(MOST_ROWS) + 1):
        count = rows = size = 0
        crowded = False
        for entry, taken in zip(reversed(entries), reversed(sizes), strict=True):
            if _size_class(entry.rows) > largest:
                break
            if rows + entry.rows > MOST_ROWS or size + taken > most_bytes:
                crowded = True  # no further segment fits
                break
            count, rows, size = count + 1, rows + entry.rows, size + taken
        same = len({_size_class(entry.rows) for entry in entries[len(entries) - count :]}) == 1
        if same and count >= FAN:
            return FAN
        if count > (largest + 1) * (FAN - 1) or (crowded and count > (1 if same else 2)):
            return count
    return 0


def merge_run(publisher: Publisher, current: Snapshot, begin: int, end: int) -> int:
    """Merge a run of segments into as few as hold their living rows; return how many these are."""
    entries, stored = current.manifest.segments[begin:end], current.stored[begin:end]
    live = current.segments[begin:end]
    if len(entries) == 1 and live[0].alive is None:
        return 1
    for entry, of in zip(entries, stored, strict=True):  # or damage would be copied into a valid file
        check_bytes(publisher.folder, entry, of)
    alive = [of.alive if of.alive is not None else np.ones(of.segment.n_rows, dtype=bool) for of in live]
    merged = merge_segments([of.segment for of in live], alive)
    number = current.manifest.next_segment
    written: list[SegmentEntry] = []
    try:
        for segment in merged:
            written.append(_write(publisher, number + len(written), segment, stored))
    except BaseException:
        for entry in written:
            publisher.discard(entry)
        raise
    segments = (*current.manifest.segments[:begin], *written, *current.manifest.segments[end:])
    publisher.publish(current, segments, next_segment=number + len(written))
    return len(written)


def _write(
    publisher: Publisher, number: int, segment: Segment, sources: Sequence[StoredSegment]
) -> SegmentEntry:
    documents = _documents_of(sources, distinct(segment.row_documents))
    return write_stored_segment(publisher.folder, number, segment, documents)


def _documents_of(sources: Sequence[StoredSegment], ordinals: NDArray[np.int64]) -> Iterator[StoredDocument]:
    for source in sources:
        documents = source.segment.row_documents
        yield from source.documents.stored(ordinals[(ordinals >= documents[0]) & (ordinals <= documents[-1])])


def _size_class(rows: int) -> int:
    """0 below FAN rows, 1 below FAN², and so on."""
    size = 0
    while rows >= FAN:
        rows //= FAN
        size += 1
    return size
