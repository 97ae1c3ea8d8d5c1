"""IndexWriter: adds, updates, deletes, merges. A commit is a segment file on disk, then one transaction.

While documents are encoded, the segment before them is finished, written and committed by a thread of its
own, and the next documents of a file are read by another. Order and ordinals do not depend on that.
"""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from coil.errors import InputError
from coil.lists.precision import Precision
from coil.lists.rows import Long, Rows
from coil.lists.segment import MOST_ROWS, Segment, SegmentBuilder, merge_segments
from coil.lists.segment_file import check_segment, write_segment
from coil.storage.catalog import (
    Catalog,
    SegmentEntry,
    add_documents,
    add_segment,
    put_setting,
    remove_document,
    replace_segments,
)
from coil.storage.intake import Arrival, Consumed, Intake, OnDuplicate, PlacedDocuments, Span
from coil.storage.memory import MemoryPlan, show_size
from coil.storage.overlap import Background, read_ahead
from coil.storage.snapshot import SEGMENTS_FOLDER, load_segment
from coil.texts.values import Document
from coil.tokens.chunks import chunk_spans
from coil.vectors.encoder import Encoder

FAN = 8  # this many neighbouring segments of one size class are merged into one
WINDOW = 512  # texts encoded at a time: progress shows every other second, batches are still well filled
COMMIT_SECONDS = 20.0  # of a build's work that an interruption costs at most, however long the documents are
BUILD = "build"  # the setting that tells how far a build has come
_ROW_BYTES = 800  # the Python objects around a row's vectors
_DOCUMENT_BYTES = 500


@dataclass(frozen=True)
class Listener:
    """Who hears of progress, in the thread that called."""

    committed: Callable[[int], object] | None = None  # so many more documents are safe on disk
    encoded: Callable[[int, int], object] | None = None  # so many more are encoded; bytes of the corpus read
    left_out: Callable[[list[str]], object] | None = None  # these, if any, were empty


@dataclass
class _Pending:
    """Documents that are encoded but not yet committed."""

    builder: SegmentBuilder
    documents: list[tuple[int, Document, int]] = field(default_factory=list)
    ordinal_of: dict[str, int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)  # ordinals of this segment that a later one replaces
    emptied: list[str] = field(default_factory=list)  # ids whose document is to go: it has no text any more
    consumed: Consumed | None = None  # how far in the corpus these documents reach
    other_bytes: int = 0

    @property
    def bytes(self) -> int:
        """What all of it takes in memory."""
        return self.builder.bytes + self.other_bytes


