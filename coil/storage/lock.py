"""One writer at a time: a lock that the system releases when its holder dies."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
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


class Lock(FileIO):
    """A locked file, to be used as `with lock, lock.held():`.

    Ctrl-C may arrive at the first step of any Python function, even of `__exit__`, and whoever keeps the
    exception keeps the locals of that function. So no Python code is needed to release the lock: the
    `__exit__` of this object is that of a file, compiled, and closes it. `held` does what can be missed.
    """

    @contextmanager
    def held(self) -> Iterator[None]:
        """Release the lock at the end, even if a process forked meanwhile still has the file open."""
        owner = os.getpid()
        try:
            yield
        finally:
            if os.getpid() == owner and not self.closed:
                _unlock(self.fileno())


class WriterLock(Lock):
    """The lock of an index. All writes go through its folder, which is the locked one, whatever happens to
    its path meanwhile."""

    folder: Folder

    @contextmanager
    def held(self) -> Iterator[None]:
        """Also close the folder at the end."""
        with self.folder, super().held():
            yield


def writer_lock(path: Path, new: bool = False) -> WriterLock:
    """Lock the index at a path for writing; a second writer gets a clear error instead of waiting.

    Unless it is `new`, it must exist: nothing is left behind in a folder that is not an index.
    """
    folder = Folder.open(path)
    try:
        if not new:
            check_manifest(folder)
        for name in (LOCK_FILE, SEGMENTS_FOLDER):
            if folder.is_link(name):
                raise OutputError(
                    f"{path / name} is a symbolic link; COIL does not write through links",
                    "replace it with its target, or link to the whole index instead",
                )
        try:
            handle = folder.open_to_lock(LOCK_FILE)
        except OSError as error:
            let_through(error)
            raise _unwritable(path / LOCK_FILE, error) from error
        lock = handle.become(WriterLock)
        try:
            lock.folder = folder
            if not _try_lock(lock.fileno()):
                raise _locked(path, lock.fileno())
            try:
                _tell_holder(lock.fileno())
            except OSError as error:  # a full disk: the line only informs others who holds the lock
                let_through(error)
            return lock
        except BaseException:
            lock.close()
            raise
    except BaseException:
        folder.close()
        raise


def file_lock(path: Path, what: str) -> Lock:
    """Lock a file that serves only as a lock; `what` says what another process that holds it is doing."""
    try:
        handle = Handle(path, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        let_through(error)
        raise _unwritable(path, error) from error
    lock = handle.become(Lock)
    try:
        if not _try_lock(lock.fileno()):
            raise IndexLocked(f"{what} by another process", "wait until it has finished")
        return lock
    except BaseException:
        lock.close()
        raise


def _unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(
        f"{path} cannot be written: {error.strerror}",
        remedy_for(error, "check the permissions of the folder"),
    )


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
