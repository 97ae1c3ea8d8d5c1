"""Folder: a directory accessed by its handle. Whatever happens to its path, it stays the one that was opened.

Every write and every sync of an index goes through here: a file is written under a name that no other file
has, then synced, and listed in the manifest only after its folder is synced as well. Finished files never
change.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from io import FileIO
from pathlib import Path
from typing import TypeVar

from coil.errors import IndexProblem, MissingIndex, OutputError
from coil.interruptions import let_through
from coil.permissions import PRIVATE, Permissions

F = TypeVar("F", bound=FileIO)
MORE_FILES = "the limit on open files (`ulimit -n`)"
_BLOCK = 1 << 20
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_HAS_HANDLES = os.open in os.supports_dir_fd and os.rename in os.supports_dir_fd


def remedy_for(error: OSError, usual: str) -> str:
    """The remedy for a system error: the usual one, unless the system has run out of file handles."""
    out_of_files = error.errno in (errno.EMFILE, errno.ENFILE)
    return "close other files, or raise the limit on open files (`ulimit -n`)" if out_of_files else usual


@dataclass(frozen=True)
class FileFacts:
    """Size and digest of a file: enough to detect any change."""

    bytes: int
    sha256: str


class Handle:
    """An open file or folder, closed once, at the latest with this object.

    Ctrl-C may arrive between any two steps of Python. So a descriptor passes from the system to its owner,
    and back, in a single step: `map` requests it and `extend` stores it. Otherwise it would leak, and a lock
    on it would stay held.
    """

    def __init__(self, name: str | Path, flags: int, folder: int | None = None, mode: int = 0o644) -> None:
        self._numbers: list[int] = []
        opening = partial(os.open, dir_fd=folder)
        self._numbers.extend(map(opening, (name,), (flags | getattr(os, "O_CLOEXEC", 0),), (mode,)))

    @property
    def number(self) -> int:
        """The file descriptor."""
        if not self._numbers:
            raise OSError(errno.EBADF, "the file is closed")
        return self._numbers[0]

    def close(self) -> None:
        """Close it."""
        numbers: list[int] = self.__dict__.get("_numbers", [])  # none if `__init__` was interrupted
        for _ in map(os.close, map(numbers.pop, (-1,) * len(numbers))):
            pass

    def become(self, kind: type[F]) -> F:
        """A file that owns the descriptor from now on."""
        files: list[F] = []
        files.extend(map(kind, map(self._numbers.pop, (-1,)), ("r+",)))
        return files[0]

    __del__ = close

    def __enter__(self) -> int:
        return self.number

    def __exit__(self, *_: object) -> None:
        self.close()


class Folder:
    """An open directory. Names are relative to it, with `/` for its subfolders."""

    def __init__(self, path: Path, handle: Handle | None) -> None:
        self.path = path
        self._handle = handle
        self._closed = False

    @classmethod
    def open(cls, path: Path) -> Folder:
        """Open the directory that is currently at this path."""
        try:
            handle = Handle(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)) if _HAS_HANDLES else None
            if handle is None and not path.is_dir():
                raise NotADirectoryError
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingIndex(f"there is no index at {path}", "check the path") from error
        except OSError as error:
            let_through(error)
            remedy = f"check the permissions of the folder and {MORE_FILES}"
            raise IndexProblem(f"{path} cannot be opened: {error.strerror}", remedy) from error
        return cls(path, handle)

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the handle."""
        self._closed = True
        if self._handle is not None:
            self._handle.close()

    # ---- which folder it is

    @property
    def identity(self) -> tuple[int, int]:
        """The device and inode of the directory, whatever its name is."""
        self._check_open()
        found = os.stat(self.path) if self._number is None else os.fstat(self._number)
        return found.st_dev, found.st_ino

    @property
    def is_at_its_path(self) -> bool:
        """Whether the path still leads to this directory: it may have been moved, replaced or deleted."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            let_through(error)
            return False
        return (found.st_dev, found.st_ino) == self.identity

    def path_of(self, name: str) -> str:
        """A path for libraries that do not accept a handle; on Linux it leads through the handle."""
        self._check_open()
        through = f"/proc/self/fd/{self._number}"
        if self._number is not None and sys.platform == "linux" and os.path.exists(through):
            return f"{through}/{name}"
        return str(self.path / name)

    # ---- reading

    def open_file(self, name: str) -> Handle:
        """Open a file for reading."""
        # Opening a pipe in place of a file must not block.
        return self._open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))

    def open_to_lock(self, name: str) -> Handle:
        """Open a file that only serves as a lock, without following links."""
        return self._open(name, os.O_RDWR | os.O_CREAT | _NO_LINK)

    def read(self, name: str, most: int) -> bytes:
        """Read a file, up to a maximum number of bytes."""
        with self.open_file(name) as handle, open(handle, "rb", closefd=False) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is a pipe or a device, not a file")
            return file.read(min(most, found.st_size + 1))  # or memory for the maximum is allocated

    def stat(self, name: str) -> os.stat_result:
        """A file's size and timestamps."""
        return os.stat(self._name(name), dir_fd=self._number)

    def permissions(self, name: str) -> Permissions | None:
        """Who may use a file; None if it does not exist."""
        try:
            return Permissions.of(self.stat(name))
        except FileNotFoundError:
            return None

    def is_link(self, name: str) -> bool:
        """Whether a name is a symbolic link."""
        try:
            found = os.stat(self._name(name), dir_fd=self._number, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return stat.S_ISLNK(found.st_mode)

    def names(self, subfolder: str) -> list[str]:
        """The files of a subfolder; none if there is no such folder."""
        try:
            handle = self._open(subfolder, os.O_RDONLY | _NO_LINK) if _HAS_HANDLES else None
        except FileNotFoundError:
            return []
        if handle is None:
            return sorted(os.listdir(self.path / subfolder)) if (self.path / subfolder).is_dir() else []
        with handle as number:
            return sorted(os.listdir(number))

    def digest(self, name: str) -> FileFacts:
        """Read every byte of a file."""
        digest, size = sha256(), 0
        with self.open_file(name) as handle, open(handle, "rb", closefd=False) as file:
            while block := file.read(_BLOCK):
                digest.update(block)
                size += len(block)
        return FileFacts(size, digest.hexdigest())

    # ---- writing: each of these is one step that can fail

    def make(self, subfolder: str, permissions: Permissions | None = None) -> None:
        """Create a subfolder if it does not exist, and sync its name to disk."""
        try:
            os.mkdir(self._name(subfolder), 0o755, dir_fd=self._number)
        except FileExistsError:
            return
        if permissions is not None and _HAS_HANDLES:
            with self._open(subfolder, os.O_RDONLY | _NO_LINK) as handle:
                permissions.give_to(handle)
        self.sync()

    def reserve(self, name: str, permissions: Permissions | None = None) -> None:
        """Create an empty file; an existing file is an error, because files are never overwritten."""
        with self._create(name, permissions) as handle:
            if permissions is not None:
                permissions.give_to(handle)

    def write(
        self, name: str, parts: Iterable[bytes | memoryview], permissions: Permissions | None = None
    ) -> FileFacts:
        """Write a new file and sync it to disk. Without `permissions`, it has those of any new file."""
        digest, size = sha256(), 0
        file = self._create(name, permissions)
        try:
            with file as handle:
                if permissions is not None:
                    permissions.give_to(handle)
                for part in parts:
                    view = memoryview(part).cast("B") if len(part) else memoryview(b"")
                    for begin in range(0, len(view), _BLOCK):
                        block = view[begin : begin + _BLOCK]
                        digest.update(block)
                        size += self._put(handle, block)
                self._sync_handle(handle)
        except BaseException:
            self.discard(name)
            raise
        return FileFacts(size, digest.hexdigest())

    def _put(self, handle: int, block: memoryview) -> int:
        left = block
        while len(left):
            left = left[os.write(handle, left) :]
        return len(block)

    def sync_file(self, name: str) -> None:
        """Sync a file that another library has written."""
        with self._open(name, os.O_RDWR) as handle:
            self._sync_handle(handle)

    def _sync_handle(self, handle: int) -> None:
        os.fsync(handle)

    def sync(self, subfolder: str = ".") -> None:
        """Sync the names in a folder, if the system supports it."""
        if not _HAS_HANDLES:
            return
        with self._open(subfolder, os.O_RDONLY | _NO_LINK) as handle:
            os.fsync(handle)

    def replace(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing the file of that name."""
        os.replace(self._name(old), self._name(new), src_dir_fd=self._number, dst_dir_fd=self._number)

    def discard(self, name: str) -> None:
        """Remove a file if it exists and the system permits; else the next writer removes it as a stray."""
        try:
            os.unlink(self._name(name), dir_fd=self._number)
        except OSError as error:
            let_through(error)
            return

    # ---- internal

    def _open(self, name: str, flags: int) -> Handle:
        return Handle(self._name(name), flags, self._number)

    def _create(self, name: str, permissions: Permissions | None) -> Handle:
        mode = 0o644 if permissions is None else PRIVATE
        return Handle(self._name(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, self._number, mode)

    @property
    def _number(self) -> int | None:
        return None if self._handle is None else self._handle.number

    def _check_open(self) -> None:
        if self._closed:  # never by path: it may lead elsewhere by now, and the lock is released
            raise OSError(errno.EBADF, "the folder is closed")

    def _name(self, name: str) -> str:
        self._check_open()
        return name if self._handle is not None else str(self.path / name)


def make_folders(path: Path) -> None:
    """Create a folder and its parents; every new name is on disk when this returns."""
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    try:
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(missing):
            with Folder.open(folder.parent) as parent:
                parent.sync()
    except (OSError, IndexProblem) as error:
        let_through(error)
        reason = error.strerror if isinstance(error, OSError) else error
        raise OutputError(f"{path} cannot be created: {reason}", "choose another location") from error
