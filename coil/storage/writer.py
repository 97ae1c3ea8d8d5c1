"""IndexWriter: adds, updates, deletes. A commit is the files of a segment on disk, then one new manifest.

While documents are encoded, the segment before them is finished, written and committed by a thread of its
own, and the next documents of a file are read by another. Order and ordinals do not depend on that.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.errors import InputError, OrdinalsTaken, reason_of
from coil.interruptions import let_through
from coil.lists.building import SegmentBuilder, merge_segments
from coil.lists.precision import Precision
from coil.lists.rows import Long, Rows, Span, encode_spans, row_spans
from coil.lists.segment import MOST_ROWS, Segment
from coil.storage.disk import Folder
from coil.storage.document_file import stored
from coil.storage.holder import Holder
from coil.storage.intake import Arrival, Consumed, Intake, OnDuplicate, PlacedDocuments, Refused
from coil.storage.manifest import SegmentEntry
from coil.storage.memory import MemoryPlan, show_size
from coil.storage.merging import compact_segments, merge_small_segments, merge_tail
from coil.storage.numbered import Numbered, NumberedDocuments
from coil.storage.overlap import Background, read_ahead
from coil.storage.publishing import Publisher
from coil.storage.snapshot import Snapshot, living_documents
from coil.storage.stored_segment import write_stored_segment
from coil.texts.columns import Columns
from coil.texts.values import Document, EmptyDocuments
from coil.tokens.contexts import ContextRule
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder

WINDOW = 512  # texts encoded at a time, at most: batches are still well filled
LEAST_WINDOW = 8  # the first ones
WINDOW_SECONDS = 1.0  # target for a window: progress is shown and commits happen between windows
COMMIT_SECONDS = 5.0  # of work that a killed build loses at most, however long the documents are
_ROW_BYTES = 800  # the Python objects around a row's vectors
_DOCUMENT_BYTES = 500
_ID_BYTES = 100  # in lists and sets, without its characters

_log = logging.getLogger("coil.index")


@dataclass(frozen=True)
class Listener:
    """Callbacks for progress, called in the caller's thread."""

    committed: Callable[[int], object] | None = None  # so many more documents are safe on disk
    encoded: Callable[[int, int], object] | None = None  # so many more are encoded; bytes of the corpus read
    left_out: Callable[[EmptyDocuments], object] | None = None  # these, if any, were empty
    go_on: GoOn | None = None  # called before each part, even within a document
    refused: Refused | None = None  # a document with too many rows was skipped; otherwise an error


