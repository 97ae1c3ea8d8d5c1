"""Mistakes: describes invalid values of a request in plain words, with a remedy.

The messages of FastAPI and pydantic ("body.k: Input should be a valid integer") name neither the valid keys
nor a remedy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from coil.service.problems import Problem
from coil.service.schemas import MOST_UNKNOWN
from coil.texts.opening import shorten
from coil.texts.values import clean
from coil.tokens.profile import By

Found = Mapping[str, Any]  # one error of pydantic: type, loc, msg, input, ctx

_MOST = MOST_UNKNOWN
_KINDS = {  # what was expected, by the first word of pydantic's type of error, and how to write it
    "int": ("a whole number", "write {name} as a whole number, such as 10"),
    "bool": ("true or false", "write {name} as true or false"),
    "string": ("a string", 'write {name} as a string in quotes, such as "steep banks"'),
    "float": ("a number", "write {name} as a number, such as 0.25"),
    "finite": ("a number", "write {name} as a number, such as 0.25"),
    "list": ("a list of strings", 'write {name} as a list of strings, such as ["a", "b"]'),
}
_NAMES = {
    "q": ("query", "queries"),
    "id": ("doc_id", "doc_ids"),
}  # the name used elsewhere


def problem_of_mistakes(found: Sequence[Found], known: Sequence[str]) -> Problem:
    """All errors as one problem; `known` are the keys that the body may have."""
    unknown = [clean(str(one["loc"][-1])) for one in found if one["type"] == "extra_forbidden"]
    others = [one for one in found if one["type"] != "extra_forbidden"]
    told, remedies = [], []
    if unknown:
        several = "s" if len(unknown) > 1 else ""
        told.append(f"unknown key{several} {', '.join(shorten(name) for name in unknown[:_MOST])}")
        for name in unknown[:_MOST]:
            meant = next((key for key in _NAMES.get(name, ()) if key in known), None)
            if meant is not None:
                remedies.append(f"use {meant} instead of {name}")
        remedies.append(f"valid keys: {', '.join(known)}")
    for one in others[:_MOST]:
        reason, remedy = _tell(one, known)
        told.append(reason)
        if remedy not in remedies and not (
            unknown and one["type"] == "missing"
        ):  # the known keys are listed already
            remedies.append(remedy)
    return Problem(422, "bad_request", "; ".join(told), "; ".join(remedies))


def _tell(found: Found, known: Sequence[str]) -> tuple[str, str]:
    """A mistake, and what to do about it."""
    kind, place = str(found["type"]), found["loc"]
    send = f"send one JSON object with {', '.join(known)}"
    if kind == "json_invalid":
        reason = str(found["ctx"]["error"])
        return f"the body is not JSON: {reason[:1].lower()}{reason[1:]} (character {place[-1]})", send
    if len(place) == 1:
        if kind == "missing":
            return "the body is empty", send
        if kind == "string_unicode":
            return "a key of the body is not valid Unicode: it contains a lone surrogate", send
        return f"the body is {_show(found['input'])}; expected a JSON object", send
    name = _name(place[1:])
    if kind == "missing":
        where = "parameter" if place[0] == "query" else "key"
        return f"the {where} {name} is missing", f"add {name}"
    if kind == "greater_than_equal":
        least = found["ctx"]["ge"]
        return f"{name}={_plain(found['input'])} is below the minimum of {least}", f"use {least} or more"
    if kind == "less_than_equal":
        most = f"{found['ctx']['le']:,}"
        return f"{name}={_plain(found['input'])} exceeds the limit of {most}", f"use {most} or less"
    if kind == "literal_error" or (place[-1] == "by" and isinstance(found["input"], str)):
        choices = ", ".join(get_args(By))  # `by` is the only key with a fixed set of values
        return f"{name} is {_show(found['input'])}; expected one of {choices}", f"use one of {choices}"
    if kind == "too_short":
        return f"{name} is empty", f"pass at least {found['ctx']['min_length']}"
    if kind == "int_parsing_size":
        return f"{name} is a number of {len(found['input']):,} digits", f"use a smaller {name}"
    expected, remedy = _KINDS.get(kind.partition("_")[0], ("", ""))
    if not expected:  # no schema of ours gives another one
        return f"{name}: {found['msg']}", "see /docs for the expected values"
    return f"{name} is {_show(found['input'])}; expected {expected}", remedy.format(name=name)


def _name(place: Sequence[str | int]) -> str:
    """A key as one would write it: `queries[1]`."""
    return clean("".join(f"[{part}]" if isinstance(part, int) else part for part in place))


def _plain(value: object) -> str:
    """A number as it was written, also as a parameter, where it is a string at first."""
    return shorten(clean(str(value))).strip("'")


def _show(value: object) -> str:
    """A JSON value for a message: short ones as they are, others by their type."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case str():
            return f"the string {shorten(clean(value))}"
        case int() | float() if not isinstance(value, float) or math.isfinite(value):
            return shorten(str(value)).strip("'")
        case list():
            return "a list"
        case Mapping():
            return "an object"
    return "a number out of range"
