"""Rows of a Parquet file, in bounded memory.

The footer gives the bytes and values of a row group, but not the sizes of its pages, each of which is
unpacked as a whole; so the page headers are read first. A value is no longer than the largest page of its
column. This determines how many rows are read at a time, even if a dictionary repeats one long value in every
row.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from coil.errors import BadLine, InputError, require
from coil.texts.opening import LONGEST, VALUE_BYTES, VALUES, Gauge, Source, name_of, open_bytes, split_name
from coil.texts.thrift import Fields, read_struct

ROWS = 1024  # read at a time, if they are small
COLUMN = 4  # limit on the lists of a row group, which may all be in one row; in multiples of the longest line

PAGES = 8  # limit on the memory of the pages of all columns, of which each has one; in multiples of that line

_REMEDY = "write the file with smaller pages and row groups, split long documents, or raise --memory"
_HEADER_BYTES = (1 << 12, 1 << 16, 1 << 24)  # a page header is small, unless its statistics are large
_BUFFER = 1 << 16
_BYTE_ARRAYS = (6, 7)  # physical types: BYTE_ARRAY and FIXED_LEN_BYTE_ARRAY
FOOTER = 8  # the footer may take this fraction of the longest line: one eighth
_PAGE_COPIES = 3  # packed, unpacked, and its values in Arrow: measured 2.4 to 3.0 times the largest page
_ROW_BYTES = 128  # of a value of a row in Python, without its characters
_BYTES_A_VALUE = 16  # per value of a list, including its definition and repetition levels


def read_parquet(source: Source, gauge: Gauge | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file, numbered from 1, as dicts by column name."""
    arrow, parquet = require("pyarrow", "readers"), require("pyarrow.parquet", "readers")
    longest, where = gauge.longest if gauge is not None else LONGEST, name_of(source)
    with open_bytes(source, gauge) as plain:
        file = _unpacked(plain, longest, where) if split_name(source)[2] else plain
        try:
            groups = _row_groups(file, longest, where)
            # With a buffer, a column is read page by page, not all at once.
            opened = parquet.ParquetFile(file, buffer_size=_BUFFER, pre_buffer=False)
            check_names(opened.schema_arrow.names, where)
            number = 0
            for group, columns in enumerate(groups):
                at_once = _check_group(file, opened.schema, group + 1, columns, longest, where)
                for batch in opened.iter_batches(at_once, row_groups=[group], use_threads=False):
                    for row in _rows(batch, arrow, longest, where, number):
                        number += 1
                        yield number, row
        except OverflowError as error:
            raise unreadable_value(where, error) from error
        except (arrow.ArrowException, OSError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), "")
            raise InputError(
                f"{where} cannot be read as parquet: {reason}", "write or download the file again"
            ) from error


def check_names(columns: Sequence[str], where: str) -> None:
    """Refuse a table with two columns of the same name: a row would keep only one of the values."""
    if len(set(columns)) < len(columns):
        twice = next(name for name, times in Counter(columns).items() if times > 1)
        raise InputError(f"two columns of {where} are named {twice!r:.80}", "rename one of them")


def unreadable_value(where: str, error: Exception) -> InputError:
    """The error for a value that Python cannot represent, such as a date after the year 9999."""
    return InputError(
        f"{where} has a value that cannot be read: {next(iter(str(error).splitlines()), '')}",
        "write dates and durations that are out of range as strings",
    )


def _unpacked(file: BinaryIO, longest: int, where: str) -> BinaryIO:
    """A compressed file, unpacked as a whole, because reading Parquet starts at the end of the file."""
    data = file.read(longest + 1)
    if len(data) > longest:
        raise InputError(
            f"{where} exceeds the limit of {longest:,} bytes for a compressed .parquet file",
            "decompress it first, since Parquet is compressed inside; or raise --memory",
        )
    return io.BytesIO(data)


