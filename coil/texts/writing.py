"""Atomic writing of text files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TextIO, TypeVar

from coil.errors import OutputError

T = TypeVar("T")
_RUNS = (".trec", ".run")


def check_output(path: str | Path, inputs: Iterable[str | Path | None]) -> None:
    """Refuse to replace a file that the same command reads, alone or as part of a folder."""
    for source in inputs:
        try:
            same = source is not None and os.path.isfile(source) and os.path.samefile(path, source)
            inside = source is not None and _is_read_from(source, path)
        except (OSError, ValueError):  # one of them is not there, or is no path
            continue
        if same:
            raise OutputError(f"{path} is both the input and the output", "write to another file")
        if inside:
            raise OutputError(
                f"{path} is in {source}, which this command reads", "write to a file outside that folder"
            )


def _is_read_from(folder: str | Path, path: str | Path) -> bool:
    """Whether a path is an existing file in a folder; a run is not read from folders."""
    if not (os.path.isdir(folder) and os.path.isfile(path)) or Path(path).suffix in _RUNS:
        return False
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def write_whole(path: str | Path, write: Callable[[TextIO], T], example: str) -> T:
    """Write a file that appears under its name only when it is complete.

    Until then, and after a failure, an existing file is kept. If `path` is a folder, the error suggests
    `example` as a file name.
    """
    try:
        target = Path(os.path.realpath(path))  # a link is kept, and its target replaced
        if target.exists() and not target.is_file():
            if target.is_dir():
                raise OutputError(f"{path} is a folder; expected a file name", f"write to {path}/{example}")
            with target.open("w", encoding="utf-8", newline="\n") as device:  # /dev/null must not be replaced
                return write(device)
        unfinished = target.with_name(f".{target.name[:200]}.{os.getpid()}.unfinished")
        try:
            with unfinished.open("w", encoding="utf-8", newline="\n") as file:
                written = write(file)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        return written
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}",
            "check the folder, its permissions and the free disk space",
        ) from error
