"""One writer at a time: a lock that the system lets go of when its holder dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coil.errors import IndexLocked, OutputError

LOCK_FILE = "writer.lock"


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the index for writing; a second writer gets a clear error, not a wait."""
    path = folder / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror}", "check the rights on the folder"
        ) from error
    try:
        if not _try_lock(handle):
            holder = os.pread(handle, 64, 0).decode(errors="replace").strip() if hasattr(os, "pread") else ""
            raise IndexLocked(
                f"{folder} is being written by another process{f' ({holder})' if holder else ''}",
                "wait until it is done; searching goes on meanwhile",
            )
        holder_line = f"process {os.getpid()}\n".encode()
        os.write(handle, holder_line)
        if os.fstat(handle).st_size > len(holder_line):  # cutting costs milliseconds on some file systems
            os.ftruncate(handle, len(holder_line))
        yield
    finally:
        os.close(handle)  # lets go of the lock as well


def _try_lock(handle: int) -> bool:
    if sys.platform == "win32":
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
