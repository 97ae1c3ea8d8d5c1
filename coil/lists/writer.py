"""IndexWriter: adds, updates, deletes, merges. A commit is a segment file on disk, then one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from coil.errors import DuplicateId
from coil.lists.catalog import (
    Catalog,
    SegmentEntry,
    add_documents,
    add_segment,
    remove_document,
    replace_segments,
)
from coil.lists.precision import Precision
from coil.lists.rows import Long, Rows, encode_rows
from coil.lists.segment import MOST_ROWS, Segment, SegmentBuilder, merge_segments
from coil.lists.segment_file import write_segment
from coil.lists.snapshot import SEGMENTS_FOLDER, load_segment
from coil.texts.values import Document
from coil.vectors.encoder import Encoder

OnDuplicate = Literal["error", "update", "skip"]

FAN = 8  # this many neighbouring segments of one size class are merged into one
FLUSH_BYTES = 256 << 20  # of stored vectors held in memory before a segment is written


@dataclass
class _Pending:
    """Documents that are encoded but not yet committed."""

    builder: SegmentBuilder
    documents: list[tuple[int, Document, int]] = field(default_factory=list)
    ordinal_of: dict[str, int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)  # ordinals of this segment that a later one replaces


class IndexWriter:
    """Changes an index. Its maker holds the writer lock."""

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        encoder: Encoder,
        precision: Precision,
        long: Long = "chunk",
        flush_bytes: int = FLUSH_BYTES,
    ) -> None:
        self._folder, self._catalog, self._encoder = folder, catalog, encoder
        self._precision, self._long, self._flush_bytes = precision, long, flush_bytes
        self._remove_strays()

    def add(
        self,
        documents: Iterable[Document],
        on_duplicate: OnDuplicate = "error",
        committed: Callable[[int], object] | None = None,
        commit_every: int = MOST_ROWS,
    ) -> int:
        """Add documents from a stream; returns how many. `committed` hears how many more are safe on disk.

        At least every `commit_every` documents there is a commit. What is committed stays, even when a later
        document is bad or the process is killed.
        """
        pending = self._fresh()
        added = 0
        admitted = self._admitted(documents, on_duplicate)
        for document, rows in encode_rows(self._encoder, admitted, self._long):
            full = len(pending.builder) + len(rows) > MOST_ROWS or pending.builder.bytes > self._flush_bytes
            if full or len(pending.documents) >= commit_every:
                added += self._commit(pending, committed)
                pending = self._fresh()
            self._put(pending, document, rows)
        return added + self._commit(pending, committed)

    def delete(self, doc_ids: Iterable[str]) -> int:
        """Take documents out; returns how many were there."""
        with self._catalog.change() as connection:
            return sum(remove_document(connection, doc_id) for doc_id in doc_ids)

    def compact(self) -> int:
        """Rewrite segments so that nothing deleted is left and each is full; returns how many there are."""
        entries = self._catalog.segments()
        group: list[SegmentEntry] = []
        rows = 0
        for entry in entries:
            living = entry.rows - len(self._catalog.deleted(entry.segment))
            if group and rows + living > MOST_ROWS:
                self._merge(group)
                group, rows = [], 0
            group.append(entry)
            rows += living
        if group:
            self._merge(group)
        return len(self._catalog.segments())

    # ---- adding

    def _fresh(self) -> _Pending:
        config = self._encoder.config
        return _Pending(SegmentBuilder(self._encoder.keys, config.n_t, config.n_c, self._precision))

    def _admitted(self, documents: Iterable[Document], on_duplicate: OnDuplicate) -> Iterator[Document]:
        """The documents to add, with ids checked against the index and against each other."""
        known: dict[str, str] = {}
        for number, document in enumerate(documents, start=1):
            here = str(getattr(documents, "place", f"document {number} of the input"))
            first = known.get(document.doc_id)
            if first is None and self._catalog.ordinal_of(document.doc_id) is not None:
                first = "the index"
            if first is not None and on_duplicate == "error":
                raise DuplicateId(document.doc_id, first, here)
            if first is not None and on_duplicate == "skip":
                continue
            known.setdefault(document.doc_id, here)
            yield document

    def _put(self, pending: _Pending, document: Document, rows: Rows) -> None:
        ordinal = self._catalog.next_ordinal() + len(pending.documents)
        earlier = pending.ordinal_of.get(document.doc_id)
        if earlier is not None:
            pending.replaced.append(earlier)
        pending.ordinal_of[document.doc_id] = ordinal
        pending.documents.append((ordinal, document, sum(vectors.dropped for _, vectors in rows)))
        for span, vectors in rows:
            pending.builder.add(ordinal, span, vectors)

    def _commit(self, pending: _Pending, committed: Callable[[int], object] | None) -> int:
        if not pending.documents:
            return 0
        entry = self._write(pending.builder.finish(), self._catalog.next_segment())
        replaced = set(pending.replaced)
        living = [row for row in pending.documents if row[0] not in replaced]
        with self._catalog.change() as connection:
            for _, document, _ in living:
                remove_document(connection, document.doc_id)
            add_segment(connection, entry)
            add_documents(connection, entry.segment, living)
            connection.executemany(
                "INSERT INTO deletions VALUES (?, ?)",
                [(entry.segment, ordinal) for ordinal in sorted(replaced)],
            )
        if committed is not None:
            committed(len(pending.documents))
        self._merge_small()
        return len(pending.documents)

    def _write(self, segment: Segment, number: int) -> SegmentEntry:
        (self._folder / SEGMENTS_FOLDER).mkdir(exist_ok=True)
        name = f"{number:010d}.safetensors"
        facts = write_segment(self._folder / SEGMENTS_FOLDER / name, segment)
        return SegmentEntry(number, segment.n_rows, segment.n_mentions, facts)

    # ---- merging

    def _merge_small(self) -> None:
        """Merge neighbours of one size class, as a counter carries: few segments, each row moved rarely."""
        while True:
            entries = self._catalog.segments()
            last = entries[-FAN:]
            classes = {_size_class(entry.rows) for entry in last}
            if len(last) < FAN or len(classes) > 1 or sum(entry.rows for entry in last) > MOST_ROWS:
                return
            self._merge(last)

    def _merge(self, entries: list[SegmentEntry]) -> None:
        loaded = [load_segment(self._folder, self._catalog, entry) for entry in entries]
        if len(entries) == 1 and loaded[0].alive is None:
            return
        alive = [
            live.alive if live.alive is not None else np.ones(live.segment.n_rows, dtype=bool)
            for live in loaded
        ]
        merged = merge_segments([live.segment for live in loaded], alive)
        number = self._catalog.next_segment()
        written = [
            (self._write(segment, number + i), segment.row_documents) for i, segment in enumerate(merged)
        ]
        with self._catalog.change() as connection:
            replace_segments(connection, [entry.segment for entry in entries], written)
        for entry in entries:  # readers that have them mapped keep them
            (self._folder / SEGMENTS_FOLDER / entry.file).unlink(missing_ok=True)

    def _remove_strays(self) -> None:
        """Files of a writer that was killed before it could name them in the catalog."""
        named = {entry.file for entry in self._catalog.segments()}
        for path in (self._folder / SEGMENTS_FOLDER).glob("*"):
            if path.name not in named:
                path.unlink(missing_ok=True)


def _size_class(rows: int) -> int:
    """0 below FAN rows, 1 below FAN², and so on."""
    size = 0
    while rows >= FAN:
        rows //= FAN
        size += 1
    return size
