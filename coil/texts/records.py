"""Records: the named values of one text, whatever kind of file they stand in.

| name ends in | a record |
|---|---|
| .jsonl, .ndjson, or `-` | one JSON object a line |
| .tsv | `id<TAB>text` a line; further tabs belong to the text |
| .csv | one row, named by the header |
| .parquet | one row, named by the columns |

each also compressed with gz, xz, bz2 or zst. `irds:NAME` stands for a dataset of the ir_datasets package.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from coil.errors import BadLine, InputError, require
from coil.texts.opening import (
    COMPRESSIONS,
    LONGEST,
    STANDARD_INPUT,
    Gauge,
    Source,
    check_readable,
    decode,
    json_lines,
    name_of,
    open_bytes,
    read_lines,
    shorten,
    split_name,
)
from coil.texts.values import clean

Record = dict[str, Any]
Reader = Callable[[Source, Gauge | None], Iterator[tuple[int, Record]]]

IRDS = "irds:"


def read_records(source: Source, gauge: Gauge | None = None) -> Iterator[tuple[int, Record]]:
    """The records of a file with their line (or row) numbers."""
    return _reader(source)(source, gauge)


def check_records(source: Source) -> None:
    """Fail early if the file is not there, or is of a kind that cannot be read."""
    check_readable(source)
    _reader(source)


def find_in_folder(folder: Path, name: str) -> Path | None:
    """The file of that name in a BEIR folder, or its compressed form."""
    candidates = (folder / f"{name}{compression}" for compression in ("", *COMPRESSIONS))
    return next((path for path in candidates if path.is_file()), None)


def take_id(record: Record, keys: Sequence[str], where: str, line: int) -> tuple[str, str]:
    """The key that holds the id, and the id: a string, or a whole number written out."""
    key = next((key for key in keys if record.get(key) is not None), None)
    if key is None:
        raise BadLine(
            where,
            line,
            f"no id; the keys are {_shown_keys(record)}",
            f"add one of the keys {', '.join(keys)}",
        )
    value = record[key]
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise BadLine(
            where,
            line,
            f"the id under {key!r} is {shorten(str(value))}",
            "an id is a string or a whole number",
        )
    return key, clean(value)


def take_texts(record: Record, keys: Sequence[str], where: str, line: int) -> list[str]:
    """The texts that are not empty, in the order of `keys`. At least one of the keys must be there."""
    found = [key for key in keys if key in record]
    if not found:
        raise BadLine(
            where,
            line,
            f"no text; the keys are {_shown_keys(record)}",
            f"add one of the keys {', '.join(keys)}",
        )
    for key in found:
        if not isinstance(record[key], str | None):
            raise BadLine(
                where,
                line,
                f"the text under {key!r} is {shorten(str(record[key]))}",
                "a text is a JSON string",
            )
    return [clean(record[key]) for key in found if record[key]]


def plain_value(value: Any) -> Any:
    """A value that JSON can hold: dates and the like become strings, NaN and infinities become None."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, dict):
        return {clean(str(key)): plain_value(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(inner) for inner in value]
    if isinstance(value, bytes):
        return decode(value)
    return clean(str(value))


def is_irds(source: Source) -> bool:
    """Whether a source names a dataset of ir_datasets rather than a file."""
    return str(source).startswith(IRDS)


def load_irds(source: Source) -> Any:
    """The dataset object of `irds:NAME`."""
    package = require("ir_datasets", "irds")
    name = str(source).removeprefix(IRDS)
    try:
        return package.load(name)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"ir_datasets knows no dataset {name!r}", "choose one of the list at https://ir-datasets.com"
        ) from error


def iterate_irds(source: Source, part: str) -> Iterator[tuple[int, Record, str | None]]:
    """The `docs` or `queries` of `irds:NAME`: number, record, and the text as the dataset defines it."""
    dataset = load_irds(source)
    items = getattr(dataset, f"{part}_iter", None)
    if items is None:
        raise InputError(f"{source} has no {part}", "choose a dataset that has them")
    try:
        for number, item in enumerate(items(), start=1):
            yield number, dict(item._asdict()), item.default_text() if hasattr(item, "default_text") else None
    except (OSError, RuntimeError) as error:  # the download, or a licence that must be agreed to first
        raise InputError(
            f"{source} cannot be read: {error}", "see https://ir-datasets.com for the dataset"
        ) from error


def _reader(source: Source) -> Reader:
    if str(source) == STANDARD_INPUT:
        return json_lines
    suffix = split_name(source)[1]
    if suffix not in _READERS:
        raise InputError(
            f"{name_of(source)} is of no known kind: its name ends in {suffix!r}",
            f"rename or convert it to one of {', '.join(_READERS)}, compressed or not",
        )
    if suffix == ".parquet":
        require("pyarrow.parquet", "readers")
    return _READERS[suffix]


def _read_tsv(source: Source, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    for number, line in read_lines(source, gauge):
        if not line.strip():
            continue
        text_id, tab, text = line.rstrip("\r\n").partition("\t")
        if not tab:
            raise BadLine(name_of(source), number, f"no tab in {shorten(line)}", "write id<TAB>text")
        yield number, {"id": text_id, "text": text}


def _read_csv(source: Source, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    # The limit is the csv module's own global, 128 kB, and there is no other way to read longer texts.
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))
    rows = csv.reader((line for _, line in read_lines(source, gauge)), strict=True)
    header: list[str] | None = None
    while True:
        line = rows.line_num + 1  # where the row begins: a quoted cell may run over many lines
        try:
            row = next(rows, None)
        except csv.Error as error:
            raise BadLine(
                name_of(source), line, f"broken CSV: {error}", 'quote cells as "...", a quote in them as ""'
            ) from error
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = row
            if len(set(header)) < len(header):
                raise BadLine(
                    name_of(source), line, f"two columns share a name: {shorten(','.join(row))}", "rename one"
                )
        elif len(row) != len(header):
            raise BadLine(
                name_of(source),
                line,
                f"{len(row)} cells, but the header has {len(header)}",
                "quote cells that hold commas or line breaks",
            )
        else:
            yield line, dict(zip(header, row, strict=True))


def _read_parquet(source: Source, gauge: Gauge | None) -> Iterator[tuple[int, Record]]:
    arrow, parquet = require("pyarrow", "readers"), require("pyarrow.parquet", "readers")
    with open_bytes(source, gauge) as file:
        try:
            table = parquet.ParquetFile(arrow.BufferReader(file.read()) if split_name(source)[2] else file)
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for record in batch.to_pylist():
                    number += 1
                    yield number, record
        except (arrow.ArrowException, OSError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{name_of(source)} cannot be read as parquet: {reason}", "write or fetch the file again"
            ) from error


def _shown_keys(record: Record) -> str:
    return shorten(", ".join(str(key) for key in record)) if record else "none"


_READERS: dict[str, Reader] = {
    ".jsonl": json_lines,
    ".ndjson": json_lines,
    ".tsv": _read_tsv,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
