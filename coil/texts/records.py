"""Records: the named values of one text, from all supported kinds of files.

| extension | a record |
|---|---|
| .jsonl, .ndjson, or `-` | one JSON object per line |
| .tsv | `id<TAB>text` per line, where further tabs belong to the text; or one row, with a header |
| .csv | one row, with a header; cells are separated by commas, or else by semicolons or tabs |
| .parquet | one row |

Each may be compressed with gz, xz, bz2 or zst. The first line of a .tsv is a header if its first column has a
usual name of an id and another one that of a text; most such files have no header.

MS MARCO's `msmarco-docs.tsv` has four columns (id, url, title, body) and no header.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from coil.errors import BadLine, InputError, how_many, require
from coil.texts.decompression import COMPRESSIONS
from coil.texts.opening import (
    LONGEST,
    STANDARD_INPUT,
    Gauge,
    Source,
    check_readable,
    check_values,
    decode,
    json_lines,
    name_of,
    read_lines,
    shorten,
    split_name,
)
from coil.texts.parquet import read_parquet
from coil.texts.values import clean

Record = dict[str, Any]


@dataclass(frozen=True)
class Keys:
    """The names of ids and texts in records, in order of preference.

    A table must have all columns in `named`; if there are any, a .tsv must have a header.
    """

    ids: tuple[str, ...]
    texts: tuple[str, ...]
    named: tuple[str, ...] = ()


Reader = Callable[[Source, Keys, Gauge | None], Iterator[tuple[int, Record]]]

MOST_DIGITS = 4300  # of a whole number: Python's JSON reader refuses more
MOST_LEVELS = 100  # of lists and objects in a field: far fewer than any reader or writer of JSON can handle
_LARGEST = 10**MOST_DIGITS
_CSV_COST = 4
_CSV_SEPARATORS = (",", ";", "\t")  # in order of preference; spreadsheets write semicolons in many countries
_CSV_LINE = re.compile("[^\r]*\r\n?|[^\r]+")
_MISSING = {("pandas", "NaTType"), ("pandas", "NAType")}
_SHOWN_COLUMNS = 400  # characters
_MARCO_DOCUMENTS, _MARCO_COLUMNS = "msmarco-docs", ["id", "url", "title", "body"]


def read_records(source: Source, keys: Keys, gauge: Gauge | None = None) -> Iterator[tuple[int, Record]]:
    """The records of a file with their line (or row) numbers; `keys` are used to recognize a header."""
    return _reader(source)(source, keys, gauge)


def check_records(source: Source, others: Sequence[str] = ()) -> None:
    """Fail early if the file is missing or of an unsupported kind.

    `others` are further kinds that the caller supports; the remedy names them as well.
    """
    check_readable(source)
    _reader(source, others)


def find_in_folder(folder: Path, name: str) -> Path | None:
    """The file with this name in a folder, plain or compressed; None if there is none."""
    candidates = (folder / f"{name}{compression}" for compression in ("", *COMPRESSIONS))
    return next((path for path in candidates if path.is_file()), None)


def take_id(record: Record, keys: Sequence[str], where: str, line: int) -> tuple[str, str]:
    """The key that holds the id, and the id as a string; a whole number is converted."""
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        raise BadLine(
            where,
            line,
            f"no id found among the keys {_shown_keys(record)}",
            f"add one of the keys {', '.join(keys)}, or name another one with --id-column (id_column)",
        )
    value = record[key].item() if isinstance(record[key], np.generic) else record[key]
    if isinstance(value, int) and not isinstance(value, bool) and -_LARGEST < value < _LARGEST:
        value = str(value)
    if not isinstance(value, str) or not value:
        raise BadLine(
            where,
            line,
            f"the id under {key!r} is {_show(value)}; expected a non-empty string",
            "use a string or a whole number",
        )
    return key, clean(value)


def take_texts(record: Record, keys: Sequence[str], where: str, line: int) -> list[str]:
    """The non-empty texts, in the order of `keys`. At least one of the keys must be present."""
    found = [key for key in keys if key in record]
    if not found:
        raise BadLine(
            where,
            line,
            f"no text found among the keys {_shown_keys(record)}",
            f"add one of the keys {', '.join(keys)}",
        )
    for key in found:
        if not isinstance(record[key], str | None):
            raise BadLine(
                where,
                line,
                f"the text under {key!r} is {_show(record[key])}; expected a string",
                "write it as a string",
            )
    return [clean(record[key]) for key in found if record[key]]


def _show(value: object) -> str:
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        return f"a number of more than {MOST_DIGITS:,} digits"
    return shorten(str(value))


class SameName(ValueError):
    """Two names become the same string: one of the values would be lost."""


class TooDeep(ValueError):
    """Lists and objects are nested too deeply."""


def plain_value(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Convert a value to one that JSON can represent.

    Dates and the like become strings; NaN, infinities and missing values of pandas become None. NumPy's
    numbers become Python's, and a NUL becomes U+FFFD. A whole number with more digits than Python's JSON
    reader accepts is a ValueError, two keys that become the same name are a SameName, and more than `levels`
    lists and objects in one another are a TooDeep.
    """
    if isinstance(value, np.generic):
        value = _item(value)
    if isinstance(value, str):
        return _field_text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
        raise ValueError(f"a number has more than {MOST_DIGITS:,} digits")
    if value is None or isinstance(value, bool | int):
        return value
    if (type(value).__module__.split(".")[0], type(value).__name__) in _MISSING:
        return None
    if isinstance(value, np.ndarray):
        value = list(value) if value.dtype.kind in "mM" else value.tolist()
    if isinstance(value, dict | list | tuple) and levels == 0:
        raise TooDeep(f"the fields are nested deeper than {MOST_LEVELS} levels")
    if isinstance(value, dict):
        named = {_field_text(str(key)): plain_value(inner, levels - 1) for key, inner in value.items()}
        if len(named) < len(value):
            raise SameName("an object in the fields has the same name twice, under different keys")
        return named
    if isinstance(value, list | tuple):
        return [plain_value(inner, levels - 1) for inner in value]
    if isinstance(value, bytes):
        return decode(value)
    return _field_text(str(value))


