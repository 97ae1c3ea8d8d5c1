"""The work folder: a cache of expensive results, keyed by a digest of their inputs.

    work/collections/DIGEST   the documents of a collection, in SQLite
    work/pairs/DIGEST         training pairs, and negatives mined for them
    work/prepared             tokenized training pairs (coil/training/prepared_pairs.py)
    work/models/DIGEST        trained models
    work/indexes/DIGEST       indexes
    work/runs/DIGEST          the answers of a system to all queries

Each DIGEST has `kept.json` (inputs, time taken) and `content/`. Until it is complete, the folder is named
DIGEST.unfinished; after a kill, the next attempt resumes it or starts over.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coil.errors import IndexLocked, OutputError
from coil.metrics.machine import versions
from coil.storage.lock import writer_lock
from coil.texts.writing import write_whole

FACTS_FILE, CONTENT = "kept.json", "content"
_SECONDS_FILE = "seconds.json"  # the time that earlier, interrupted attempts took
_FORMAT = 1  # of the kept files; files of another format are rebuilt
_HEX = 32


@dataclass(frozen=True)
class Kept:
    """A cached result, which may not exist yet."""

    folder: Path
    inputs: Mapping[str, Any]

    @property
    def unfinished(self) -> Path:
        """The folder until it is complete."""
        return self.folder.with_name(f"{self.folder.name}.unfinished")

    @property
    def is_complete(self) -> bool:
        """Whether the result exists and is complete."""
        return (self.folder / FACTS_FILE).is_file()

    @property
    def content(self) -> Path:
        """The folder of the complete result."""
        return self.folder / CONTENT

    @property
    def key(self) -> str:
        """The digest, for results that depend on this one."""
        return self.folder.name

    def facts(self) -> dict[str, Any]:
        """What was recorded on completion: `seconds`, and other facts."""
        try:
            value = json.loads((self.folder / FACTS_FILE).read_text(encoding="utf-8"))
            return dict(value["facts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise OutputError(
                f"{self.folder / FACTS_FILE} is damaged", f"remove {self.folder}; it will be created again"
            ) from error

    @contextmanager
    def making(self, goes_on: bool = False) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Create the content and record facts; complete when the block ends without an error.

        With `goes_on`, the content of an interrupted attempt is kept, and the times of all attempts add up.
        """
        unfinished, content = self.unfinished, self.unfinished / CONTENT
        if unfinished.exists() and not goes_on:
            shutil.rmtree(unfinished)
        try:
            content.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{content} cannot be created: {error.strerror}", "choose another --work folder"
            ) from error
        before = _seconds(unfinished)
        began = time.monotonic()
        facts: dict[str, Any] = {}
        try:
            yield content, facts
        except BaseException:
            if goes_on:
                total = before + time.monotonic() - began
                _write_json(unfinished / _SECONDS_FILE, total)
            raise
        facts["seconds"] = before + time.monotonic() - began
        (unfinished / _SECONDS_FILE).unlink(missing_ok=True)
        _write_json(unfinished / FACTS_FILE, {"inputs": dict(self.inputs), "facts": facts})
        if self.folder.exists():  # it must be damaged, since it is being created again
            shutil.rmtree(self.folder)
        os.replace(unfinished, self.folder)

    def bytes(self) -> int:
        """The size of the content."""
        return sum(path.stat().st_size for path in self.content.rglob("*") if path.is_file())


class WorkFolder:
    """The folder of all cached results."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder: one comparison at a time."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputError(
                f"{self.path} cannot be created: {error.strerror}", "choose another --work folder"
            ) from error
        try:
            with writer_lock(self.path, new=True) as lock, lock.held():
                yield
        except IndexLocked as error:
            raise OutputError(
                f"another comparison is using {self.path}",
                "wait until it has finished, or choose another --work",
            ) from error

    def kept(self, what: str, inputs: Mapping[str, Any]) -> Kept:
        """The result for these inputs, whether or not it exists."""
        every = {"format": _FORMAT, **versions("coil-ir"), **inputs}
        return Kept(self.path / what / digest_of(every), every)


def digest_of(value: Any) -> str:
    """A digest of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX]


def digest_of_file(path: Path) -> str:
    """A digest of the bytes of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()[:_HEX]


def digest_of_folder(folder: Path) -> str:
    """A digest of the names and bytes of all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return digest_of([[path.relative_to(folder).as_posix(), digest_of_file(path)] for path in files])


def _seconds(unfinished: Path) -> float:
    try:
        return float(json.loads((unfinished / _SECONDS_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return 0.0


def _write_json(path: Path, value: Any) -> None:
    write_whole(path, lambda file: file.write(json.dumps(value, indent=1) + "\n"), path.name)
