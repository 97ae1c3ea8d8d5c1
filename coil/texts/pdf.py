"""The text of PDF files, read with pypdf in a separate process, which is stopped if it takes too long.

A single page of some files takes hours or exhausts the memory. A thread cannot be stopped; a process can, and
it can have a memory limit of its own.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coil.errors import InputError, NotText, require

_PROCESS = Path(__file__).with_name("pdf_process.py")
_CHECKED = 0.05  # seconds between two checks of the time limits
_GRACE = 5.0  # seconds beyond the limit, after which the process ends by itself
_ROOM = 16  # memory limit of the process in multiples of the longest text, half of `--memory`
_LEAST_ROOM = 256 << 20  # bytes; pypdf takes about a hundred times as much as the content of a page
_CONVERT = "convert it to text, for example with pdftotext"


@dataclass(frozen=True)
class PdfLimits:
    """Time limits in seconds, per page and per file."""

    page: float = 30.0
    file: float = 600.0


class _Watchdog:
    """Kills a process that does not return a page in time."""

    def __init__(self, process: subprocess.Popen[bytes], limits: PdfLimits) -> None:
        self._process, self._limits = process, limits
        self._end = time.monotonic() + limits.file
        self._page_end = time.monotonic() + limits.page
        self._done = threading.Event()
        self.has_bitten = False

    def renew(self) -> None:
        """Restart the time limit of a page, after a page has arrived."""
        self._page_end = time.monotonic() + self._limits.page

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the process, and kill it on exit, whatever happens."""
        thread = threading.Thread(target=self._watch, name="coil-pdf", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._done.set()
            thread.join()
            self._process.kill()

    def _watch(self) -> None:
        while not self._done.wait(_CHECKED):
            if time.monotonic() > min(self._end, self._page_end):
                self.has_bitten = True
                self._process.kill()
                return


def read_pdf(
    data: bytes,
    where: str,
    longest: int,
    limits: PdfLimits = PdfLimits(),  # noqa: B008  the class is frozen
) -> tuple[str, str]:
    """The title and the text of a PDF; raises NotText if it has no text, or takes too much time or memory."""
    require("pypdf", "pdf")
    pages: list[str] = []
    characters = 0
    title: str | None = None
    with _start(limits, where, longest) as process:
        watchdog = _Watchdog(process, limits)
        with watchdog.watching():
            for found in _answers(process, data):
                watchdog.renew()
                if "failure" in found:
                    raise _failure(where, found, longest)
                if "title" in found:
                    title = found["title"]
                    break
                pages.append(found["page"])
                characters += len(found["page"])
                if characters > longest:
                    raise _too_long(where, longest)
            else:  # the output ended early: the exit status tells why
                process.wait()
    if title is None:
        raise _ended(where, limits, len(pages), watchdog.has_bitten, process.returncode)
    text = "\n\n".join(page for page in pages if page)
    if not text:
        raise NotText(
            where, "a PDF without text, possibly scanned", "run an OCR program such as ocrmypdf on it"
        )
    return title, text


def _start(limits: PdfLimits, where: str, longest: int) -> subprocess.Popen[bytes]:
    numbers = (limits.page + _GRACE, max(_LEAST_ROOM, _ROOM * longest), longest)
    command = [sys.executable, "-I", str(_PROCESS), *map(str, numbers), *sys.path]
    try:
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise InputError(
            f"{where} cannot be read: no process could be started: {error.strerror}",
            "check the limits on memory and processes, or convert the file to text",
        ) from error


def _answers(process: subprocess.Popen[bytes], data: bytes) -> Iterator[dict[str, Any]]:
    """The answers of the process as they arrive; an incomplete last line is dropped."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # the process has ended: its exit status tells why
        process.stdin.write(data)
    with suppress(BrokenPipeError):
        process.stdin.close()
    for line in process.stdout:
        if line.endswith(b"\n"):
            yield json.loads(line)


def _too_long(where: str, longest: int) -> InputError:
    return InputError(
        f"{where}: the text exceeds the limit of {longest:,} characters",
        "split the document, or raise --memory",
    )


def _failure(where: str, found: dict[str, Any], longest: int) -> InputError:
    if found["failure"] == "long":
        return _too_long(where, longest)
    if found["failure"] == "encrypted":
        return NotText(where, "encrypted", "save it without a password")
    if found["failure"] == "memory":
        return NotText(where, "a PDF that requires too much memory", _CONVERT)
    return NotText(where, f"not a valid PDF: {found['reason']:.200}", "save or download the file again")


def _ended(where: str, limits: PdfLimits, pages: int, is_late: bool, status: int) -> BaseException:
    """The error for a process that ended without an answer."""
    if is_late:
        late = f"page {pages + 1} took over {limits.page:g} s, or the whole file over {limits.file:g} s"
        return NotText(where, f"a PDF that takes too long to read: {late}", _CONVERT)
    if status == -signal.SIGINT:  # Ctrl-C goes to both processes
        return KeyboardInterrupt()
    return NotText(where, f"a PDF that crashes its reader (status {status})", _CONVERT)
