"""Hits as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from coil.errors import InputError, require
from coil.hits.hit import Hit
from coil.texts.questions import check_list

if TYPE_CHECKING:
    from pandas import DataFrame

COLUMNS = ("rank", "doc_id", "score", "share", "text")


def to_frame(hits: Iterable[Hit]) -> DataFrame:
    """The hits of a query as a pandas DataFrame, one per row: rank, doc_id, score, share, text and fields.

    A field with the same name as one of these columns becomes `fields.NAME`.
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
    rows = [{**{name: getattr(hit, name) for name in COLUMNS}, **_fields(hit.fields)} for hit in given]
    names = dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)])
    frame: DataFrame = pandas.DataFrame(rows, columns=list(names))
    return frame


def _fields(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields under names that no column has."""
    return {f"fields.{name}" if name in COLUMNS else name: value for name, value in fields.items()}
