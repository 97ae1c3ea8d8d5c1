"""Index: an index on disk that can be searched, explained and changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

from coil.errors import (
    CoilError,
    InputError,
    OptionMismatch,
    OutputError,
    ReplacedIndex,
    how_many,
    tell_added,
)
from coil.indexes.model import IndexModel
from coil.indexes.reader import IndexReader
from coil.indexes.settings import open_holder
from coil.interruptions import let_through
from coil.lists.segment import MOST_ROWS
from coil.storage.disk import Folder
from coil.storage.holder import Holder, newer_state
from coil.storage.intake import Consumed, OnDuplicate
from coil.storage.lock import LOCK_FILE, WriterLock, writer_lock
from coil.storage.manifest import MANIFEST_FILE, SEGMENTS_FOLDER, is_segment_file, read_manifest
from coil.storage.memory import (
    MOST_THREADS,
    WATCHED_SHARE,
    MemoryPlan,
    default_budget,
    plan_memory,
    resident_bytes,
)
from coil.storage.numbered import Numbered
from coil.storage.writer import IndexWriter, Listener
from coil.texts.columns import name_columns
from coil.texts.given import GivenDocuments, Texts
from coil.texts.questions import check_callbacks, check_device, check_ids, show
from coil.texts.values import EmptyDocuments
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder
from coil.vectors.parallel import MOST_ENCODING, usable_cores

T = TypeVar("T")
Encoded = Callable[[int, int], object]
LeftOut = Callable[[EmptyDocuments], object]

_log = logging.getLogger("coil.index")


class Index(IndexReader):
    """An index. Reads see one consistent state, including own changes; changes by others are seen after
    `refresh`.

    Threads may read an index concurrently, even while one of them changes or refreshes it.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder | None = None,
        memory: int | None = None,
        threads: int = 1,
        device: str | None = None,
        model: str | Path | None = None,
    ) -> None:
        """`memory`: bytes that the process may use while it changes the index."""
        check_memory(memory)
        check_number("threads", threads, MOST_THREADS)
        check_device(device)
        folder = folder.absolute()  # the working directory may change
        holder = open_holder(folder)
        with holder.held() as snapshot:
            made_with = IndexModel(folder, snapshot.manifest.settings, encoder, model)
        super().__init__(folder, holder, made_with, threads, device)
        self._memory = memory
        self._plan: MemoryPlan | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process.

        That opens the index by its path in its current state, and loads the model by its name or folder.
        """
        return Index, (self.folder, None, self._memory, self._threads, self._device, self._model.found_at)

    def add(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate = "error",
        committed: Callable[[int], object] | None = None,
        commit_every: int = MOST_ROWS,
        encoded: Encoded | None = None,
        left_out: LeftOut | None = None,
        go_on: GoOn | None = None,
        id_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        title_column: str | None = None,
    ) -> int:
        """Add documents: `Document`s or dicts with an id and a text, from any iterable. Returns the number
        added.

        Tables are read row by row: a pandas or polars DataFrame, a pyarrow Table or RecordBatch, a
        `datasets.Dataset`. The column arguments name the id, text and title of rows and dicts, if they are
        not under the usual keys; several text columns are joined.

        A document without text is not indexed, because no word could ever find it. With on_duplicate
        "update", an existing document with its id is removed. `left_out` is called with the ids of such
        documents; without it, the logger `coil.index` warns of them. Of ids that take more than 16 MiB, only
        the first are kept: `total` of the list counts all.

        `committed` is called with the number of further documents that are safe on disk, at least every
        `commit_every` documents; `encoded` with the number of further encoded documents, and of the bytes
        read so far if the corpus consists of files.

        `go_on` is called every few seconds, even within a long document. An exception from it ends the call;
        whatever is not committed by then is not added. If a later document is invalid, committed documents
        stay, and the error says how many; up to 65,536 documents are usually one commit.
        """
        check_choice("on_duplicate", on_duplicate, OnDuplicate)
        check_number("commit_every", commit_every, 1 << 62)
        check_callbacks(committed=committed, encoded=encoded, left_out=left_out, go_on=go_on)
        placed = GivenDocuments(documents, name_columns(id_column, text_column, title_column))
        found: list[EmptyDocuments] = []
        listener = Listener(committed, encoded, found.append, go_on)
        self._check_whole()
        encoder = self.encoder
        with writer_lock(self.folder) as lock, self._writer(lock, encoder) as writer:
            before = self._next_ordinal()
            try:
                added = writer.add(placed, on_duplicate, listener, commit_every, placed.are_files)
            except CoilError as error:
                tell_added(error, self._next_ordinal() - before)
                raise
        for empty in found:  # the callback may change the index, so the change is over
            (left_out or warn_of_empty)(empty)
        return added

    def put(self, numbered: Numbered, left_out: LeftOut | None = None, go_on: GoOn | None = None) -> int:
        """Add documents to a shard with ordinals of the whole index, replacing those with the same ids.

        Returns how many. A second attempt adds only what the first did not.
        """
        listener = Listener(None, None, left_out or warn_of_empty, go_on)
        encoder = self.encoder
        with writer_lock(self.folder) as lock, self._writer(lock, encoder) as writer:
            return writer.put(numbered, listener)

    def _check_whole(self) -> None:
        """Refuse to add documents to a single shard: the sharded index would not know their ordinals."""
        if (label := self.shard) is not None:
            raise OutputError(
                f"{self.folder} is {label} of a sharded index; only the sharded index knows which "
                "shard a document belongs to",
                "send the documents to `coil serve --ray`, which serves the sharded index",
            )

    def _next_ordinal(self) -> int:
        with self._holder.held() as snapshot:
            return snapshot.manifest.next_ordinal

    def build(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate,
        encoded: Encoded | None,
        commit_every: int,
        left_out: LeftOut | None = None,
    ) -> int:
        """Add a whole corpus, or the rest of it after an interrupted build. Returns the number added."""
        placed = GivenDocuments(documents)
        self._check_whole()
        encoder = self.encoder
        with writer_lock(self.folder) as lock, self._writer(lock, encoder) as writer:
            state = self.build_state()
            return writer.build(
                placed,
                replace(
                    state if state is not None else Consumed(),
                    on_duplicate=on_duplicate,
                    sources=placed.sources,
                ),
                Listener(None, encoded, left_out or warn_of_empty),
                commit_every,
                placed.are_files,
            )

    def update(
        self,
        documents: Texts,
        left_out: LeftOut | None = None,
        go_on: GoOn | None = None,
        id_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        title_column: str | None = None,
    ) -> int:
        """Add documents; a document whose id exists replaces the existing one.

        A document without text removes the existing one, and is not indexed.
        """
        return self.add(
            documents,
            on_duplicate="update",
            left_out=left_out,
            go_on=go_on,
            id_column=id_column,
            text_column=text_column,
            title_column=title_column,
        )

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Delete documents. Returns how many existed; `missing` is called with the ids that did not, if
        any."""
        check_callbacks(missing=missing)
        wanted = check_ids(doc_ids)
        with writer_lock(self.folder) as lock, self._writer(lock) as writer:
            deleted, not_there = writer.delete(wanted)
        if not_there and missing is not None:
            missing(not_there)
        return deleted

    def compact(self) -> int:
        """Rewrite the index without deleted documents. Returns the number of segments."""
        with writer_lock(self.folder) as lock, self._writer(lock) as writer:
            return writer.compact()

    def discard_if_empty(self) -> bool:
        """Close and remove the index if it is empty and still the folder that was opened."""
        with self._holder.held() as current:
            mine, index_id = current.identity, current.manifest.index_id
        self.close()
        try:
            with writer_lock(self.folder) as lock, lock.held():
                folder = lock.folder
                found = read_manifest(folder)  # others may have added documents in the meantime
                if folder.identity != mine or found.index_id != index_id or found.n_documents:
                    return False
                for name in filter(is_segment_file, folder.names(SEGMENTS_FOLDER)):
                    folder.discard(f"{SEGMENTS_FOLDER}/{name}")
                for name in (MANIFEST_FILE, LOCK_FILE):
                    folder.discard(name)
            (self.folder / SEGMENTS_FOLDER).rmdir()
        except CoilError:
            return False
        except OSError as error:  # there was no such folder yet
            let_through(error)
        try:
            self.folder.rmdir()  # only if it is empty
        except OSError as error:
            let_through(error)
            return False
        return True

    def following(self, follow: Callable[[IndexWriter, Holder], T]) -> T:
        """Make the changes found by a watch: `follow` gets a writer, and the holder of what it changes."""
        self._check_whole()
        encoder = self.encoder
        with writer_lock(self.folder) as lock, self._writer(lock, encoder, WATCHED_SHARE) as writer:
            return follow(writer, self._holder)

    @contextmanager
    def taking(self) -> Iterator[IndexWriter]:
        """A writer for segments that were built elsewhere; it needs no model."""
        with writer_lock(self.folder) as lock, self._writer(lock) as writer:
            yield writer

    @contextmanager
    def _writer(
        self, lock: WriterLock, encoder: Encoder | None = None, kept: float = 0.0
    ) -> Iterator[IndexWriter]:
        """`encoder`: for incoming documents; deleting and merging need no model. `kept`: the share of the
        memory that is used for something else."""
        plan = self._plan
        if plan is None:
            plan = _plan(encoder, self._memory, int(self._settings["config"]["n_t"]), kept)
        if encoder is not None:  # a plan made before the model is in memory would allow too much
            self._plan = plan
        with lock.held():
            self._catch_up(lock.folder)
            settings = self._settings
            with self._holder.held() as current:
                context = current.context
            precision, long = settings["precision"], settings["long"]
            yield IndexWriter(lock.folder, self._holder, encoder, precision, long, plan, context)

    def _catch_up(self, folder: Folder) -> None:
        """Pick up what others have committed before writing anything."""
        with self._holder.held() as current:
            try:
                newer = newer_state(folder, current)
            except ReplacedIndex as error:
                raise ReplacedIndex(
                    f"{error.reason}; nothing was written", "reopen it, and write to the intended index"
                ) from error
            if newer is not None:
                self._holder.offer(newer)


