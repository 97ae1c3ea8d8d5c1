"""ServedIndex: an index, sharded or not, with many readers and one writer, while other processes commit."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from coil.errors import (
    CoilError,
    DamagedSegment,
    IndexLocked,
    IndexProblem,
    InputError,
    MissingIndex,
    MissingSegment,
    OptionMismatch,
    OutputError,
    PartlyChanged,
    ReplacedIndex,
    Unconfirmed,
    UnfinishedBuild,
    reason_of,
)
from coil.indexes.index import Index
from coil.indexes.opening import open_index
from coil.service.problems import busy, unwritable
from coil.service.readable import Changeable, Readable, Served
from coil.service.write_places import WritePlaces
from coil.shards.local import LocalShards
from coil.shards.opening import is_whole, open_sharded
from coil.shards.places import find_place
from coil.shards.whole import WHOLE_FILE
from coil.storage.manifest import SEGMENTS_FOLDER
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

_log = logging.getLogger("coil.service")
_File = tuple[str, int, int, int, int]
"""name, inode, bytes, time of the last change"""
Servable: TypeAlias = Index | LocalShards
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


class ServedIndex:
    """One index by its name."""

    def __init__(
        self, name: str, index: Servable, writes_waiting: int, open_again: Callable[[Encoder], Servable]
    ) -> None:
        """`open_again` opens the index that is now in its place, which must use the same model."""
        self.name, self.index, self._open_again = name, index, open_again
        self._documents = len(index)
        self.trouble = ""  # why others' commits cannot be read at the moment, in words fit for a client
        self.damage = ""  # why queries fail, in such words
        self._incomplete = False  # whether a file is missing that we have open: restarting would fail
        self._damaged_files: frozenset[_File] = frozenset()
        self._looking = threading.Lock()
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"write-{name}")
        self._places = WritePlaces(writes_waiting)

    @contextmanager
    def reading(self) -> Iterator[Readable]:
        """The current state of the index, including commits of other processes, for as long as it is needed.

        Damage that its reader finds is recorded, so that the server reports that it is not ready.
        """
        with ExitStack() as stack:
            with self._looking:  # or another thread could close the index we have just found
                self._look()
                index = self.index
                pin: AbstractContextManager[Readable] = index.pinned()
                pinned = stack.enter_context(pin)
                version = pinned.version
            try:
                yield pinned
            except DamagedSegment as error:
                with self._looking:
                    if self.index is index and _version_of(index) in (version, None):
                        self._remember(error)
                raise

    def count_documents(self) -> int:
        """The number of documents; those of the last state that could be read if this one is damaged."""
        with suppress(CoilError), self.reading() as index:
            self._documents = len(index)
        return self._documents

    def place_to_write(self) -> AbstractContextManager[None]:
        """One of the limited places for changes."""
        return self._places.take()

    def write(self, change: Callable[[Changeable], Any]) -> Future[Any]:
        """Queue a change behind those waiting; it is searchable when the future is done."""
        return self._writer.submit(self._change, change)

    def _change(self, change: Callable[[Changeable], Any]) -> Any:
        self.look()
        index = self.index
        if self.damage:  # an id that cannot be found in a damaged file would be added a second time
            raise unwritable(self.name, self.damage)
        try:
            return change(index)
        except IndexLocked:
            raise
        except CoilError as error:
            with self._looking:
                self._check()
                if self.index is index and isinstance(error, DamagedSegment):
                    self._remember(error)
            if self.index is not index:
                raise busy("the index was replaced while it was being changed", seconds=1) from error
            if not isinstance(error, OutputError | IndexProblem):
                raise
            if isinstance(error, PartlyChanged | Unconfirmed):
                raise
            if self.trouble:  # the reason behind the error, and one that a client may know
                raise unwritable(self.name, self.trouble) from error
            raise

    def _take_over(self) -> None:
        """Open the index that has replaced ours."""
        newer = self._open_again(self.index.encoder)
        try:
            _ = newer.encoder
            if _is_unfinished(newer) and not _is_unfinished(self.index):  # until then, none are missing
                raise UnfinishedBuild(f"{newer.folder} is being built", "wait until the build has finished")
        except CoilError:
            newer.close()
            raise
        older, self.index, self.damage = self.index, newer, ""
        older.close()  # when its readers are done

    @property
    def writes_waiting(self) -> int:
        """The number of changes waiting or running."""
        return self._places.taken

    def close(self) -> None:
        """Finish pending writes, and release the files."""
        self._writer.shutdown(wait=True)
        self.index.close()

    def look(self) -> None:
        """Adopt what another process has committed, or an index that has replaced this one.

        One thread looks at a time, and the others wait for it: whoever asks after a commit sees it. A look
        takes microseconds, a reload milliseconds; running searches keep the state that they have.
        """
        with self._looking:
            self._look()

    def check(self) -> None:
        """Look, and detect missing or truncated files: problems are recorded in `trouble` and `damage`."""
        with self._looking:
            self._check()

    def _check(self) -> None:
        self._look()
        if self.trouble or self.damage:
            return
        try:
            self.index.check_sizes()
        except DamagedSegment as error:
            self._remember(error)
        except MissingSegment:  # unless another process has just merged it: then there is a newer manifest
            self._incomplete = True
            self._look()
        except (CoilError, OSError):  # of the folder, which the next look tells
            pass

    def _remember(self, error: DamagedSegment) -> None:
        if not self.damage:
            _log.error("damaged", extra={"index": self.name, "reason": error.reason})
            files = self._files()
            named = frozenset(file for file in files if file[0] in error.reason)
            self.damage, self._damaged_files = "is damaged", named or files

    def _files(self) -> frozenset[_File]:
        """The files of all segments. COIL never changes one: a change means that it was restored."""
        found: list[tuple[str, os.stat_result]] = []
        try:
            for folder in _folders_of(self.index):
                with os.scandir(folder / SEGMENTS_FOLDER) as entries:
                    found += [(entry.name, entry.stat()) for entry in entries]
        except OSError:
            return frozenset()
        return frozenset((name, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns) for name, of in found)

    def _look(self) -> None:
        try:
            try:
                if self.damage and not self._damaged_files <= self._files():
                    self._take_over()
                else:
                    self.index.refresh()
            except ReplacedIndex:
                self._take_over()
            if self._incomplete:
                self.index.check_sizes()
            self.trouble, self._incomplete = "", False
        except (CoilError, OSError) as error:  # keep what we have
            if isinstance(error, DamagedSegment) and _version_of(self.index) is None:
                self._remember(error)
                return
            if not self.trouble:
                _log.error("cannot reload", extra={"index": self.name, "reason": reason_of(error)})
            gone, rebuilt = isinstance(error, MissingIndex), isinstance(error, UnfinishedBuild)
            self.trouble = "is missing" if gone else "is being rebuilt" if rebuilt else "cannot be read"


def _is_unfinished(index: Servable) -> TypeGuard[Index]:
    """Whether the build of an index is unfinished; a sharded one cannot be opened before its build ends."""
    return isinstance(index, Index) and index.is_unfinished


def _folders_of(index: Servable) -> list[Path]:
    return [index.folder] if isinstance(index, Index) else index.folders


def _version_of(index: Servable) -> int | None:
    """The version of an index, None if its files are known to be damaged."""
    try:
        len(index)  # with shards, this asks each of them
        return index.version
    except DamagedSegment:
        return None


def open_all(
    folders: Sequence[Path],
    writes_waiting: int,
    encoder: Encoder | None = None,
    models: Sequence[str] = (),
) -> dict[str, Served]:
    """Open indexes, each under the name of its folder; those of one model share it.

    `models` are the new locations of models that were moved; each must be the model of one of the indexes.
    """
    served: dict[str, Served] = {}
    encoders: dict[str | None, Encoder] = {}
    moved = {(given := OnnxEncoder(model)).fingerprint: (model, given) for model in models}
    unused = set(moved)
    opened: dict[str, Path] = {}
    for folder in folders:
        name = name_of(folder)
        if name in served:
            raise InputError(
                f"{opened[name]} and {folder} would both have the name {name!r}",
                "rename one of the folders",
            )
        opened[name] = folder
        if is_whole(folder):
            again: Callable[[Encoder], Servable] = partial(open_sharded, find_place(folder))
            whole = open_sharded(find_place(folder), encoder)
            served[name] = ServedIndex(name, whole, writes_waiting, again)
            continue
        index = open_index(folder, encoder)
        made_with = index.settings()["fingerprint"]
        if made_with in moved:
            unused.discard(made_with)
            index.use(moved[made_with][1])
        elif encoder is None and index.model in encoders:
            index.use(encoders[index.model])
        encoders[index.model] = index.encoder  # a mismatch is reported now, not with the first query
        served[name] = ServedIndex(name, index, writes_waiting, partial(open_index, index.folder))
    if unused:
        raise OptionMismatch(
            f"none of these indexes uses the model {moved[min(unused)][0]}",
            "omit it, or pass the new location of a model that one of them uses",
        )
    return served


def name_of(folder: Path) -> str:
    """The name under which an index is served: that of its folder or of the symbolic link that was given,
    without .coil or .shards, fit for an address."""
    folder = folder.parent if folder.name == WHOLE_FILE else folder
    return fit_name(os.path.basename(os.path.abspath(folder)))


def fit_name(name: str) -> str:
    """The name of a folder, without .coil or .shards, fit for an address."""
    stem = name.removesuffix(".coil").removesuffix(".shards")
    return _NAME.sub("-", stem).strip("-.") or "index"
