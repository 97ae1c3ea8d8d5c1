"""Opening text files: plain, compressed, or standard input. Every failure is an InputError.

A source is a path, or `-` for standard input. The extension .gz, .xz, .bz2 or .zst determines the
compression; without one (on standard input in particular), the first bytes do.

Text is UTF-8, and invalid UTF-8 never stops a reader: each byte that cannot be decoded becomes one U+FFFD,
and so does each lone surrogate from a JSON escape (`values.clean`). What the readers return can therefore
always be encoded again. Files that are not UTF-8 are counted, and a warning of the logger `coil.texts` names
the first of them at the end. A byte order mark at the start is dropped. Only a line feed ends a line. A line,
or a file that is one text, that is longer than the gauge allows is an error: it might not fit into memory,
and a file without line breaks is sometimes a mistake.
"""

from __future__ import annotations

import codecs
import io
import json
import logging
import lzma
import os
import re
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

from coil.errors import BadLine, InputError, NotText, how_many
from coil.interruptions import let_through
from coil.texts.decompression import COMPRESSIONS, decompressed
from coil.texts.values import clean

_log = logging.getLogger("coil.texts")

Source = str | Path
"""A path, or `-` for standard input."""

STANDARD_INPUT = "-"

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_WHITE_SPACE = re.compile("[ \t\r\n\v\f]+")  # not `\s`: ids may contain U+00A0 and the like
_SHOWN = 60
_DECODED = 1 << 20
_SHOWN_FROM = 10_000
_NAMED = 3  # files that are not UTF-8, in a warning
LONGEST = 128 << 20  # bytes of a line; a longer document has more chunks than a segment has rows
WINDOWS = 2  # memory limit of a decompressor's window, in multiples of the longest line
VALUE_BYTES = 200  # memory that a value of a JSON line takes as two Python objects: as read, and as a field
VALUES = 2  # memory limit of all values of a line, in multiples of the longest line

_PLAIN_STRING = re.compile('"[^"]*"?')  # a JSON string without escapes; the last one may not be closed
_WINDOW = 1 << 20  # characters examined at a time, while no other thread can run
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_FOUR_BYTES = re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")  # characters beyond U+FFFF, escaped or not
_TWO_BYTES = re.compile(rb"[\xc4-\xef]|\\u(?!00)")
_CONTINUATIONS = bytes(range(0x80, 0xC0))


@dataclass
class Gauge:
    """The limits and counts of reading: the longest line in bytes, and the bytes read from files so far.

    Of compressed files, the compressed bytes are counted.
    """

    longest: int = LONGEST
    bytes_read: int = 0
    not_utf8: int = 0  # files with bytes that are not UTF-8
    first_not_utf8: list[str] = field(default_factory=list)
    _last_not_utf8: str = ""

    def decode(self, raw: bytes, source: Source) -> str:
        """Decode UTF-8 (see `decode`); a source that is not UTF-8 is counted once."""
        text = decode(raw)
        if "\ufffd" in text and not is_utf8(raw) and self._last_not_utf8 != name_of(source):
            self._last_not_utf8 = name_of(source)
            self.not_utf8 += 1
            if len(self.first_not_utf8) < _NAMED:
                self.first_not_utf8.append(name_of(source))
        return text

    def warn(self) -> None:
        """Log which files were not UTF-8, if there were any."""
        if self.not_utf8:
            first = self.first_not_utf8
            named = ", ".join(first) + (", ..." if self.not_utf8 > len(first) else "")
            _log.warning(
                "%s not UTF-8; invalid bytes were read as U+FFFD: %s; "
                "if it is Latin-1, try: iconv -f latin1 -t utf-8 %s > converted",
                f"{how_many(self.not_utf8, 'file')} {'is' if self.not_utf8 == 1 else 'are'}",
                named,
                first[0],
            )


def name_of(source: Source) -> str:
    """The name of a source in messages, without characters that a terminal would obey."""
    return "standard input" if str(source) == STANDARD_INPUT else _CONTROL.sub("�", clean(str(source)))


def split_name(source: Source) -> tuple[str, str, str]:
    """The file name as (stem, format suffix, compression suffix): `a.b.jsonl.gz` → `a.b`, `.jsonl`, `.gz`."""
    stem, suffix = _cut_suffix(Path(source).name)
    if suffix.lower() not in COMPRESSIONS:
        return stem, suffix.lower(), ""
    inner, kind = _cut_suffix(stem)
    return inner, kind.lower(), suffix.lower()


