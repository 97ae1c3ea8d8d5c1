"""Opening files of text: plain or compressed, or standard input, with every failure as an InputError.

A source is a path, or `-` for standard input. A name that ends in .gz, .xz, .bz2 or .zst says how the file is
compressed; where the name does not say (standard input above all), the first bytes do.

Text is UTF-8, and invalid UTF-8 never stops a reader: each byte that cannot be decoded becomes one U+FFFD,
and so does each lone surrogate that a JSON escape can smuggle in (`values.clean`). What the readers hand out
can therefore always be encoded again. Files that are not UTF-8 are counted, and a warning of the logger
`coil.texts` names the first of them when all is read. A byte order mark at the start is dropped. Only a line
feed ends a line. A line, or a text in a file of its own, longer than the gauge allows is an error: it would
not fit into memory, and what is meant to be many lines is sometimes one.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import logging
import lzma
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from coil.errors import BadLine, InputError, how_many, require
from coil.texts.values import clean

_log = logging.getLogger("coil.texts")

Source = str | Path
"""Where text comes from: a path, or `-` for standard input."""

STANDARD_INPUT = "-"
COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")

_FIRST_BYTES = {
    b"\x1f\x8b\x08": ".gz",
    b"\xfd7zXZ\x00": ".xz",
    b"BZh91AY&SY": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
}
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE = re.compile("[ \t\r\n\v\f]+")  # not `\s`: ids may hold U+00A0 and its like
_SHOWN = 60
_NAMED = 3  # files that are not UTF-8
LONGEST = 128 << 20  # bytes of a line; a longer document has more chunks than a segment has rows


@dataclass
class Gauge:
    """What reading may take and has taken: the longest line in bytes, and the bytes read from files so far.

    Compressed files count as they lie on the disk.
    """

    longest: int = LONGEST
    bytes_read: int = 0
    not_utf8: int = 0  # files with bytes that are not UTF-8
    first_not_utf8: list[str] = field(default_factory=list)
    _last_not_utf8: str = ""

    def decode(self, raw: bytes, source: Source) -> str:
        """UTF-8 as text, as `decode` does it; a source that is not UTF-8 is counted, once."""
        text = decode(raw)
        if "\ufffd" in text and not is_utf8(raw) and self._last_not_utf8 != name_of(source):
            self._last_not_utf8 = name_of(source)
            self.not_utf8 += 1
            if len(self.first_not_utf8) < _NAMED:
                self.first_not_utf8.append(name_of(source))
        return text

    def warn(self) -> None:
        """Say which files were not UTF-8, if there were any."""
        if self.not_utf8:
            first = self.first_not_utf8
            named = ", ".join(first) + (", ..." if self.not_utf8 > len(first) else "")
            _log.warning(
                "%s not UTF-8, bytes that are not were read as U+FFFD: %s; "
                "try: iconv -f latin1 -t utf-8 %s > converted, if it is Latin-1",
                f"{how_many(self.not_utf8, 'file')} {'is' if self.not_utf8 == 1 else 'are'}",
                named,
                first[0],
            )


def name_of(source: Source) -> str:
    """What messages call a source."""
    return "standard input" if str(source) == STANDARD_INPUT else clean(str(source))


def split_name(source: Source) -> tuple[str, str, str]:
    """The file name as (stem, format suffix, compression suffix): `a.b.jsonl.gz` → `a.b`, `.jsonl`, `.gz`."""
    path = Path(source)
    compression = path.suffix.lower() if path.suffix.lower() in COMPRESSIONS else ""
    inner = Path(path.stem) if compression else Path(path.name)
    return inner.stem, inner.suffix.lower(), compression


def check_readable(source: Source) -> None:
    """Fail early: before an hour of work on the sources that stand before this one."""
    if str(source) != STANDARD_INPUT:
        if Path(source).is_dir():
            raise InputError(f"{name_of(source)} is a folder, a file was expected", "name a file of it")
        if Path(source).is_file() or not Path(source).exists():  # opening a pipe would take from it
            with open_bytes(source):
                pass


@contextmanager
def open_bytes(source: Source, gauge: Gauge | None = None) -> Iterator[BinaryIO]:
    """The decompressed bytes of a source. What goes wrong in reading them becomes an InputError."""
    where = name_of(source)
    try:
        if str(source) == STANDARD_INPUT:
            yield _decompressed(_peekable(sys.stdin.buffer), "")  # left open: it is not ours to close
        else:
            with _open(source, gauge) as file, _decompressed(file, split_name(source)[2]) as plain:
                yield plain
    except EOFError as error:
        raise InputError(
            f"{where} ends in the middle of its compressed data",
            "fetch or copy the file again, it was cut short",
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"there is no file {where}", "check the path") from error
    except PermissionError as error:
        raise InputError(f"{where} may not be read by this user", f"chmod u+r {where}") from error
    except (OSError, zlib.error, lzma.LZMAError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # the machine, not the bytes
            raise InputError(
                f"{where} cannot be read: {error.strerror}", "check the path and the disk"
            ) from error
        raise InputError(
            f"{where} is damaged, or is not compressed as its name says: {error}",
            "fetch or copy the file again, or rename it if it is not compressed",
        ) from error


def read_lines(source: Source, gauge: Gauge | None = None) -> Iterator[tuple[int, str]]:
    """The lines of a source, numbered from 1, each with its line end."""
    longest = gauge.longest if gauge is not None else LONGEST
    counting = gauge if gauge is not None else Gauge()
    with open_bytes(source, gauge) as file:
        for number in count(1):
            raw = file.readline(longest + 1)
            if not raw:
                break
            if len(raw) > longest:
                raise BadLine(
                    name_of(source),
                    number,
                    f"longer than {longest:,} bytes: {shorten(decode(raw[:_SHOWN]))}",
                    "write one text a line and split very long ones, or allow more with --memory",
                )
            if number == 1 and raw.startswith(_UTF16_MARKS):
                raise InputError(
                    f"{name_of(source)} is UTF-16, but texts are read as UTF-8",
                    f"iconv -f utf-16 -t utf-8 {name_of(source)} > converted",
                )
            yield number, counting.decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw, source)
    if gauge is None:  # who gave one will ask it
        counting.warn()


def read_text(source: Source, gauge: Gauge) -> bytes:
    """All bytes of a file that is one text."""
    with open_bytes(source, gauge) as file:
        data = file.read(gauge.longest + 1)
    if len(data) > gauge.longest:
        raise InputError(
            f"{name_of(source)} is longer than {gauge.longest:,} bytes",
            "split it into several files, or allow more with --memory",
        )
    return data


def decode(raw: bytes) -> str:
    """UTF-8 as text; one U+FFFD for each byte that is not UTF-8."""
    return clean(raw.decode("utf-8", errors="surrogateescape"))


def is_utf8(raw: bytes) -> bool:
    """Whether bytes are UTF-8."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def json_lines(source: Source, gauge: Gauge | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines source with their line numbers; blank lines are skipped."""
    for number, line in read_lines(source, gauge):
        if line.strip():
            yield number, read_object(line, name_of(source), number)