@dataclass
class _Pending:
    """Documents that are encoded but not yet committed."""

    builder: SegmentBuilder
    documents: list[tuple[int, Document, int]] = field(default_factory=list)
    ordinal_of: dict[str, int] = field(default_factory=dict)
    replaced: list[int] = field(default_factory=list)  # ordinals of this segment that a later one replaces
    emptied: list[str] = field(default_factory=list)  # ids of documents to delete: they no longer have text
    consumed: Consumed | None = None  # progress in the corpus after these documents
    next_ordinal: int | None = None  # after these documents, if their ordinals were given
    other_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Total memory in bytes."""
        return self.builder.bytes + self.other_bytes


class _Known:
    """The contents of the index at the time of each query."""

    def __init__(self, holder: Holder) -> None:
        self._holder = holder

    def ordinals_of(self, doc_ids: Sequence[str]) -> dict[str, int]:
        with self._holder.held() as current:
            return current.ordinals_of(doc_ids)

    def find(self, ordinal: int) -> Document | None:
        with self._holder.held() as current:
            return current.find(ordinal)


class IndexWriter:
    """Changes an index. Its creator holds the writer lock of `folder`. Only adding needs an encoder.

    Each commit is offered to `holder`, which has the current state of the folder when the writer starts.
    """

    def __init__(
        self,
        folder: Folder,
        holder: Holder,
        encoder: Encoder | None,
        precision: Precision,
        long: Long,
        plan: MemoryPlan,
        context: ContextRule,
    ) -> None:
        """`context`: which title and headings of a document each of its rows begins with."""
        self._folder, self._holder, self._given_encoder = folder, holder, encoder
        self._precision, self._long, self._plan, self._context = precision, long, plan, context
        self._window = LEAST_WINDOW  # texts of the next window
        self._publisher = Publisher(folder, holder)
        self._publisher.remove_strays()

    def add(
        self,
        documents: PlacedDocuments,
        on_duplicate: OnDuplicate = "error",
        listener: Listener = Listener(),  # noqa: B008  it is frozen
        commit_every: int = MOST_ROWS,
        reads_ahead: bool = False,
    ) -> int:
        """Add documents from a stream; return how many.

        There is a commit at least every `commit_every` documents. What is committed stays, even if a later
        document is invalid or the process is killed. With `reads_ahead`, another thread reads the stream.
        """
        before = Consumed(starts=((1, self._next_ordinal()),), on_duplicate=on_duplicate)
        return self._take_in(documents, before, listener, commit_every, reads_ahead)

    def put(self, numbered: Numbered, listener: Listener) -> int:
        """Add documents with given ordinals, replacing those with the same ids; return how many.

        What an earlier attempt has committed is not added again. Raises OrdinalsTaken for an ordinal that
        another document may have.
        """
        with self._holder.held() as current:
            first = current.manifest.next_ordinal
            for ordinal, document in numbered:
                if ordinal < first and not document.is_empty and current.find(ordinal) != document:
                    raise OrdinalsTaken(
                        f"the ordinal {ordinal} was given, but the next one of {current.path} is {first}",
                        "send the documents again",
                    )
        rest = [pair for pair in numbered if pair[0] >= first]
        before = Consumed(on_duplicate="update")
        added = self._take_in(NumberedDocuments(rest), before, listener, MOST_ROWS, False, numbered=True)
        return added + sum(not document.is_empty for ordinal, document in numbered if ordinal < first)

    def take(
        self,
        segments: Sequence[Segment],
        alive: Sequence[NDArray[np.bool_]],
        documents: Sequence[tuple[int, Document, int]],
        gone: Sequence[str],
        next_ordinal: int,
    ) -> None:
        """Add segments that were built elsewhere, in one commit.

        Only their living rows are added, with these documents, replacing those with the ids in `gone`.
        """
        with self._holder.held() as current:
            entries = self._publisher.without(current, gone)
            number, written = current.manifest.next_segment, list[SegmentEntry]()
            for segment in merge_segments(segments, alive) if segments else []:
                first, last = segment.row_documents[[0, -1]].tolist()
                rows = (stored(*row) for row in documents if first <= row[0] <= last)
                written.append(write_stored_segment(self._folder, number + len(written), segment, rows))
            others = {"next_ordinal": next_ordinal, "next_segment": number + len(written)}
            self._publisher.publish(current, [*entries, *written], **others)
        self._merge(merge_small_segments)

    def finish(self) -> None:
        """Merge the segments of many commits: a build commits often, and searches must not slow down."""
        self._merge(merge_tail)

    def follow(
        self, documents: PlacedDocuments, source: str, listener: Listener, commit_every: int = MOST_ROWS
    ) -> int:
        """Add new documents of a watched source, replacing those with the same ids; return how many.

        It commits as often as a build does, and keeps what was encoded before an interruption.
        """
        before = Consumed(starts=((1, self._next_ordinal()),), on_duplicate="update")
        return self._take_in(documents, before, listener, commit_every, True, source=source)

    def settle(
        self,
        gone: Sequence[str],
        taken: Mapping[str, Sequence[int]],
        columns: Mapping[str, Columns] | None = None,
        **others: Any,
    ) -> int:
        """Delete documents of watched files, and record ordinals that a watched source takes over, together.

        `columns` are those of the sources, if they have changed.

        Returns how many documents existed.
        """
        with self._holder.held() as current:
            there = list(current.places_of(gone))
            entries = self._publisher.without(current, there)
            living = np.concatenate([np.zeros(0, np.int64), *map(living_documents, current.segments)])
            watched = current.manifest.watched.assigned(living, taken).read_with(columns or {})
            if there or others or watched != current.manifest.watched:
                self._publisher.publish(current, entries, watched=watched, **others)
        return len(there)

    def build(
        self,
        documents: PlacedDocuments,
        before: Consumed,
        listener: Listener,
        commit_every: int,
        reads_ahead: bool,
    ) -> int:
        """Add a whole corpus, or the rest of it after what an interrupted run had read `before`.

        Progress is stored with every commit; at the end the build is marked as finished.
        """
        number, ordinal = before.documents - before.empty + 1, self._next_ordinal()
        runs_on = before.starts and ordinal - number == before.starts[-1][1] - before.starts[-1][0]
        if not runs_on:
            before = replace(before, starts=(*before.starts, (number, ordinal)))
        added = self._take_in(documents, before, listener, commit_every, reads_ahead, is_build=True)
        self.finish()
        return added

    def delete(self, doc_ids: Iterable[str]) -> tuple[int, list[str]]:
        """Delete documents; return how many existed, and the ids that did not, each once."""
        wanted = list(dict.fromkeys(doc_ids))
        with self._holder.held() as current:
            there = current.places_of(wanted)
            if there:
                self._publisher.publish(current, self._publisher.without(current, list(there)))
        return len(there), [doc_id for doc_id in wanted if doc_id not in there]

    def compact(self) -> int:
        """Rewrite segments without deleted rows, each as full as memory allows.

        Returns the number of segments.
        """
        return compact_segments(self._publisher, self._plan)

    # ---- adding

    @property
    def _encoder(self) -> Encoder:
        assert self._given_encoder is not None, "adding requires an encoder"
        return self._given_encoder

    def _next_ordinal(self) -> int:
        with self._holder.held() as current:
            return current.manifest.next_ordinal

    def _take_in(
        self,
        documents: PlacedDocuments,
        before: Consumed,
        listener: Listener,
        commit_every: int,
        reads_ahead: bool,
        is_build: bool = False,
        source: str | None = None,
        numbered: bool = False,
    ) -> int:
        """`source`: the watched source of the documents. `numbered`: their marks are ordinals."""
        added = 0
        commit = partial(self._commit, is_build=is_build, source=source)
        often = is_build or source is not None
        with ExitStack() as stack:
            cut = partial(self._spans, listener.go_on)
            intake = Intake(documents, _Known(self._holder), cut, before, listener.refused)
            windows = self._windows(intake)
            if reads_ahead:
                windows = read_ahead(windows)
            stack.callback(windows.close)
            background = stack.enter_context(Background[list[str]]())

            def acknowledge() -> int:
                committed = background.result()
                return self._acknowledge(committed, intake, listener) if committed is not None else 0

            pending, begun = self._fresh(), time.monotonic()
            ordinal = self._next_ordinal()
            settled = True  # whether the state is consistent if interrupted now
            try:
                for window in windows:
                    for arrival, rows in self._encode(window, listener.go_on):
                        settled = False
                        crowded = len(pending.builder) + len(rows) > MOST_ROWS
                        full = crowded or pending.bytes > self._plan.collected
                        late = often and time.monotonic() - begun > COMMIT_SECONDS
                        if full or late or len(pending.documents) >= commit_every:
                            added += acknowledge()
                            if pending.documents or pending.emptied:
                                background.start(partial(commit, pending))
                                pending = self._fresh()
                            begun = time.monotonic()
                        if numbered:
                            ordinal, pending.next_ordinal = arrival.mark, arrival.mark + 1
                        self._put(pending, arrival, rows, ordinal, before)
                        ordinal += bool(rows)
                        settled = True
                    settled = False
                    if background.finished:
                        added += acknowledge()
                    settled = True
                    if listener.encoded is not None:
                        listener.encoded(len(window), window[-1].position)
            except KeyboardInterrupt:
                if often and settled and pending.documents:  # what is encoded is kept
                    acknowledge()
                    commit(pending)
                raise
            added += acknowledge()
            pending.consumed = replace(
                before, documents=intake.number, digest=intake.digest, finished=True, empty=intake.n_empty
            )
            if is_build or pending.documents or pending.emptied:
                added += self._acknowledge(commit(pending), intake, listener)
            if intake.empty and listener.left_out is not None:
                listener.left_out(intake.empty)
        return added

    def _acknowledge(self, committed: list[str], intake: Intake, listener: Listener) -> int:
        intake.forget(committed)
        if committed and listener.committed is not None:
            listener.committed(len(committed))
        return len(committed)

    def _fresh(self) -> _Pending:
        config = self._encoder.config
        return _Pending(SegmentBuilder(config.profile, config.n_t, config.n_c, self._precision))

    def _windows(self, arrivals: Iterable[Arrival]) -> Generator[list[Arrival]]:
        """Documents to be encoded together, bounded in texts, bytes (no fewer than characters) and time."""
        window: list[Arrival] = []
        texts = size = 0
        for arrival in arrivals:
            window.append(arrival)
            texts += len(arrival.spans)
            size += arrival.size
            if texts >= min(self._window, WINDOW) or size >= self._plan.window_characters:
                yield window
                window, texts, size = [], 0, 0
        if window:
            yield window

    def _encode(self, window: list[Arrival], go_on: GoOn | None) -> Iterator[tuple[Arrival, Rows]]:
        """Encode each document into its rows; the time taken determines the size of the next window."""
        given = ((arrival, arrival.document, arrival.spans) for arrival in window)
        encoded = encode_spans(self._encoder, given, self._context, go_on)
        seconds = 0.0
        while True:
            began = time.monotonic()
            found = next(encoded, None)
            seconds += time.monotonic() - began
            if found is None:
                break
            yield found
        texts = sum(len(arrival.spans) for arrival in window)
        self._window = max(LEAST_WINDOW, int(texts * WINDOW_SECONDS / max(seconds, 1e-6)))

    def _spans(self, go_on: GoOn | None, document: Document, place: Callable[[Document], str]) -> list[Span]:
        spans = row_spans(self._encoder, document, self._long, self._context, place, go_on)
        config = self._encoder.config
        size = sum({"int8": 1, "fp16": 2, "fp32": 4}[form] for form in self._precision.split("+"))
        needed = len(spans) * (config.profile.document_length * (config.n_t * size + 10) + _ROW_BYTES)
        if len(spans) > 1 and needed > self._plan.collected:
            raise InputError(
                f"{place(document)}: a document of {len(document.text):,} characters needs too much memory: "
                f"its vectors take up to {show_size(needed)}, but the limit of "
                f"{show_size(self._plan.budget)} leaves {show_size(self._plan.collected)} for them",
                "split it into several documents, or raise --memory",
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
            if before.on_duplicate == "update":  # otherwise the index has no document with this id
                pending.emptied.append(document.doc_id)
                pending.other_bytes += sys.getsizeof(document.doc_id) + _ID_BYTES
            return
        pending.ordinal_of[document.doc_id] = ordinal
        pending.documents.append((ordinal, document, sum(vectors.dropped for _, vectors in rows)))
        pending.other_bytes += arrival.size + _DOCUMENT_BYTES
        pending.other_bytes += _ROW_BYTES * len(rows)
        for span, vectors in rows:
            pending.builder.add(ordinal, span, vectors)

    def _commit(self, pending: _Pending, is_build: bool, source: str | None) -> list[str]:
        """Write a segment and publish it; return the ids in the order in which they were added.

        If a merge fails after that, it is only a warning: what was added is safe.
        """
        others: dict[str, Any] = {}
        if is_build and pending.consumed is not None:
            others["build"] = pending.consumed.to_json()
        if pending.next_ordinal is not None:
            others["next_ordinal"] = pending.next_ordinal
        elif pending.documents:
            others["next_ordinal"] = pending.documents[-1][0] + 1
        replaced = set(pending.replaced)
        living = [row for row in pending.documents if row[0] not in replaced]
        with self._holder.held() as current:
            gone = [document.doc_id for _, document, _ in living] + pending.emptied
            entries = self._publisher.without(current, gone)
            if living:
                entries.append(self._write(current, pending, living, replaced))
                others["next_segment"] = current.manifest.next_segment + 1
            if living and source is not None:
                first, last = pending.documents[0][0], pending.documents[-1][0]
                others["watched"] = current.manifest.watched.added(source, first, last + 1)
            self._publisher.publish(current, entries, **others)
        self._merge(merge_small_segments)
        return [document.doc_id for _, document, _ in pending.documents]

    def _merge(self, merge: Callable[[Publisher, int], None]) -> None:
        try:
            merge(self._publisher, self._plan.merged)
        except Exception as error:  # of any kind: the commit itself has succeeded
            let_through(error)
            why = reason_of(error)
            _log.warning("the documents are in the index, but its segments could not be merged: %s", why)

    def _write(
        self,
        current: Snapshot,
        pending: _Pending,
        living: list[tuple[int, Document, int]],
        replaced: set[int],
    ) -> SegmentEntry:
        segment = pending.builder.finish()
        pending.builder = self._fresh().builder  # its parts are copied: free them before writing
        if replaced:  # by a later document of the same commit: it was never in the index
            [segment] = merge_segments([segment], [~is_among(segment.row_documents, sorted(replaced))])
        rows = (stored(ordinal, document, dropped) for ordinal, document, dropped in living)
        return write_stored_segment(self._folder, current.manifest.next_segment, segment, rows)