def _check_group(
    file: BinaryIO, schema: Any, group: int, columns: list[_Column], longest: int, where: str
) -> int:
    """Refuse a row group that would not fit into memory; returns how many rows to read at a time."""
    row_bytes, page_bytes = 1, 0
    for place, column in enumerate(columns):
        what = f"{where}, row group {group}, column {column.name!r}"
        largest_page, values = 0, 0
        for page in _pages(file, column):
            largest_page = max(largest_page, page[0])
            values += page[1]
            if largest_page > longest:
                raise InputError(
                    f"{what}: a page of {largest_page:,} bytes exceeds the limit of {longest:,}", _REMEDY
                )
            if page[1] * _BYTES_A_VALUE > COLUMN * longest:
                most = COLUMN * longest // _BYTES_A_VALUE
                raise InputError(
                    f"{what}: a page of {page[1]:,} values exceeds the limit of {most:,}", _REMEDY
                )
        if values > column.values:
            raise ValueError(f"{what} has {values:,} values, but {column.values:,} are declared")
        if schema.column(place).max_repetition_level:  # lists: the whole column may be one row
            size = max(column.unpacked, _BYTES_A_VALUE * column.values)
            if size > COLUMN * longest:
                raise InputError(
                    f"{what}: lists of {size:,} bytes exceed the limit of {COLUMN * longest:,} per row group",
                    f"drop the column, or {_REMEDY}",
                )
        row_bytes += _ROW_BYTES + (largest_page if column.kind in _BYTE_ARRAYS else 0)
        page_bytes += _PAGE_COPIES * largest_page
    if page_bytes > PAGES * longest:
        raise InputError(
            f"{where}, row group {group}: the pages of its {len(columns):,} columns take about "
            f"{page_bytes:,} bytes of memory together, which exceeds the limit of {PAGES * longest:,}",
            "write the file with smaller pages or fewer columns, or raise --memory",
        )
    return max(1, min(ROWS, longest // row_bytes))


def _rows(batch: Any, arrow: Any, longest: int, where: str, number: int) -> Iterator[dict[str, Any]]:
    if _size(batch, arrow) <= longest // 4:
        yield from batch.to_pylist()
        return
    for place in range(batch.num_rows):
        row = batch.slice(place, 1)
        size = _size(row, arrow)
        if size > longest:
            raise BadLine(
                where,
                number + place + 1,
                f"the row takes {size:,} bytes of memory, which exceeds the limit of {longest:,}",
                "split the document, drop the large column, or raise --memory",
            )
        yield from row.to_pylist()


def _size(batch: Any, arrow: Any) -> int:
    """Bytes of some rows: those of the Arrow arrays or of their list values in Python, whichever is more."""
    values = sum(_values(column, arrow) for column in batch.columns)
    return max(int(batch.nbytes), values * VALUE_BYTES // VALUES)


def _values(array: Any, arrow: Any) -> int:
    """The number of values in lists and other nested columns."""
    kind = array.type
    if arrow.types.is_map(kind):
        array = array.cast(arrow.list_(arrow.struct([("key", kind.key_type), ("value", kind.item_type)])))
    elif arrow.types.is_struct(kind):
        return sum(len(part) + _values(part, arrow) for part in array.flatten())
    elif not any(check(kind) for check in _list_checks(arrow)):
        return 0
    inner = array.flatten()
    return len(inner) + _values(inner, arrow)


def _list_checks(arrow: Any) -> tuple[Any, ...]:
    return arrow.types.is_list, arrow.types.is_large_list, arrow.types.is_fixed_size_list


# ---- the metadata of the file


@dataclass(frozen=True)
class _Column:
    """One column of a row group."""

    name: str
    kind: int
    values: int
    unpacked: int  # bytes of all pages
    begin: int
    end: int


def _row_groups(file: BinaryIO, longest: int, where: str) -> list[list[_Column]]:
    """The columns of each row group, from the footer."""
    size = file.seek(0, io.SEEK_END)
    file.seek(max(0, size - 8))
    end = file.read(8)
    length = int.from_bytes(end[:4], "little")
    if len(end) < 8 or end[4:] != b"PAR1" or length + 8 > size:
        raise ValueError("no footer")
    if length > longest // FOOTER:
        raise InputError(
            f"{where}: a footer of {length:,} bytes exceeds the limit of {longest // FOOTER:,}", _REMEDY
        )
    file.seek(size - 8 - length)
    groups = _parse(file.read(length)).get(4)
    try:
        return [[_column(column[3]) for column in group[1]] for group in groups or []]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("a damaged footer") from error


def _column(fields: Fields) -> _Column:
    begin = min(fields[9], fields.get(11) or fields[9])  # the dictionary, if there is one, comes first
    if not fields[5]:  # without values there may be no page, and its offset is meaningless
        begin, fields = 0, {**fields, 7: 0}
    name = b".".join(fields[3]).decode("utf-8", "replace")
    return _Column(name, fields[1], fields[5], fields[6], begin, begin + fields[7])


def _pages(file: BinaryIO, column: _Column) -> Iterator[tuple[int, int]]:
    """The size of each page of a column, compressed or not, whichever is larger, and its number of values."""
    begin = column.begin
    while begin < column.end:
        header, length = _page_header(file, begin)
        data = header.get(5) or header.get(8) or {1: 0}  # values of a dictionary page are not counted
        size, packed, values = header.get(2), header.get(3), data.get(1) if isinstance(data, dict) else None
        if not (isinstance(size, int) and isinstance(packed, int) and isinstance(values, int)):
            raise ValueError("a damaged page header")
        if min(size, packed, values) < 0:
            raise ValueError("a page of negative size")
        yield max(size, packed), values
        begin += length + packed


def _page_header(file: BinaryIO, begin: int) -> tuple[Fields, int]:
    if begin < 0:
        raise ValueError("a page before the beginning of the file")
    for most in _HEADER_BYTES:
        file.seek(begin)
        data = file.read(most)
        try:
            return read_struct(data)
        except IndexError:
            if len(data) < most:
                break
    raise ValueError("a damaged page header")


def _parse(data: bytes) -> Fields:
    try:
        return read_struct(data)[0]
    except IndexError as error:
        raise ValueError("a truncated footer") from error