def _cut_suffix(name: str) -> tuple[str, str]:
    """Like `Path.stem` and `Path.suffix`, but faster: a folder may have many files."""
    place = name.rfind(".")
    return (name[:place], name[place:]) if 0 < place < len(name) - 1 else (name, "")


def check_readable(source: Source) -> None:
    """Fail early if a source cannot be opened, before hours are spent on the sources before it."""
    if str(source) == STANDARD_INPUT:
        _standard_input()
        return
    if os.path.isdir(source):
        raise InputError(f"{name_of(source)} is a folder; expected a file", "pass a file in it")
    if os.path.isfile(source) or not os.path.exists(source):  # opening a pipe would consume its data
        with open_bytes(source):
            pass


def _standard_input() -> BinaryIO:
    if sys.stdin is None:  # the shell's `<&-`
        raise InputError("standard input is closed", "pipe the documents in, or pass a file")
    return sys.stdin.buffer


@contextmanager
def open_bytes(source: Source, gauge: Gauge | None = None) -> Iterator[BinaryIO]:
    """The decompressed bytes of a source. Errors while reading them become InputErrors; damage is NotText."""
    where, window = name_of(source), WINDOWS * (gauge.longest if gauge is not None else LONGEST)
    try:
        if str(source) == STANDARD_INPUT:
            yield decompressed(_peekable(_standard_input()), "", where, window)  # left open: it is not ours
        else:
            with (
                _open(source, gauge) as file,
                decompressed(file, split_name(source)[2], where, window) as plain,
            ):
                yield plain
    except EOFError as error:
        raise NotText(
            where,
            "truncated: it ends in the middle of its compressed data",
            "download or copy the file again",
        ) from error
    except FileNotFoundError as error:
        raise InputError(f"file not found: {where}", "check the path") from error
    except PermissionError as error:
        raise InputError(f"permission denied: {where}", f"chmod u+r {where}") from error
    except (OSError, zlib.error, lzma.LZMAError) as error:
        let_through(error)
        if isinstance(error, OSError) and error.errno is not None:  # an error of the system, not the data
            raise InputError(
                f"{where} cannot be read: {error.strerror}", "check the path and the disk"
            ) from error
        raise NotText(
            where,
            f"damaged, or not in the format of its extension: {error}",
            "download or copy the file again, or rename it if it is not compressed",
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
            _check_line(raw, longest, name_of(source), number)
            if number == 1 and raw.startswith(_UTF16_MARKS):
                raise InputError(
                    f"{name_of(source)} is UTF-16; expected UTF-8",
                    f"iconv -f utf-16 -t utf-8 {name_of(source)} > converted",
                )
            held = [raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw]
            del raw  # do not keep a long line in memory while its document is indexed
            yield number, counting.decode(held.pop(), source)
    if gauge is None:  # otherwise the caller warns
        counting.warn()


def read_text(source: Source, gauge: Gauge) -> bytes:
    """All bytes of a file that is one text."""
    with open_bytes(source, gauge) as file:
        data = file.read(gauge.longest + 1)
    size = max(len(data), size_as_text(data) if len(data) > gauge.longest // 4 else 0)
    if size > gauge.longest:
        raise InputError(
            f"{name_of(source)} exceeds the limit of {gauge.longest:,} bytes for one text",
            "split it into several files, or raise --memory",
        )
    return data


def _check_line(raw: bytes, longest: int, where: str, number: int) -> None:
    """Refuse a line that is too long, as bytes or as characters."""
    if len(raw) > longest:
        what = f"the line exceeds the limit of {longest:,} bytes"
    elif len(raw) > longest // 4 and (size := size_as_text(raw)) > longest:
        what = f"the line takes {size:,} bytes of memory, which exceeds the limit of {longest:,}"
    else:
        return
    raise BadLine(
        where,
        number,
        f"{what}: {shorten(decode(raw[:_SHOWN]))}",
        "write one document per line and split very long ones, or raise --memory",
    )


def size_as_text(raw: bytes) -> int:
    """Bytes that a text takes in memory: one, two or four per character, depending on the widest one."""
    valid = is_utf8(raw)
    width = 4 if _FOUR_BYTES.search(raw) else 2 if not valid or _TWO_BYTES.search(raw) else 1
    return width * (len(raw.translate(None, _CONTINUATIONS)) if valid else len(raw))


def check_values(
    text: str, separators: str, longest: int, where: str, number: int, is_json: bool = False
) -> None:
    """Refuse a line of very many small values, which take far more memory than their characters."""
    most = VALUES * longest // VALUE_BYTES
    if len(text) > most and sum(map(text.count, separators)) >= most:
        if is_json:  # a comma in a string is not a separator
            values = 1 + count_separators(text, separators, most)
        else:
            values = 1 + sum(map(text.count, separators))
        if values > most:
            raise BadLine(
                where,
                number,
                f"the line exceeds the limit of {most:,} values",
                "split the document, drop the field with so many values, or raise --memory",
            )


def count_separators(text: str, separators: str, most: int, window: int = _WINDOW) -> int:
    """Count the separators outside the strings of a JSON text; stops once there are more than `most`.

    A single regular expression for strings with escapes would take a hundred bytes per escape.
    """
    found, begin, in_string = 0, 0, False
    while begin < len(text) and found <= most:
        part = text[begin : begin + window]
        if (len(part) - len(part.rstrip("\\"))) % 2:  # keep an escaped character with its backslash
            part = text[begin : begin + window + 1]
        begin += len(part)
        part = '"' * in_string + part.replace("\\\\", "").replace('\\"', "")
        in_string = part.count('"') % 2 == 1
        outside = _PLAIN_STRING.sub("", part)
        found += sum(map(outside.count, separators))
    return found


def decode(raw: bytes) -> str:
    """Decode UTF-8, with one U+FFFD for each invalid byte."""
    return clean(raw.decode("utf-8", errors="surrogateescape"))


def is_utf8(raw: bytes) -> bool:
    """Whether bytes are UTF-8; they are decoded in blocks, to save memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        for begin in range(0, len(raw), _DECODED):
            decoder.decode(raw[begin : begin + _DECODED], begin + _DECODED >= len(raw))
    except UnicodeDecodeError:
        return False
    return True


def json_lines(source: Source, gauge: Gauge | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON-lines source with their line numbers; blank lines are skipped."""
    longest = gauge.longest if gauge is not None else LONGEST

    def parse(numbered: tuple[int, str]) -> tuple[int, dict[str, Any]]:
        number, line = numbered
        check_values(line, ",[{", longest, name_of(source), number, is_json=True)
        return number, read_object(line, name_of(source), number)

    # Not a generator: that would keep each line in memory while its document is indexed.
    return map(parse, filter(_has_text, read_lines(source, gauge)))


def _has_text(numbered: tuple[int, str]) -> bool:
    return bool(numbered[1]) and not numbered[1].isspace()


def read_object(line: str, where: str, number: int) -> dict[str, Any]:
    """The JSON object on a line; an error names `where` and the line number."""
    try:
        value = json.loads(line)
    except RecursionError as error:
        raise BadLine(where, number, "the JSON is nested too deeply", "flatten it") from error
    except json.JSONDecodeError as error:
        # The error's own text always says "line 1".
        what = f"invalid JSON: {error.msg} at column {error.colno}: {shorten(line)}"
        raise BadLine(where, number, what, "write one JSON object per line") from error
    except ValueError as error:  # too many digits for Python, whose message would name a setting of Python
        raise BadLine(
            where, number, "a number has thousands of digits", "write it as a string, in quotes"
        ) from error
    if not isinstance(value, dict):
        raise BadLine(
            where,
            number,
            f"expected a JSON object, found {shorten(line)}",
            'write one object per line, such as {"id": "a", "text": "..."}',
        )
    return value


def split_columns(line: str, *counts: int) -> list[str]:
    """The columns of a line: split at tabs if that gives one of `counts`, otherwise at white space.

    Splitting at tabs first allows spaces in ids, as in the paths of a folder of notes.
    """
    at_tabs = line.rstrip("\r\n").split("\t")
    return at_tabs if len(at_tabs) in counts else [part for part in _WHITE_SPACE.split(line) if part]


def shorten(text: str, most: int = _SHOWN) -> str:
    """The start of a text, quoted for a message."""
    text = text[:_SHOWN_FROM].strip()
    return repr(text if len(text) <= most else text[: most - 3] + "...")


class _CountedFile(io.FileIO):
    """A file that reports to a gauge how much was read from it."""

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
    """Standard input with `peek`: it may have been replaced by a stream without that method."""
    return (
        stream if hasattr(stream, "peek") else cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, stream)))
    )
