"""Validation of the arguments of a search, the same at every entry point."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np

from coil.errors import InputError
from coil.texts.values import clean

_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,4})?")
MOST_SCORE = 1e9  # far above any score, and on the grid of scores


def check_query(query: object) -> str:
    """Check that a query is a string."""
    if not isinstance(query, str):
        raise InputError(f"a query is {_a(query)}; expected a string", "pass a string")
    return query


def check_queries(queries: Any) -> list[str]:
    """Check queries from any iterable; a string is a single query."""
    if isinstance(queries, str):
        return [queries]
    return [check_query(query) for query in check_list(queries, "the queries are", 'write ["..."]')]


def check_k(k: object) -> int:
    """Check the number of hits."""
    return check_count("k", k, "write it as k=10")


def check_count(name: str, value: object, remedy: str) -> int:
    """Check that a count is a whole number of at least 0, NumPy's included, but not a bool."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if number < 0:
        found = "negative" if isinstance(value, int) and not isinstance(value, bool) else _a(value)
        raise InputError(f"{name} is {found}; expected a whole number of at least 0", remedy)
    return number


def check_number(
    name: str, value: object, remedy: str, least: float = -math.inf, most: float = math.inf
) -> float:
    """Check that a value is a number within limits, NumPy's included, but not a bool and not NaN."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value.item()
    number, found = math.nan, _a(value)
    if not isinstance(value, bool) and isinstance(value, Real):
        try:
            number = float(value)
            found = f"{number:g}"
        except OverflowError:
            found = "too large"
    if not least <= number <= most:
        limits = f" between {least:g} and {most:g}" if math.isfinite(most) else ""
        raise InputError(f"{name} is {found}; expected a number{limits}", remedy)
    return number


def check_min_score(score: object) -> float | None:
    """Check the minimum score of a hit, or None."""
    every = "omit it to get all hits"
    return None if score is None else check_number("min_score", score, every, -MOST_SCORE, MOST_SCORE)


def check_min_share(share: object) -> float | None:
    """Check the minimum share of a hit, or None. It may exceed 1, as the share of a hit may."""
    remedy = "write it as min_share=0.25"
    return None if share is None else check_number("min_share", share, remedy, -MOST_SCORE, MOST_SCORE)


def check_timeout(timeout: object) -> float | None:
    """Check a time limit in seconds, or None."""
    return None if timeout is None else check_number("timeout", timeout, "write seconds, such as timeout=1.5")


def check_most_text(most_text: object, name: str = "most_text") -> int | None:
    """Check the number of bytes of text to read, or None."""
    return None if most_text is None else check_count(name, most_text, "omit it to read all texts")


def check_filter(filter: object) -> str | None:
    """Check that a filter is a string or None."""
    if filter is not None and not isinstance(filter, str):
        raise InputError(f"the filter is {_a(filter)}; expected a string", "write it as 'year >= 2020'")
    return filter


def check_device(device: object) -> str | None:
    """Check the name of a PyTorch device, or None; whether this machine has it is checked on first use."""
    if device is not None and not (isinstance(device, str) and _DEVICE.fullmatch(device)):
        raise InputError(
            f"the device is {show(device)}; expected cpu, cuda, mps or xpu, optionally with a number",
            'write it as device="cuda" or device="cuda:1", or omit it to search on the CPU',
        )
    return device


def check_id(doc_id: object) -> str:
    """Check that an id is a string, and return it as the index stores it."""
    if not isinstance(doc_id, str):
        raise InputError(f"an id is {_a(doc_id)}; expected a string", "copy one from a result")
    return clean(doc_id)


def check_ids(doc_ids: Any) -> list[str]:
    """Check ids from any iterable except a string."""
    if isinstance(doc_ids, str):
        raise InputError("got one id; expected a list of ids", f"write [{doc_ids[:80]!r}]")
    return [check_id(doc_id) for doc_id in check_list(doc_ids, "the ids are", 'write ["a", "b"]')]


def check_callbacks(**given: object) -> None:
    """Check that each of these arguments can be called, or is None."""
    for name, value in given.items():
        if value is not None and not callable(value):
            raise InputError(f"{name} is {_a(value)}; expected a function", f"pass a function as {name}")


def check_list(given: Any, what: str, remedy: str) -> Iterable[Any]:
    """Check that a value is iterable."""
    try:
        found: Iterable[Any] = iter(given)
    except TypeError as error:
        raise InputError(f"{what} {_a(given)}; expected a list", remedy) from error
    return found


def show(value: object) -> str:
    """A value as text for a message, in at most 80 characters."""
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # a number with too many digits, or a list with too many levels
        return _a(value)


def _a(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