def _item(value: np.generic) -> Any:
    """A NumPy value as a Python value; a date or duration that Python cannot represent becomes a string."""
    plain = value.item()
    return str(value) if isinstance(value, np.datetime64 | np.timedelta64) and type(plain) is int else plain


def _field_text(text: str) -> str:
    """Replace NUL, at which SQLite ends a JSON string: a filter would compare only the part before it."""
    return clean(text).replace("\0", "\ufffd")


def _reader(source: Source, others: Sequence[str] = ()) -> Reader:
    if str(source) == STANDARD_INPUT:
        return _read_json_lines
    suffix = split_name(source)[1]
    if suffix not in _READERS:
        raise InputError(
            f"{name_of(source)} has an unsupported file type: {suffix!r}",
            f"rename or convert it to one of {', '.join((*_READERS, *others))}, optionally compressed",
        )
    if suffix == ".parquet":
        require("pyarrow.parquet", "readers")
    return _READERS[suffix]


def _read_json_lines(source: Source, _: Keys, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    return json_lines(source, gauge)


def _read_tsv(source: Source, keys: Keys, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    marco = split_name(source)[0] == _MARCO_DOCUMENTS and not keys.named
    header: list[str] | None = _MARCO_COLUMNS if marco else None
    first = not marco
    longest = gauge.longest if gauge is not None else LONGEST
    for number, line in read_lines(source, gauge):
        if not line or line.isspace():
            continue
        if first and "\r" in line.rstrip("\r\n"):
            raise BadLine(
                name_of(source),
                number,
                "its lines end with carriage returns alone",
                "convert them to line feeds, such as with tr '\\r' '\\n'",
            )
        if first or header is not None:
            check_values(line, "\t", longest, name_of(source), number)
            row = line.rstrip("\r\n").split("\t")
        if first and (keys.named or (row[0] in keys.ids and not set(keys.texts).isdisjoint(row[1:]))):
            header = row
            _check_header(header, source, number, keys)
        elif header is not None:
            remedy = "use a .csv or .jsonl file for texts that contain tabs, or two columns without a header"
            yield number, _name_cells(header, row, source, number, remedy)
        else:
            doc_id, tab, text = line.rstrip("\r\n").partition("\t")
            if not tab:
                raise BadLine(name_of(source), number, f"no tab in {shorten(line)}", "write id<TAB>text")
            yield number, {"id": doc_id, "text": text}
        first = False


def _read_csv(source: Source, keys: Keys, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    # The limit is a global of the csv module, 128 kB by default; longer texts need a higher one.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
    # The module takes four bytes per character, and twice that while a cell grows.
    longest = (gauge.longest if gauge is not None else LONGEST) // _CSV_COST
    line = 1  # where the row begins: a quoted cell may span many lines
    size = 0  # of the row so far
    blank = 0  # lines before the header
    separator = ""

    def lines() -> Iterator[str]:
        nonlocal blank, line, separator, size
        for text in _csv_lines(source, gauge):
            if not separator:
                if text.isspace():
                    blank += 1
                    continue
                line, separator = blank + 1, _separator_of(text)
            size += len(text)
            if size > longest:
                raise BadLine(
                    name_of(source),
                    line,
                    f"the row exceeds the limit of {longest:,} characters",
                    "close the open quote, split very long documents, or raise --memory",
                )
            check_values(text, separator, longest, name_of(source), line)
            yield text

    texts = lines()
    first = next(texts, "")  # the header, which shows the separator
    rows = csv.reader(chain([first], texts), delimiter=separator or ",", strict=True)
    header: list[str] | None = None
    while True:
        line, size = blank + rows.line_num + 1, 0
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadLine(
                name_of(source),
                line,
                f"invalid CSV: {error}",
                'quote cells as "..." and write a quote inside them as ""',
            ) from error
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = row
            _check_header(header, source, line, keys)
        else:
            yield (
                line,
                _name_cells(header, row, source, line, "quote cells that contain separators or line breaks"),
            )


def _csv_lines(source: Source, gauge: Gauge | None) -> Iterator[str]:
    """The lines of a table; if a carriage return alone ends its header, it ends the other lines as well.

    Old programs for the Mac write such files. Within quotes, the csv module joins the lines again.
    """
    at_returns: bool | None = None
    for _, text in read_lines(source, gauge):
        if at_returns is None and not text.isspace():
            header, found, _ = text.lstrip().rstrip("\r\n").partition("\r")
            at_returns = bool(found) and header.count('"') % 2 == 0
        if at_returns:
            yield from (line[0] for line in _CSV_LINE.finditer(text))
        else:
            yield text


def _separator_of(header: str) -> str:
    """The separator of a table, found outside the quotes of its header; by default a comma."""
    outside = "".join(header.split('"')[::2])
    return next((mark for mark in _CSV_SEPARATORS if mark in outside), ",")


def _check_header(header: Sequence[str], source: Source, line: int, keys: Keys) -> None:
    if header.count("") > 1:
        raise BadLine(name_of(source), line, "several columns have no name", "name them, or remove them")
    if len(set(header)) < len(header):
        shown = shorten(",".join(header))
        raise BadLine(name_of(source), line, f"two columns have the same name: {shown}", "rename one of them")
    check_columns(name_of(source), header, keys.named)


def check_columns(where: str, there: Sequence[str], named: Sequence[str]) -> None:
    """Raise InputError if a named column is missing; the message lists the existing ones."""
    for name in named:
        if name not in there:
            shown = shorten(", ".join(there), _SHOWN_COLUMNS)
            raise InputError(
                f"{where} has no column {name!r:.80}; its columns are {shown}", "use one of these"
            )


def _name_cells(header: Sequence[str], row: Sequence[str], source: Source, line: int, remedy: str) -> Record:
    if len(row) != len(header):
        found = f"{how_many(len(row), 'cell')}, but the header has {len(header)}"
        if len(header) == 1:
            remedy = "make the names of the columns the first line of the file"
        raise BadLine(name_of(source), line, found, remedy)
    return dict(zip(header, row, strict=True))


def _read_parquet(source: Source, keys: Keys, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    def check(numbered: tuple[int, Record]) -> tuple[int, Record]:
        if numbered[0] == 1:
            check_columns(name_of(source), list(numbered[1]), keys.named)
        return numbered

    return map(check, read_parquet(source, gauge))


def _shown_keys(record: Record) -> str:
    return shorten(", ".join(str(key) for key in record)) if record else "none"


_READERS: dict[str, Reader] = {
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