class IndexWriter:
    """Changes an index. Its maker holds the writer lock. Only adding needs an encoder."""

    def __init__(
        self,
        folder: Path,
        catalog: Catalog,
        encoder: Encoder | None,
        precision: Precision,
        long: Long,
        plan: MemoryPlan,
    ) -> None:
        self._folder, self._catalog, self._given_encoder = folder, catalog, encoder
        self._precision, self._long, self._plan = precision, long, plan
        self._remove_strays()

    def add(
        self,
        documents: PlacedDocuments,
        on_duplicate: OnDuplicate = "error",
        listener: Listener = Listener(),  # noqa: B008  it is frozen
        commit_every: int = MOST_ROWS,
        reads_ahead: bool = False,
    ) -> int:
        """Add documents from a stream; returns how many.

        At least every `commit_every` documents there is a commit. What is committed stays, even when a later
        document is bad or the process is killed. With `reads_ahead` the stream is read in another thread.
        """
        starts = ((1, self._catalog.next_ordinal()),)
        before = Consumed(starts=starts, on_duplicate=on_duplicate)
        return self._take_in(documents, before, listener, commit_every, reads_ahead, is_build=False)

    def build(
        self,
        documents: PlacedDocuments,
        before: Consumed,
        listener: Listener,
        commit_every: int,
        reads_ahead: bool,
    ) -> int:
        """Add a whole corpus, or the rest of it after what an interrupted run had read `before`.

        How far it is, is kept with every commit; at the end the build counts as finished.
        """
        number, ordinal = before.documents - before.empty + 1, self._catalog.next_ordinal()
        runs_on = before.starts and ordinal - number == before.starts[-1][1] - before.starts[-1][0]
        if not runs_on:
            before = replace(before, starts=(*before.starts, (number, ordinal)))
        return self._take_in(documents, before, listener, commit_every, reads_ahead, is_build=True)

    def delete(self, doc_ids: Iterable[str]) -> tuple[int, list[str]]:
        """Take documents out; returns how many were there, and the ids that were not, each once."""
        deleted, missing = 0, []
        with self._catalog.change() as connection:
            for doc_id in dict.fromkeys(doc_ids):
                if remove_document(connection, doc_id):
                    deleted += 1
                else:
                    missing.append(doc_id)
        return deleted, missing

    def compact(self) -> int:
        """Rewrite segments so that nothing deleted is left and each is as full as memory allows.

        Returns how many there are.
        """
        group: list[SegmentEntry] = []
        rows = size = 0
        for entry in self._catalog.segments():
            living = entry.rows - len(self._catalog.deleted(entry.segment))
            if group and (rows + living > MOST_ROWS or size + entry.facts.bytes > self._plan.merged):
                self._merge(group)
                group, rows, size = [], 0, 0
            group.append(entry)
            rows += living
            size += entry.facts.bytes
        if group:
            self._merge(group)
        return len(self._catalog.segments())

    # ---- adding

    @property
    def _encoder(self) -> Encoder:
        assert self._given_encoder is not None, "who adds gives an encoder"
        return self._given_encoder

    def _take_in(
        self,
        documents: PlacedDocuments,
        before: Consumed,
        listener: Listener,
        commit_every: int,
        reads_ahead: bool,
        is_build: bool,
    ) -> int:
        added = 0
        with ExitStack() as stack:
            reader = Catalog.open(self._folder)  # a transaction under way on the other is not seen here
            stack.callback(reader.close)
            intake = Intake(documents, reader, self._spans, before)
            windows = self._windows(intake)
            if reads_ahead:
                windows = read_ahead(windows)
            stack.callback(windows.close)
            background = stack.enter_context(Background[list[str]]())

            def acknowledge() -> int:
                committed = background.result()
                return self._acknowledge(committed, intake, listener) if committed is not None else 0

            pending, begun = self._fresh(), time.monotonic()
            ordinal = self._catalog.next_ordinal()
            settled = True  # whether an interruption finds everything in its place
            try:
                for window in windows:
                    for arrival, rows in self._encode(window):
                        settled = False
                        crowded = len(pending.builder) + len(rows) > MOST_ROWS
                        full = crowded or pending.bytes > self._plan.collected
                        if full or len(pending.documents) >= commit_every:
                            added += acknowledge()
                            background.start(partial(self._commit, pending, is_build))
                            pending, begun = self._fresh(), time.monotonic()
                        self._put(pending, arrival, rows, ordinal, before)
                        ordinal += bool(rows)
                        settled = True
                    settled = False
                    late = is_build and time.monotonic() - begun > COMMIT_SECONDS
                    if background.finished or late:
                        added += acknowledge()
                    if late and pending.documents:
                        background.start(partial(self._commit, pending, is_build))
                        pending, begun = self._fresh(), time.monotonic()
                    settled = True
                    if listener.encoded is not None:
                        listener.encoded(len(window), window[-1].position)
            except KeyboardInterrupt:
                if is_build and settled and pending.documents:  # what is encoded is kept for --resume
                    acknowledge()
                    self._commit(pending, is_build)
                raise
            added += acknowledge()
            pending.consumed = replace(
                before, documents=intake.number, digest=intake.digest, finished=True, empty=intake.n_empty
            )
            if pending.documents:
                added += self._acknowledge(self._commit(pending, is_build), intake, listener)
            elif is_build or pending.emptied:
                with self._catalog.change() as connection:
                    self._note_progress(connection, pending, is_build)
            if intake.empty and listener.left_out is not None:
                listener.left_out(intake.empty)
        return added

    def _acknowledge(self, committed: list[str], intake: Intake, listener: Listener) -> int:
        intake.forget(committed)
        if listener.committed is not None:
            listener.committed(len(committed))
        return len(committed)

    def _fresh(self) -> _Pending:
        config = self._encoder.config
        return _Pending(SegmentBuilder(self._encoder.keys, config.n_t, config.n_c, self._precision))

    def _windows(self, arrivals: Iterable[Arrival]) -> Generator[list[Arrival]]:
        """Documents to be encoded together, bounded in texts and in characters."""
        window: list[Arrival] = []
        texts = characters = 0
        for arrival in arrivals:
            window.append(arrival)
            texts += len(arrival.spans)
            characters += len(arrival.document.text)
            if texts >= WINDOW or characters >= self._plan.window_characters:
                yield window
                window, texts, characters = [], 0, 0
        if window:
            yield window

    def _encode(self, window: list[Arrival]) -> Iterator[tuple[Arrival, Rows]]:
        """Each document with its rows."""
        vectors = self._encoder.encode_documents(
            arrival.document.text[start:end] for arrival in window for start, end in arrival.spans
        )
        for arrival in window:
            yield arrival, [(span, next(vectors)) for span in arrival.spans]

    def _spans(self, document: Document, place: Callable[[Document], str]) -> list[Span]:
        if self._long == "truncate":
            return [(0, len(document.text))]
        config = self._encoder.config
        length = config.profile.document_length
        spans = chunk_spans(self._encoder.tokenizer, document.text, length)
        size = sum({"int8": 1, "fp16": 2, "fp32": 4}[form] for form in self._precision.split("+"))
        needed = len(spans) * (length * (config.n_t * size + 10) + _ROW_BYTES)
        if len(spans) > MOST_ROWS or (len(spans) > 1 and needed > self._plan.collected):
            what = f"{place(document)}: a document of {len(document.text):,} characters"
            raise InputError(
                f"{what} makes {len(spans):,} chunks, more than the {MOST_ROWS:,} of a segment"
                if len(spans) > MOST_ROWS
                else f"{what} does not fit into memory: its vectors take up to {show_size(needed)}, where "
                f"{show_size(self._plan.budget)} in all leave room for {show_size(self._plan.collected)}",
                "split it into several documents, or allow more with --memory",
            )
        return spans

    def _put(self, pending: _Pending, arrival: Arrival, rows: Rows, ordinal: int, before: Consumed) -> None:
        document = arrival.document
        pending.consumed = replace(
            before, documents=arrival.number, digest=arrival.digest, empty=arrival.empty
        )
        earlier = pending.ordinal_of.pop(document.doc_id, None)
        if earlier is not None:
            pending.replaced.append(earlier)
        if not rows:
            pending.emptied.append(document.doc_id)
            return
        pending.ordinal_of[document.doc_id] = ordinal
        pending.documents.append((ordinal, document, sum(vectors.dropped for _, vectors in rows)))
        pending.other_bytes += sys.getsizeof(document.text) + arrival.fields_size + _DOCUMENT_BYTES
        pending.other_bytes += _ROW_BYTES * len(rows)
        for span, vectors in rows:
            pending.builder.add(ordinal, span, vectors)

    def _commit(self, pending: _Pending, is_build: bool) -> list[str]:
        """Write and name a segment; returns the ids, in the order in which they were added."""
        segment = pending.builder.finish()
        pending.builder = self._fresh().builder  # its parts are copied: let go of them before writing
        entry = self._write(segment, self._catalog.next_segment())
        del segment
        replaced = set(pending.replaced)
        living = [row for row in pending.documents if row[0] not in replaced]
        with self._catalog.change() as connection:
            self._note_progress(connection, pending, is_build)
            for _, document, _ in living:
                remove_document(connection, document.doc_id)
            add_segment(connection, entry)
            add_documents(connection, entry.segment, living)
            connection.executemany(
                "INSERT INTO deletions VALUES (?, ?)",
                [(entry.segment, ordinal) for ordinal in sorted(replaced)],
            )
        self._merge_small()
        return [document.doc_id for _, document, _ in pending.documents]

    def _note_progress(self, connection: sqlite3.Connection, pending: _Pending, is_build: bool) -> None:
        """What a commit does beside its segment, in the transaction at hand."""
        for doc_id in pending.emptied:
            remove_document(connection, doc_id)
        if is_build and pending.consumed is not None:
            put_setting(connection, BUILD, pending.consumed.to_json())

    def _write(self, segment: Segment, number: int) -> SegmentEntry:
        (self._folder / SEGMENTS_FOLDER).mkdir(exist_ok=True)
        name = f"{number:010d}.safetensors"
        facts = write_segment(self._folder / SEGMENTS_FOLDER / name, segment)
        return SegmentEntry(number, segment.n_rows, segment.n_mentions, facts)

    # ---- merging

    def _merge_small(self) -> None:
        """Merge neighbours of one size class, as a counter carries: few segments, each row moved rarely.

        Where a segment, or memory, has no room for FAN of them, as many are merged as there is room for.
        """
        while True:
            run = self._run_to_merge(self._catalog.segments())
            if len(run) < 2:
                return
            self._merge(run)

    def _run_to_merge(self, entries: list[SegmentEntry]) -> list[SegmentEntry]:
        """The last segments of one size class once they are FAN, or once no other like them has room."""
        run: list[SegmentEntry] = []
        rows = size = 0
        for entry in reversed(entries):
            if len(run) == FAN or _size_class(entry.rows) != _size_class(entries[-1].rows):
                break
            if rows + entry.rows > MOST_ROWS or size + entry.facts.bytes > self._plan.merged:
                break
            run.insert(0, entry)
            rows += entry.rows
            size += entry.facts.bytes
        last = entries[-1]
        crowded = rows + last.rows > MOST_ROWS or size + last.facts.bytes > self._plan.merged
        return run if len(run) == FAN or crowded else []

    def _merge(self, entries: list[SegmentEntry]) -> None:
        loaded = [load_segment(self._folder, self._catalog, entry) for entry in entries]
        if len(entries) == 1 and loaded[0].alive is None:
            return
        for entry in entries:  # or damage would be copied into a file that counts as whole
            check_segment(self._folder / SEGMENTS_FOLDER / entry.file, entry.facts)
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
