"""Snapshot: an index as it was at one moment, to be read for as long as one likes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.errors import MissingSegment
from coil.lists.catalog import Catalog, SegmentEntry
from coil.lists.segment import Segment
from coil.lists.segment_file import open_segment

SEGMENTS_FOLDER = "segments"
_TRIES = 5


@dataclass(frozen=True, eq=False)
class LiveSegment:
    """A segment and which of its rows count."""

    segment: Segment
    alive: NDArray[np.bool_] | None  # [rows]; None: all of them


class Snapshot:
    """Segments and documents of one moment. What a writer commits later is not seen; close it when done."""

    entries: list[SegmentEntry]
    segments: list[LiveSegment]

    def __init__(self, folder: Path, earlier: Snapshot | None = None) -> None:
        """`earlier`: one that is not closed yet; segments that both have are not opened again."""
        self.folder = folder
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
            except MissingSegment:
                # A writer may have merged the segment away between our look at the catalog and at the file.
                catalog.close()
                if attempt + 1 == _TRIES:
                    raise
                continue
            self.catalog = catalog
            return

    def close(self) -> None:
        """Let go of the files."""
        self.segments = []
        self.catalog.close()


def load_segment(
    folder: Path, catalog: Catalog, entry: SegmentEntry, segment: Segment | None = None
) -> LiveSegment:
    """Map one segment, unless it is at hand, and mark what is deleted from it."""
    if segment is None:
        segment = open_segment(folder / SEGMENTS_FOLDER / entry.file, entry.facts)
    deleted = catalog.deleted(entry.segment)
    alive = ~np.isin(segment.row_documents, deleted) if len(deleted) else None
    return LiveSegment(segment, alive)
