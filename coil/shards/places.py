"""Places: where the shards of an index are kept. A folder that all nodes share, or object storage.

Indexes are searched and written as files of this machine. An index in object storage is first copied to a
folder of this process, and copied back after a change: new files, then the manifest, which makes the change
effective. Finished files never change, so a copy only ever lacks files. Only one process may write a shard: a
second one is refused, unless both store a manifest in the same instant, which storage without locks allows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Hashable
from contextlib import AbstractContextManager, nullcontext, suppress
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any, Protocol

from coil.errors import (
    DamagedSegment,
    IndexProblem,
    InputError,
    MissingIndex,
    MissingSegment,
    OutputError,
    ReplacedIndex,
    require,
)
from coil.indexes.opening import check_path
from coil.permissions import Permissions
from coil.shards.whole import LARGEST, WHOLE_FILE, WholeManifest
from coil.storage.disk import make_folders
from coil.storage.lock import Lock, file_lock
from coil.storage.manifest import MANIFEST_FILE, SEGMENTS_FOLDER, Manifest, is_segment_file

_TRIES = 20  # while a writer merges files away faster than they can be copied
_BLOCK = 1 << 20
BUILD_LOCK = "build.lock"


class NoLock:
    """Takes the place of a lock."""

    def __enter__(self) -> NoLock:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def held(self) -> AbstractContextManager[None]:
        """Nothing to do."""
        return nullcontext()


Claim = Lock | NoLock


class Place(Protocol):
    """Where a sharded index is kept: its manifest, and a folder for each shard."""

    where: str
    has_locks: bool  # whether `claim` keeps others out

    def read(self, name: str, most: int) -> bytes:
        """A small file; a FileNotFoundError if there is none."""
        ...

    def stamp(self, name: str) -> Hashable:
        """A value that changes when a small file does, as far as this is known without reading it."""
        ...

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file atomically."""
        ...

    def names(self) -> list[str]:
        """What already exists there."""
        ...

    def folder(self, shard: str) -> Path:
        """The folder on this machine in which a shard is read and written."""
        ...

    def pull(self, shard: str) -> None:
        """Bring the folder of a shard up to date with what others have written."""
        ...

    def push(self, shard: str) -> None:
        """Publish what was written to the folder of a shard."""
        ...

    def claim(self, building: bool = True) -> Claim:
        """Hold the place for a build or a change; a second one gets an IndexLocked."""
        ...


def find_place(path: str | Path, scratch: str | Path | None = None) -> Place:
    """The place of an index by its path or URL, or that of its manifest.

    `scratch`: the folder for copies from object storage, one on each node; a temporary one if it is None.
    """
    text = str(path).removesuffix("/").removeprefix("file://")
    if "://" in text:
        return StoredPlace(text.removesuffix(f"/{WHOLE_FILE}"), scratch)
    folder = check_path(text)
    return FolderPlace(folder.parent if folder.name == WHOLE_FILE else folder)


def read_whole(place: Place) -> WholeManifest:
    """The manifest of a sharded index."""
    try:
        content = place.read(WHOLE_FILE, LARGEST + 1)
    except FileNotFoundError as error:
        raise MissingIndex(
            f"{place.where} is not a sharded index: {WHOLE_FILE} is missing", "check the path"
        ) from error
    return WholeManifest.from_bytes(content, f"{place.where}/{WHOLE_FILE}")


def write_whole(place: Place, manifest: WholeManifest) -> None:
    """Replace the manifest."""
    place.write(WHOLE_FILE, manifest.to_bytes())


class FolderPlace:
    """A folder on a file system that all nodes share, or on this machine."""

    has_locks = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        self.where = str(folder)

    def read(self, name: str, most: int) -> bytes:
        """A small file."""
        try:
            with (self._folder / name).open("rb") as opened:
                return opened.read(most)
        except (FileNotFoundError, NotADirectoryError):
            raise FileNotFoundError(name) from None
        except OSError as error:
            reason = f"{self._folder / name} cannot be read: {error.strerror}"
            raise InputError(reason, "check the permissions of the file") from error

    def stamp(self, name: str) -> Hashable:
        """The identity of a file and the time of its last change; None if it is missing."""
        try:
            found = (self._folder / name).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def write(self, name: str, content: bytes) -> None:
        """Replace a small file atomically."""
        file, partial = self._folder / name, self._folder / f".{name}.{os.getpid()}.partial"
        make_folders(self._folder)
        try:
            with partial.open("wb") as opened:
                if file.exists():
                    Permissions.of(file.stat()).give_to(opened.fileno())
                opened.write(content)
                opened.flush()
                os.fsync(opened.fileno())
            partial.replace(file)
        except OSError as error:
            with suppress(OSError):
                partial.unlink()
            raise _unwritable(str(file), error) from error

    def names(self) -> list[str]:
        """What already exists there."""
        try:
            return sorted(path.name for path in self._folder.iterdir() if path.name != BUILD_LOCK)
        except FileNotFoundError:
            return []
        except OSError as error:
            reason = f"{self._folder} cannot be used: {error.strerror}"
            raise OutputError(reason, "choose another place") from error

    def folder(self, shard: str) -> Path:
        """The folder of a shard."""
        return self._folder / shard

    def pull(self, shard: str) -> None:
        """Nothing to do: everybody sees the same folder."""

    def push(self, shard: str) -> None:
        """Nothing to do: everybody sees the same folder."""

    def claim(self, building: bool = True) -> Claim:
        """Lock the folder. The system releases the lock when its holder dies."""
        if building:
            make_folders(self._folder)
        what = f"{self.where} is being {'built' if building else 'changed'}"
        return file_lock(self._folder / BUILD_LOCK, what)


