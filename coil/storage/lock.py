"""One writer at a time: a lock that the system releases when its holder dies."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coil.errors import IndexLocked, OutputError
from coil.interruptions import let_through
from coil.storage.disk import Folder, Handle, remedy_for
from coil.storage.manifest import SEGMENTS_FOLDER, check_manifest

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK_FILE = "writer.lock"
_HOLDER = re.compile(rb"(process [0-9\n]+)?")  # the rest of a longer line may follow


@contextmanager
def writer_lock(path: Path, new: bool = False) -> Iterator[Folder]:
    """Lock the index at a path for writing; a second writer gets a clear error instead of waiting.

    Unless it is `new`, it must exist: nothing is left behind in a folder that is not an index. All writes go
    through the folder that this yields, which is the locked one, whatever happens to its path meanwhile.
    """
    with Folder.open(path) as folder:
        if not new:
            check_manifest(folder)
        for name in (LOCK_FILE, SEGMENTS_FOLDER):
            if folder.is_link(name):
                raise OutputError(
                    f"{path / name} is a symbolic link; COIL does not write through links",
                    "replace it with its target, or link to the whole index instead",
                )
        try:
            file = folder.open_to_lock(LOCK_FILE)
        except OSError as error:
            let_through(error)
            raise OutputError(
                f"{path / LOCK_FILE} cannot be written: {error.strerror}",
                remedy_for(error, "check the permissions of the folder"),
            ) from error
        owner = os.getpid()
        with file as handle:
            try:
                if not _try_lock(handle):
                    raise _locked(path, handle)
                try:
                    _tell_holder(handle)
                except OSError as error:  # a full disk: the line only informs others who holds the lock
                    let_through(error)
                yield folder
            finally:
                if os.getpid() == owner:  # a process forked meanwhile also has the handle
                    _unlock(handle)


@contextmanager
def file_lock(path: Path, what: str) -> Iterator[None]:
    """Lock a file that serves only as a lock; `what` says what another process that holds it is doing."""
    try:
        file = Handle(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        let_through(error)
        raise OutputError(
            f"{path} cannot be written: {error.strerror}",
            remedy_for(error, "check the permissions of the folder"),
        ) from error
    with file as handle:
        if not _try_lock(handle):
            raise IndexLocked(f"{what} by another process", "wait until it has finished")
        try:
            yield
        finally:
            _unlock(handle)


def _locked(path: Path, handle: int) -> IndexLocked:
    shown = os.pread(handle, 64, 0).decode(errors="replace").strip() if hasattr(os, "pread") else ""
    other = "this process" if shown == f"process {os.getpid()}" else "another process"
    return IndexLocked(
        f"{path} is being written by {other}{f' ({shown})' if shown else ''}",
        "wait until it has finished; you can search in the meantime",
    )


def _tell_holder(handle: int) -> None:
    if not _HOLDER.fullmatch(os.pread(handle, 64, 0) if hasattr(os, "pread") else b""):
        return  # it is a user's file, perhaps through a hard link: lock it, but do not overwrite it
    line = f"process {os.getpid()}\n".encode()
    os.write(handle, line)
    if os.fstat(handle).st_size > len(line):  # truncating takes milliseconds on some file systems
        os.ftruncate(handle, len(line))


def _unlock(handle: int) -> None:
    if sys.platform != "win32":
        fcntl.flock(handle, fcntl.LOCK_UN)


def _try_lock(handle: int) -> bool:
    if sys.platform == "win32":
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            let_through(error)
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
