"""Snapshot: an index as it was at one moment, to be read for as long as one likes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError, MissingSegment
from coil.lists.segment import LiveSegment, Segment
from coil.lists.segment_file import open_segment
from coil.storage.catalog import Catalog, SegmentEntry

SEGMENTS_FOLDER = "segments"
_TRIES = 5


class Snapshot:
    """Segments and documents of one moment. What a writer commits later is not seen; close it when done."""

    entries: list[SegmentEntry]
    segments: list[LiveSegment]

    def __init__(self, folder: Path, earlier: Snapshot | None = None) -> None:
        """`earlier`: one that is not closed yet; segments that both have are not opened again."""
        self.folder = folder
        self._turn = threading.Lock()
        self._readers = 0
        self._closing = False
        known = (
            {}
            if earlier is None
            else {entry: live.segment for entry, live in zip(earlier.entries, earlier.segments, strict=True)}
        )
        for attempt in range(_TRIES):
            catalog = Catalog.open(folder)
            catalog.begin_snapshot()
            try:
                self.entries = catalog.segments()
                self.segments = [
                    load_segment(folder, catalog, entry, known.get(entry)) for entry in self.entries
                ]
            except (MissingSegment, FileNotFoundError):
                # A writer may have merged the segment away between our look at the catalog and at the file.
                catalog.close()
                if attempt + 1 == _TRIES:
                    raise
                continue
            self.catalog = catalog
            return

    def close(self) -> None:
        """Let go of the files, as soon as nobody reads them any more."""
        with self._turn:
            self._closing = True
            unused = not self._readers
        if unused:
            self._let_go()

    @contextmanager
    def held(self) -> Iterator[Snapshot]:
        """Keep the files open while this is read, even if another thread closes the snapshot."""
        with self._turn:
            if self._is_closed():
                raise InputError("the index is closed", "open it again with coil.open")
            self._readers += 1
        try:
            yield self
        finally:
            with self._turn:
                self._readers -= 1
                last = self._closing and not self._readers
            if last:
                self._let_go()

    @cached_property
    def row_lengths(self) -> list[NDArray[np.int64]]:
        """How many mentions each row of each segment has."""
        return [count_mentions(live.segment) for live in self.segments]

    def _is_closed(self) -> bool:
        """A snapshot that is to be closed stays open for those who read it already."""
        return self._closing and not self._readers

    def _let_go(self) -> None:
        self.segments = []
        self.catalog.close()


def load_segment(
    folder: Path, catalog: Catalog, entry: SegmentEntry, segment: Segment | None = None
) -> LiveSegment:
    """Map one segment, unless it is at hand and its file is still there, and mark what is deleted from it."""
    path = folder / SEGMENTS_FOLDER / entry.file
    if segment is None or not path.is_file():
        segment = open_segment(path, entry.facts)
    deleted = catalog.deleted(entry.segment)
    alive = ~np.isin(segment.row_documents, deleted) if len(deleted) else None
    return LiveSegment(segment, alive)


def count_mentions(segment: Segment) -> NDArray[np.int64]:
    """How many mentions each row has in all lists together. [rows]"""
    return np.bincount(segment.mention_rows, minlength=segment.n_rows).astype(np.int64)
