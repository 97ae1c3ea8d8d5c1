"""Tables in memory: their rows as records.

pandas and polars DataFrames; pyarrow Tables, RecordBatches and their readers; and `datasets.Dataset`s. They
are recognized by their class names, so none of these packages is imported here. A named pandas index is a
column as well; missing values are None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coil.errors import InputError
from coil.texts.parquet import check_names, unreadable_value
from coil.texts.records import Record, check_columns
from coil.texts.values import clean

_AT_ONCE = 1024  # rows converted to Python objects at a time


@dataclass(frozen=True)
class Table:
    """The rows of a table, and the names of its columns if they are known before the first row."""

    name: str
    columns: tuple[str, ...] | None
    rows: Callable[[], Iterator[Record]]

    def check(self, named: Sequence[str]) -> None:
        """Refuse a table with two columns of the same name, or one that lacks a named column."""
        if self.columns is None:
            return
        check_names(self.columns, f"the {self.name}")
        check_columns(f"the {self.name}", self.columns, named)


def as_table(value: Any) -> Table | None:
    """The given value as a table, or None if it is not one."""
    for kind in type(value).__mro__:
        reader = _KINDS.get((kind.__module__.split(".")[0], kind.__name__))
        if reader is not None:
            return reader(value)
    return None


def _pandas(frame: Any) -> Table:
    named = [name for name in frame.index.names if name is not None and name not in frame.columns]
    columns = tuple(clean(str(name)) for name in [*named, *frame.columns])

    def rows() -> Iterator[Record]:
        for begin in range(0, len(frame), _AT_ONCE):
            block = frame.iloc[begin : begin + _AT_ONCE]
            levels = [block.index.get_level_values(name) for name in named]
            series = [*levels, *(block.iloc[:, place] for place in range(block.shape[1]))]
            cells = [one.astype(object).where(one.notna(), None).tolist() for one in series]
            yield from (dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True))

    return Table("DataFrame", columns, rows)


def _polars(frame: Any) -> Table:
    def rows() -> Iterator[Record]:
        return _converted("DataFrame", frame.iter_rows(named=True, buffer_size=_AT_ONCE))

    return Table("DataFrame", tuple(frame.columns), rows)


def _arrow(table: Any) -> Table:
    name = type(table).__name__

    def rows() -> Iterator[Record]:
        blocks = (table.slice(begin, _AT_ONCE) for begin in range(0, table.num_rows, _AT_ONCE))
        return _converted(name, (row for block in blocks for row in block.to_pylist()))

    return Table(name, tuple(table.schema.names), rows)


def _arrow_reader(reader: Any) -> Table:
    def rows() -> Iterator[Record]:
        for batch in reader:
            yield from _arrow(batch).rows()

    return Table("RecordBatchReader", tuple(reader.schema.names), rows)


def _converted(name: str, rows: Iterator[Record]) -> Iterator[Record]:
    """Rows as Python objects; a value that cannot be converted is an InputError."""
    try:
        yield from rows
    except (OverflowError, ValueError) as error:
        raise unreadable_value(f"the {name}", error) from error


def _dataset(dataset: Any) -> Table:
    names = dataset.column_names
    return Table(type(dataset).__name__, None if names is None else tuple(names), lambda: iter(dataset))


def _refuse(remedy: str) -> Callable[[Any], Table]:
    def refuse(value: Any) -> Table:
        raise InputError(f"got a {type(value).__name__}; expected a table of documents", remedy)

    return refuse


_KINDS: dict[tuple[str, str], Callable[[Any], Table]] = {
    ("pandas", "DataFrame"): _pandas,
    ("pandas", "Series"): _refuse("pass a DataFrame, such as series.to_frame()"),
    ("polars", "DataFrame"): _polars,
    ("polars", "LazyFrame"): _refuse("call collect() first"),
    ("polars", "Series"): _refuse("pass a DataFrame, such as series.to_frame()"),
    ("pyarrow", "Table"): _arrow,
    ("pyarrow", "RecordBatch"): _arrow,
    ("pyarrow", "RecordBatchReader"): _arrow_reader,
    ("datasets", "Dataset"): _dataset,
    ("datasets", "IterableDataset"): _dataset,
    ("datasets", "DatasetDict"): _refuse('choose a split, such as data["train"]'),
    ("datasets", "IterableDatasetDict"): _refuse('choose a split, such as data["train"]'),
}
