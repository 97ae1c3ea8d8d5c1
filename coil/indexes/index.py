"""`coil.create` and `coil.open`: an index on disk that can be searched, explained and changed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from coil.errors import CoilError, InputError, MissingIndex, OptionMismatch, OutputError, how_many
from coil.indexes.reader import IndexReader
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.lists.segment import MOST_ROWS
from coil.storage.catalog import Catalog, catalog_files
from coil.storage.intake import Consumed, OnDuplicate
from coil.storage.lock import LOCK_FILE, writer_lock
from coil.storage.memory import MemoryPlan, default_budget, plan_memory, resident_bytes
from coil.storage.snapshot import Snapshot
from coil.storage.writer import BUILD, IndexWriter, Listener
from coil.texts.given import GivenDocuments, Texts
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

Encoded = Callable[[int, int], object]
LeftOut = Callable[[list[str]], object]

_log = logging.getLogger("coil.index")


class Index(IndexReader):
    """An index. Reads see one consistent state; own changes are seen at once, others' after `refresh`.

    Threads may read one index at the same time, also while one of them changes or refreshes it.
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
        """`memory`: bytes that the process may take while it changes the index."""
        super().__init__(folder, encoder, threads, device, model)
        self._memory = memory
        self._plan: MemoryPlan | None = None

    def add(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate = "error",
        committed: Callable[[int], object] | None = None,
        commit_every: int = MOST_ROWS,
        encoded: Encoded | None = None,
        left_out: LeftOut | None = None,
    ) -> int:
        """Add documents: `Document`s or dicts with an id and a text, from any iterable; returns how many.

        A document without text is left out, and with on_duplicate "update" one of its id that is there goes:
        it could never be found for its words. `left_out` hears the ids of all such, or else the logger
        `coil.index` warns of them.

        `committed` hears how many more are safe on disk, at least every `commit_every` documents; `encoded`
        hears how many more are encoded, and how many bytes of the corpus, if it is files, are read.
        """
        _check_choice("on_duplicate", on_duplicate, OnDuplicate)
        placed = GivenDocuments(documents)
        listener = Listener(self._seen_at_once(committed), encoded, left_out or _warn_of_empty)
        with self._writer(self.encoder) as writer:
            return writer.add(placed, on_duplicate, listener, commit_every, placed.are_files)

    def build(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate,
        encoded: Encoded | None,
        commit_every: int,
        left_out: LeftOut | None = None,
    ) -> int:
        """Add a whole corpus, or what an interrupted build of it has left; returns how many were added."""
        placed = GivenDocuments(documents)
        state = self._settings[BUILD]
        with self._writer(self.encoder) as writer:
            added = writer.build(
                placed,
                replace(Consumed.from_json(state), on_duplicate=on_duplicate),
                Listener(self._seen_at_once(None), encoded, left_out or _warn_of_empty),
                commit_every,
                placed.are_files,
            )
        self.fold()
        return added

    def _seen_at_once(self, committed: Callable[[int], object] | None) -> Callable[[int], None]:
        """Look anew after each commit but the first (after the last there is a look anyway).

        A snapshot that stays would make the catalog's write-ahead file grow for as long as documents come in.
        """
        commits = 0

        def hear(count: int) -> None:
            nonlocal commits
            commits += 1
            if commits > 1:
                self.fold()
            if committed is not None:
                committed(count)

        return hear

    def fold(self, shrink: bool = False) -> None:
        """Put the catalog into one file, as far as other readers allow; without empty pages, if asked."""
        self._snapshot.close()
        try:
            catalog = Catalog.open(self.folder)
            if shrink:
                catalog.shrink()
            catalog.fold()
            catalog.close()
        finally:
            self._snapshot = Snapshot(self.folder)

    def update(self, documents: Texts, left_out: LeftOut | None = None) -> int:
        """Add documents; one whose id is there already takes its place."""
        return self.add(documents, on_duplicate="update", left_out=left_out)

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Take documents out; returns how many of the ids were there, and `missing` hears of those that were
        not, if there are any."""
        if isinstance(doc_ids, str):
            raise InputError("delete takes a list of ids, not one text", f"write delete([{doc_ids!r}])")
        with self._writer() as writer:
            deleted, not_there = writer.delete(doc_ids)
        if not_there and missing is not None:
            missing(not_there)
        return deleted

    def compact(self) -> int:
        """Rewrite the index without what was deleted; returns the number of segments left."""
        with self._writer() as writer:
            segments = writer.compact()
        self.fold(shrink=True)
        return segments

    @contextmanager
    def _writer(self, encoder: Encoder | None = None) -> Iterator[IndexWriter]:
        """`encoder`: for documents that come in; deleting and merging need no model."""
        plan = self._plan
        if plan is None:
            plan = _plan(encoder, self._memory, int(self._settings["config"]["n_t"]))
        if encoder is not None:  # a plan without a model in memory would be too bold for one with it
            self._plan = plan
        with writer_lock(self.folder):
            catalog = Catalog.open(self.folder)
            try:
                yield IndexWriter(
                    self.folder,
                    catalog,
                    encoder,
                    self._settings["precision"],
                    self._settings["long"],
                    plan,
                )
            except BaseException:
                with suppress(CoilError):  # the first error is the one to tell; the old snapshot still serves
                    self.refresh()
                raise
            finally:
                catalog.close()
        self.refresh()


def tell_left_out(empty: Sequence[str]) -> str:
    """That documents without text were left out, with the first of their ids."""
    verbs = "is empty and was" if len(empty) == 1 else "are empty and were"
    shown = ", ".join(repr(doc_id[:80]) for doc_id in empty[:3]) + (", ..." if len(empty) > 3 else "")
    return f"{how_many(len(empty), 'document')} {verbs} left out: {shown}"


def _warn_of_empty(empty: list[str]) -> None:
    _log.warning("%s", tell_left_out(empty))


def create(
    path: str | Path,
    model: str | Path | None = None,
    precision: Precision = "int8",
    long: Long = "chunk",
    encoder: Encoder | None = None,
    memory: int | None = None,
    build_with: OnDuplicate | None = None,
) -> Index:
    """Make a new, empty index. `model` None is the bundled one; `long` "truncate" cuts long documents off.

    `memory`: bytes that the process may take while it changes the index. `build_with` marks the index as one
    whose building is not finished, and says what is done with duplicates.
    """
    folder = Path(path)
    _check_choice("precision", precision, Precision)
    _check_choice("long", long, Long)
    check_free(folder)
    encoder = encoder if encoder is not None else OnnxEncoder(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}", "choose another place") from error
    settings = {
        "model": str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model,
        "fingerprint": encoder.fingerprint,
        "config": encoder.config.to_json(),
        "precision": precision,
        "long": long,
    }
    if build_with is not None:
        settings[BUILD] = Consumed(on_duplicate=build_with).to_json()
    with writer_lock(folder):
        check_free(folder)
        for left in catalog_files(folder):  # of a process that was killed before it had made an index
            left.unlink()
        try:
            Catalog.create(folder, settings).close()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Index(folder, encoder, memory)


def open_index(
    path: str | Path,
    encoder: Encoder | None = None,
    memory: int | None = None,
    threads: int = 1,
    device: str | None = None,
    model: str | Path | None = None,
) -> Index:
    """Open an index that is there, to search and to change it.

    `model` says where the model that it was made with is now, if that has moved. `memory` bounds the process
    while it changes the index, in bytes. `threads` share a search over many documents; `device`, such as
    "cuda", scores with PyTorch there.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise MissingIndex(f"there is no index at {folder}", "make one with `coil index` or coil.create")
    return Index(folder, encoder, memory, threads, device, model)


def is_index(folder: Path) -> bool:
    """Whether there is an index, whole or damaged; what a kill while making one leaves is none."""
    return folder.is_dir() and any(catalog_files(folder)) and not Catalog.is_bare(folder)


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise OptionMismatch(f"{name} is {value!r}", f"choose one of {', '.join(get_args(choices))}")


def check_free(folder: Path) -> None:
    """Refuse a place where something is already."""
    taken = folder.exists() and not folder.is_dir()
    if folder.is_dir():
        left = {LOCK_FILE, *(path.name for path in catalog_files(folder))}
        taken = is_index(folder) or any(path.name not in left for path in folder.iterdir())
    if taken:
        raise OutputError(f"{folder} exists already", "open it with coil.open, or choose another name")


def _plan(encoder: Encoder | None, memory: int | None, n_t: int) -> MemoryPlan:
    if memory is None:  # a program that is large already has its reasons
        memory = max(default_budget(), resident_bytes() + (default_budget() // 2))
    elif encoder is not None:  # the runtime's own memory grows with the first long text
        for _ in encoder.encode_documents(["a " * encoder.config.profile.document_length]):
            pass
    return plan_memory(memory, resident_bytes(), n_t)
