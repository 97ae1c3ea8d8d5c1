"""Atomic writing of text files; what is no file, such as standard output, is written directly."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TextIO, TypeVar

from coil.errors import OutputError

T = TypeVar("T")
_RUNS = (".trec", ".run")
# Opening /dev/stdout would empty a file that the shell appends to, and fails if it is a socket.
_STANDARD_OUTPUT = ("-", "/dev/stdout")


def check_output(path: str | Path, inputs: Iterable[str | Path | None]) -> None:
    """Refuse to replace a file that the same command reads, alone or as part of a folder."""
    for source in inputs if not is_standard_output(path) else ():
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


def is_standard_output(path: str | Path) -> bool:
    """Whether a path of an output stands for standard output."""
    return str(path) in _STANDARD_OUTPUT


def name_output(path: str | Path) -> str:
    """The name of an output for messages."""
    return "standard output" if is_standard_output(path) else str(path)


def _is_read_from(folder: str | Path, path: str | Path) -> bool:
    """Whether a path is an existing file in a folder; a run is not read from folders."""
    if not (os.path.isdir(folder) and os.path.isfile(path)) or Path(path).suffix in _RUNS:
        return False
    return Path(os.path.realpath(folder)) in Path(os.path.realpath(path)).parents


def write_whole(path: str | Path, write: Callable[[TextIO], T], example: str) -> T:
    """Write a file that appears under its name only when it is complete.

    Until then, and after a failure, an existing file is kept. If `path` is a folder, the error suggests
    `example` as a file name. `-` is standard output.
    """
    try:
        if is_standard_output(path):
            with _standard_output() as output:
                return write(output)
        if os.path.isdir(path):
            raise OutputError(f"{path} is a folder; expected a file name", f"write to {path}/{example}")
        if os.path.exists(path) and not os.path.isfile(path):  # /dev/null must not be replaced
            # Not through its real path: that of a pipe in /dev/fd does not exist.
            with open(path, "w", encoding="utf-8", newline="\n") as device:
                return write(device)
        target = Path(os.path.realpath(path))  # a link is kept, and its target replaced
        unfinished = target.with_name(f".{target.name[:200]}.{os.getpid()}.unfinished")
        try:
            with unfinished.open("w", encoding="utf-8", newline="\n") as file:
                written = write(file)
            os.replace(unfinished, target)
        finally:
            unfinished.unlink(missing_ok=True)
        return written
    except OSError as error:
        if is_standard_output(path) and isinstance(error, BrokenPipeError):
            raise  # the reader has exited, as in `coil ... | head`: no mistake
        raise OutputError(
            f"{name_output(path)} cannot be written: {error.strerror or error}",
            "check the folder, its permissions and the free disk space",
        ) from error


def _standard_output() -> AbstractContextManager[TextIO]:
    """Standard output in UTF-8, whatever the locale; it stays open."""
    if sys.stdout is None:
        raise OutputError("standard output is closed", "write to a file")
    sys.stdout.flush()
    try:
        number = sys.stdout.fileno()
    except (OSError, ValueError):  # the program has replaced it by an object in memory
        return nullcontext(sys.stdout)
    return open(number, "w", encoding="utf-8", newline="\n", closefd=False)
