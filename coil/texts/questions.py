"""Questions as a program asks them: the same checks wherever they come in."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from coil.errors import InputError


def check_query(query: object) -> str:
    """A query, which is a text."""
    if not isinstance(query, str):
        raise InputError(f"a query is {_a(query)}; expected a string", "search for a string")
    return query


def check_queries(queries: Any) -> list[str]:
    """Queries from any iterable; a single text is one query."""
    if isinstance(queries, str):
        return [queries]
    return [check_query(query) for query in check_list(queries, "the queries are", 'write ["..."]')]


def check_k(k: object) -> int:
    """How many hits: any whole number, those of numpy too, but not True or False."""
    try:
        number = -1 if isinstance(k, bool) else operator.index(k)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        found = "negative" if isinstance(k, int) and not isinstance(k, bool) else _a(k)
        raise InputError(f"k is {found}; expected a whole number, 0 or more", "write it as k=10")
    return number


def check_filter(filter: object) -> str | None:
    """A filter, which is a text, or none."""
    if filter is not None and not isinstance(filter, str):
        raise InputError(f"the filter is {_a(filter)}; expected a string", "write it as 'year >= 2020'")
    return filter


def check_id(doc_id: object) -> str:
    """An id, which is a text."""
    if not isinstance(doc_id, str):
        raise InputError(f"an id is {_a(doc_id)}; expected a string", "copy one from a result")
    return doc_id


def check_ids(doc_ids: Any) -> list[str]:
    """Ids from any iterable but a text."""
    if isinstance(doc_ids, str):
        raise InputError("got one id; expected a list of ids", f"write [{doc_ids[:80]!r}]")
    return [check_id(doc_id) for doc_id in check_list(doc_ids, "the ids are", 'write ["a", "b"]')]


def check_list(given: Any, what: str, remedy: str) -> Iterable[Any]:
    """Anything that can be gone through."""
    try:
        found: Iterable[Any] = iter(given)
    except TypeError as error:
        raise InputError(f"{what} {_a(given)}; expected a list", remedy) from error
    return found


def _a(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