def tell_left_out(empty: EmptyDocuments) -> str:
    """A message that documents without text are not in the index, with the first of their ids.

    In an update, the earlier documents with these ids have been removed.
    """
    verbs = "is empty and was" if empty.total == 1 else "are empty and were"
    shown = ", ".join(repr(doc_id[:80]) for doc_id in empty[:3]) + (", ..." if empty.total > 3 else "")
    return f"{how_many(empty.total, 'document')} {verbs} not indexed: {shown}"


def warn_of_empty(empty: EmptyDocuments) -> None:
    """Log a warning for callers without `left_out`."""
    _log.warning("%s", tell_left_out(empty))


def check_choice(name: str, value: object, choices: Any) -> None:
    if not isinstance(value, str) or value not in get_args(choices):
        raise OptionMismatch(f"{name} is {show(value)}", f"choose one of {', '.join(get_args(choices))}")


def check_number(name: str, value: object, most: int) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise InputError(
            f"{name} is {show(value)}; expected a whole number from 1 to {most:,}", f"change {name}"
        )


def check_memory(memory: object) -> None:
    """Validate the number of bytes that a process may use; None is valid."""
    if memory is not None:
        check_number("memory", memory, 1 << 62)


def _plan(encoder: Encoder | None, memory: int | None, n_t: int, kept: float) -> MemoryPlan:
    if memory is None:  # no limit given: a large process is assumed to be intended
        usual = default_budget()
        plan = plan_memory(usual, min(resident_bytes(), usual // 2), n_t)
        return replace(plan, rewritten=MemoryPlan.rewritten)
    if encoder is not None:  # the runtime's own memory grows with the first long text on each core
        longest = "a " * encoder.config.profile.document_length
        for _ in encoder.encode_documents([longest] * min(usable_cores(), MOST_ENCODING)):
            pass
    return plan_memory(memory, resident_bytes(), n_t, kept)
