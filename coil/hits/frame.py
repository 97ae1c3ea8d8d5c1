"""Hits as a pandas DataFrame."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from coil.errors import InputError, require
from coil.hits.hit import Hit
from coil.texts.questions import check_list

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("rank", "doc_id", "score", "share", "text")
_DECIMAL = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?")
_DIGITS = 15  # of a decimal number; a float preserves that many
_EXACT = (
    1 << 53
)  # floats represent whole numbers up to this one exactly; missing values turn whole numbers into floats


def to_frame(hits: Iterable[Hit]) -> DataFrame:
    """The hits of a query as a pandas DataFrame, one per row: rank, doc_id, score, share, text and fields.

    A field with the same name as one of these columns becomes `fields.NAME`. A field whose values are all
    numbers written as strings, as in CSV files, becomes a column of numbers if nothing is lost: strings such
    as 007, and a mix such as 3.9 and 3.10, stay strings. Empty strings are then missing values.
    """
    pandas = require("pandas", "pandas")
    if isinstance(hits, Hit):
        raise InputError("got a single hit; expected the hits of a query", "pass [hit]")
    given = list(check_list(hits, "the hits are", "pass the result of index.search"))
    for hit in given:
        if not isinstance(hit, Hit):
            raise InputError(
                f"got a {type(hit).__name__} among the hits; expected a Hit",
                "pass the result of index.search, or one element of the result of search_many",
            )
    fields = [_fields(hit.fields) for hit in given]
    columns: dict[str, Sequence[Any]] = {name: [getattr(hit, name) for hit in given] for name in COLUMNS}
    for name in dict.fromkeys(name for of_hit in fields for name in of_hit):
        columns[name] = _numbers([of_hit.get(name) for of_hit in fields])
    frame: DataFrame = pandas.DataFrame(columns)
    return frame


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields, renamed if a column has the same name."""
    return {f"fields.{name}" if name in COLUMNS else name: value for name, value in fields.items()}


def _numbers(values: list[Any]) -> list[Any]:
    """The values as numbers if all are written as numbers in the same format, otherwise unchanged."""
    written = [value for value in values if value is not None and value != ""]
    if not written or not all(isinstance(value, str) and _DECIMAL.fullmatch(value) for value in written):
        return values
    parse = _parser(written, complete=len(written) == len(values))
    return values if parse is None else [parse(value) if value else None for value in values]


def _parser(written: Sequence[str], complete: bool) -> type[int] | type[float] | None:
    if all("." not in value for value in written):
        most = 1 << 63 if complete else _EXACT
        whole = all(
            len(value) < 20 and str(int(value)) == value and abs(int(value)) < most for value in written
        )
        return int if whole else None
    if any(sum(map(str.isdigit, value)) > _DIGITS for value in written):
        return None
    decimals = max(len(value.partition(".")[2]) for value in written)
    if all(f"{float(value):.{decimals}f}" == value for value in written):
        return float
    return float if all(f"{float(value):.{_DIGITS}g}" == value for value in written) else None