def read_object(line: str, where: str, number: int) -> dict[str, Any]:
    """The JSON object of a line; `where` and its number are named if there is none."""
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise BadLine(where, number, "JSON nested too deeply to read", "flatten it") from error
    except ValueError as error:  # JSONDecodeError, and numbers of more digits than Python converts
        # Its own text says "line 1", which here is never the line that is meant.
        what = f"{error.msg} at column {error.colno}" if isinstance(error, json.JSONDecodeError) else error
        raise BadLine(
            where, number, f"broken JSON: {what}: {shorten(line)}", "write one JSON object a line"
        ) from error
    if not isinstance(value, dict):
        raise BadLine(
            where,
            number,
            f"a JSON object was expected, found {shorten(line)}",
            'write one object a line, such as {"id": "a", "text": "..."}',
        )
    return value


def split_columns(line: str, *counts: int) -> list[str]:
    """The columns of a line: cut at tabs where that gives one of `counts`, otherwise at white space.

    Cutting at tabs first lets an id hold spaces, as the paths in a folder of notes do.
    """
    at_tabs = line.rstrip("\r\n").split("\t")
    return at_tabs if len(at_tabs) in counts else [part for part in _WHITE_SPACE.split(line) if part]


def shorten(text: str) -> str:
    """The start of a text, quoted for a message."""
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "...")


class _CountedFile(io.FileIO):
    """A file that tells a gauge how much was read from it."""

    def __init__(self, path: Source, gauge: Gauge) -> None:
        super().__init__(path)
        self._gauge = gauge

    def readinto(self, buffer: Any) -> int | None:
        count = super().readinto(buffer)
        self._gauge.bytes_read += count or 0
        return count

    def readall(self) -> bytes:
        data = super().readall()
        self._gauge.bytes_read += len(data)
        return data


def _open(path: Source, gauge: Gauge | None) -> BinaryIO:
    try:
        return open(path, "rb") if gauge is None else io.BufferedReader(_CountedFile(path, gauge))
    except ValueError as error:  # a path that no file can have, such as one with a NUL character
        raise InputError(f"{name_of(path)!r} cannot be opened: {error}", "check the path") from error


def _peekable(stream: BinaryIO) -> BinaryIO:
    """Standard input may have been replaced by something that cannot show its first bytes unread."""
    return (
        stream if hasattr(stream, "peek") else cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream)))
    )


def _decompressed(file: BinaryIO, compression: str) -> BinaryIO:
    start = cast(io.BufferedReader, file).peek(16)[:16]
    if compression and not start:  # gzip would call this an empty text
        raise EOFError("the file is empty")
    if not compression:
        compression = next((kind for mark, kind in _FIRST_BYTES.items() if start.startswith(mark)), "")
    if compression == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if compression == ".xz":
        return cast(BinaryIO, lzma.LZMAFile(file))
    if compression == ".bz2":
        return cast(BinaryIO, bz2.BZ2File(file))
    if compression == ".zst":
        return cast(BinaryIO, io.BufferedReader(_ZstdReader(file)))
    return file


class _ZstdReader(io.RawIOBase):
    """Zstandard frames as a stream. The package's own ends quietly where a file was cut; this one raises."""

    _CHUNK = 1 << 14

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._zstandard = require("zstandard", "readers")
        self._file = file
        self._frame: Any = None  # None between frames
        self._ready = b""
        self._begun = False

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer as far as one chunk goes."""
        while not self._ready:
            chunk = self._file.read(self._CHUNK)
            if not chunk:
                if self._frame is not None or not self._begun:
                    raise EOFError("the zstandard data is cut short")
                return 0
            self._ready = self._decompress(chunk)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _decompress(self, chunk: bytes) -> bytes:
        plain = []
        while chunk:
            if self._frame is None:
                self._frame = self._zstandard.ZstdDecompressor().decompressobj()
                self._begun = True
            try:
                plain.append(self._frame.decompress(chunk))
            except self._zstandard.ZstdError as error:
                raise OSError(str(error)) from error
            chunk = b""
            if self._frame.eof:
                chunk, self._frame = self._frame.unused_data, None
        return b"".join(plain)
