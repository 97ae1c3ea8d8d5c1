"""Looking at watched sources: which files they contain now, and which of these have changed.

No file is read for this. Its timestamps, size and inode number are compared with those recorded when it was
last read. A file has settled only if two looks find it unchanged: another program may still be writing it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from coil.texts.corpora import CORPUS_FILE
from coil.texts.files import KINDS, is_one_text, kind_of, walk
from coil.texts.records import find_in_folder
from coil.texts.values import clean

Signature = tuple[int, int, int, int]


@dataclass(frozen=True)
class SourceFile:
    """A file of a source; `doc_id` is None for a file of records."""

    source: Path
    path: Path
    doc_id: str | None = field(compare=False)


@dataclass(frozen=True)
class Look:
    """The files that existed at one moment."""

    files: dict[SourceFile, Signature]  # in the order in which a build reads them
    blocked: list[Path]  # files, folders and sources that currently cannot be read

    def is_blocked(self, file: SourceFile) -> bool:
        """Whether a file cannot be checked at present: it may still exist."""
        return any(path == file.path or path in file.path.parents for path in self.blocked)

    def has_blocked(self, source: Path) -> bool:
        """Whether any part of a source cannot be checked at present."""
        return any(path == source or source in path.parents for path in self.blocked)


@dataclass(frozen=True)
class Changes:
    """Files to read, files that are gone, and whether to look again because some are still changing."""

    ready: list[SourceFile]
    gone: list[SourceFile]
    in_motion: bool


def signature_of(path: Path) -> Signature | None:
    """A value that changes with the file, None if there is no file; OSError if it cannot be determined."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def look_at(sources: Sequence[Path]) -> Look:
    """The files of the sources as they are now."""
    look = Look({}, [])
    for source in sources:
        try:
            os.stat(source)
            for path, doc_id in _files(source, look.blocked):
                _note(look, SourceFile(source, path, doc_id))
        except OSError:  # for example, a disk that is not mounted
            look.blocked.append(source)
    return look


def _files(source: Path, blocked: list[Path]) -> Iterable[tuple[Path, str | None]]:
    if not source.is_dir():
        return [(source, clean(source.name) if is_one_text(source) else None)]
    if (corpus := find_in_folder(source, CORPUS_FILE)) is not None:
        return [(corpus, None)]
    above = len(os.path.join(source, ""))
    paths = (path for path in walk(source, blocked) if kind_of(path) in KINDS)
    return ((path, clean(str(path)[above:].replace(os.sep, "/"))) for path in paths)


def _note(look: Look, file: SourceFile) -> None:
    try:
        signature = signature_of(file.path)
    except OSError:
        look.blocked.append(file.path)
        return
    if signature is not None:
        look.files[file] = signature


def find_changes(
    before: Look | None, now: Look, read: dict[SourceFile, Signature | None], is_first: bool = False
) -> Changes:
    """The files that have changed since they were `read` and have not changed since the look `before`.

    The first time, all files are read at once; the caller notices those that change during the reading.
    """
    seen = before.files if before is not None else {}
    changed = [file for file, signature in now.files.items() if read.get(file) != signature]
    missing = [file for file in read if file not in now.files and not now.is_blocked(file)]
    if is_first:
        return Changes(changed, missing, False)
    ready = [file for file in changed if seen.get(file) == now.files[file]]
    gone = [file for file in missing if file not in seen]
    return Changes(ready, gone, len(ready) < len(changed) or len(gone) < len(missing))