class StoredPlace:
    """Object storage, or any other file system that fsspec knows; shards are copied to `scratch`."""

    has_locks = False

    def __init__(self, url: str, scratch: str | Path | None = None) -> None:
        fsspec = require("fsspec", "ray")
        try:
            self._files, self._root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except TypeError:  # a file system without such a cache
            self._files, self._root = fsspec.core.url_to_fs(url)
        except (ValueError, ImportError, OSError) as error:
            raise InputError(f"{url} cannot be used: {error}", "install what fsspec needs for it") from error
        self.where = url
        name = blake2b(url.encode(), digest_size=8).hexdigest()
        base = Path(scratch) if scratch is not None else Path(tempfile.gettempdir()) / f"coil-{_user()}"
        self._scratch = base.absolute() / name
        self._token = uuid.uuid4().hex[:8]
        self._bases: dict[str, set[str]] = {}  # digests of the manifests that the copy of a shard is based on

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for another process, which connects to the storage itself."""
        return StoredPlace, (self.where, self._scratch.parent)

    def read(self, name: str, most: int) -> bytes:
        """A small file."""
        try:
            content: bytes = self._files.cat_file(self._at(name))
        except FileNotFoundError:
            raise FileNotFoundError(name) from None
        except OSError as error:
            raise InputError(f"{self.where}/{name} cannot be read: {error}", "check the address") from error
        return content[:most]

    def stamp(self, name: str) -> Hashable:
        """Always the same: asking would take as long as reading."""
        return name

    def write(self, name: str, content: bytes) -> None:
        """Replace a small object."""
        try:
            self._files.pipe_file(self._at(name), content)
        except OSError as error:
            raise _unwritable(f"{self.where}/{name}", error) from error

    def names(self) -> list[str]:
        """What already exists there."""
        return self._list("")

    def folder(self, shard: str) -> Path:
        """This process's own copy of a shard."""
        mine = self._scratch / f"{os.getpid()}-{self._token}"
        if not mine.exists():
            make_folders(mine)
            _remove_left_over(self._scratch)
        return mine / shard

    def pull(self, shard: str) -> None:
        """Copy what is new of a shard: files first, then its manifest.

        A change of this process that could not be stored is stored now, unless others have written since.
        """
        folder = self.folder(shard)
        for attempt in range(_TRIES):
            content = self._manifest(shard)
            theirs = Manifest.from_bytes(content, f"{self.where}/{shard}")
            if (folder / MANIFEST_FILE).exists():
                mine = Manifest.from_bytes((folder / MANIFEST_FILE).read_bytes(), str(folder))
                if mine.digest == theirs.digest:
                    self._bases[shard] = {theirs.digest}
                    return
                if mine.version >= theirs.version:
                    self.push(shard)
                    return
            make_folders(folder / SEGMENTS_FOLDER)
            try:
                self._pull_files(shard, theirs)
            except MissingSegment:  # merged away meanwhile: a newer manifest names others
                if attempt + 1 == _TRIES or self._manifest(shard) == content:
                    raise
                continue
            _replace(folder / MANIFEST_FILE, content)
            self._bases[shard] = {theirs.digest}
            self._forget(folder, theirs)
            return

    def push(self, shard: str) -> None:
        """Store what is new of a shard: files first, then its manifest, then remove what it does not name."""
        folder = self.folder(shard)
        content = (folder / MANIFEST_FILE).read_bytes()
        manifest = Manifest.from_bytes(content, str(folder))
        self._check_base(shard, manifest)
        try:
            there = set(self._list(f"{shard}/{SEGMENTS_FOLDER}"))
            wanted = _files_of(manifest)
            for name in sorted(wanted - there):
                stored = self._at(shard, SEGMENTS_FOLDER, name)
                self._files.put_file(str(folder / SEGMENTS_FOLDER / name), stored)
            self._check_base(shard, manifest)  # once more: storing large files takes long
            self._bases.setdefault(shard, set()).add(
                manifest.digest
            )  # it may be stored although we get no confirmation
            self._files.pipe_file(self._at(shard, MANIFEST_FILE), content)
            self._bases[shard] = {manifest.digest}
            for name in there - wanted:
                if is_segment_file(name):
                    with suppress(OSError):  # what stays is a stray for the next writer
                        self._files.rm_file(self._at(shard, SEGMENTS_FOLDER, name))
        except OSError as error:
            raise _unwritable(f"{self.where}/{shard}", error) from error

    def claim(self, building: bool = True) -> Claim:
        """Object storage has no locks: the manifest of the whole says who builds, and when last."""
        return NoLock()

    # ---- inside

    def _at(self, *parts: str) -> str:
        return "/".join((self._root.rstrip("/"), *parts))

    def _list(self, below: str) -> list[str]:
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._at(below).rstrip("/"), detail=False)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise OutputError(f"{self.where} cannot be used: {error}", "check the address") from error
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def _manifest(self, shard: str) -> bytes:
        try:
            content: bytes = self._files.cat_file(self._at(shard, MANIFEST_FILE))
        except FileNotFoundError as error:
            raise MissingIndex(f"there is no index at {self.where}/{shard}", "check the address") from error
        except OSError as error:
            raise IndexProblem(
                f"{self.where}/{shard} cannot be read: {error}", "check the connection to the storage"
            ) from error
        return content

    def _pull_files(self, shard: str, manifest: Manifest) -> None:
        folder = self.folder(shard) / SEGMENTS_FOLDER
        for entry in manifest.segments:
            for facts, path in ((entry.lists, entry.lists_file), (entry.texts, entry.documents_file)):
                name = path.rpartition("/")[2]
                if (folder / name).exists() and (folder / name).stat().st_size == facts.bytes:
                    continue
                partial = folder / f"{name}.partial"
                try:
                    self._files.get_file(self._at(shard, path), str(partial))
                    digest = _digest(partial)
                except FileNotFoundError as error:
                    partial.unlink(missing_ok=True)
                    reason = f"{self.where}/{shard}/{path} is missing"
                    raise MissingSegment(reason, "restore the index from a backup") from error
                except OSError as error:
                    partial.unlink(missing_ok=True)
                    raise _unwritable(str(partial), error) from error
                if digest != facts.sha256:
                    partial.unlink()
                    raise DamagedSegment(
                        f"{self.where}/{shard}/{path} is not what was written", "restore it from a backup"
                    )
                partial.replace(folder / name)

    def _forget(self, folder: Path, manifest: Manifest) -> None:
        """Remove files that the newest manifest does not name; processes that have them open keep them."""
        kept = _files_of(manifest)
        for path in (folder / SEGMENTS_FOLDER).iterdir():
            if is_segment_file(path.name) and path.name not in kept:
                path.unlink(missing_ok=True)

    def _check_base(self, shard: str, manifest: Manifest) -> None:
        """Replace only the state that this one is based on. Versions cannot tell: each of two writers may
        have written several."""
        bases = self._bases.get(shard)
        try:
            found = Manifest.from_bytes(self._manifest(shard), f"{self.where}/{shard}")
        except MissingIndex as error:
            if bases is None:
                return
            raise ReplacedIndex(
                f"{self.where}/{shard} is no longer there", "nothing was stored; restore it from a backup"
            ) from error
        if (found.index_id, found.settings) != (manifest.index_id, manifest.settings):
            raise ReplacedIndex(f"{self.where}/{shard} is another index now", "nothing was stored")
        if found.digest not in (bases or ()) and found.digest != manifest.digest:
            raise ReplacedIndex(
                f"{self.where}/{shard} was changed by another writer",
                "nothing was stored; reopen the index and try again",
            )


def _remove_left_over(scratch: Path) -> None:
    """Remove the copies of processes that have ended."""
    for path in scratch.iterdir():
        owner = path.name.partition("-")[0]
        if owner.isdigit() and not _is_running(int(owner)):
            shutil.rmtree(path, ignore_errors=True)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _files_of(manifest: Manifest) -> set[str]:
    paths = (path for entry in manifest.segments for path in (entry.lists_file, entry.documents_file))
    return {path.rpartition("/")[2] for path in paths}


def _digest(path: Path) -> str:
    digest = sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise _unwritable(str(path), error) from error


def _unwritable(what: str, error: OSError) -> OutputError:
    return OutputError(
        f"{what} cannot be written: {error.strerror or error}",
        "free some space or check the permissions there; what was committed before is safe",
    )


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0
