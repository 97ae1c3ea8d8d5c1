"""Filters on fields: a small expression language, turned into SQL with parameters.

    year >= 2020 and (lang = "en" or lang = 'de') and not draft = true
    kind in ("function", "class") and module exists

Comparisons are `=`, `!=`, `<`, `<=`, `>`, `>=`, `in (...)`, `exists`; they join with `and`, `or`, `not` and
parentheses. Values are "texts", 'texts', numbers, true, false. A field name is letters, digits, `_`, `-` and
dots for fields inside fields; `id` is the document's id. A field that a document does not have fails every
comparison, `!=` too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coil.errors import InputError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)
    |(?P<name>[^\W\d][\w.-]*)|(?P<mark><=|>=|!=|[=<>(),]))""",
    re.VERBOSE,
)
_REMEDY = 'write for example: year >= 2020 and lang = "en"'
_DEEPEST = 50


@dataclass(frozen=True)
class Filter:
    """A condition in SQL over the table `documents`, and the values that belong into it."""

    where: str
    parameters: tuple[Any, ...]


def parse_filter(expression: str) -> Filter:
    """Read a filter; what cannot be read is an InputError that says where."""
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = self._split(expression)
        self._place = 0
        self._parameters: list[Any] = []
        self._depth = 0

    def _split(self, expression: str) -> list[tuple[str, str, int]]:
        tokens, place = [], 0
        while expression[place:].strip():
            match = _TOKEN.match(expression, place)
            if match is None or match.lastgroup is None:
                raise InputError(
                    f"the filter cannot be read at character {place + 1}: {expression!r}", _REMEDY
                )
            tokens.append((match.lastgroup, match.group(match.lastgroup), match.start(match.lastgroup) + 1))
            place = match.end()
        return tokens

    def parse(self) -> Filter:
        where = self._either()
        if self._place < len(self._tokens):
            raise self._error("the end")
        return Filter(where, tuple(self._parameters))

    def _either(self) -> str:
        return self._joined("or", self._both)

    def _both(self) -> str:
        return self._joined("and", self._single)

    def _joined(self, word: str, part: Callable[[], str]) -> str:
        parts = [part()]
        while self._take_word(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else "(" + f" {word.upper()} ".join(parts) + ")"

    def _single(self) -> str:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise InputError(f"the filter is nested deeper than {_DEEPEST} levels", "write it flatter")
        try:
            if self._take_word("not"):
                return f"(NOT coalesce({self._single()}, 0))"
            if self._take("mark", "("):
                inside = self._either()
                if not self._take("mark", ")"):
                    raise self._error("a closing parenthesis")
                return inside
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> str:
        name = self._take("name")
        if name is None:
            raise self._error("the name of a field")
        field = "doc_id" if name == "id" else "json_extract(fields, ?)"
        path = () if name == "id" else (_json_path(name),)
        if self._take_word("exists"):
            self._parameters += path
            return f"({field} IS NOT NULL)"
        if self._take_word("in"):
            self._parameters += path
            return f"({field} IN ({self._values()}))"
        for mark in ("=", "!=", "<=", ">=", "<", ">"):
            if self._take("mark", mark):
                self._parameters += path
                self._parameters.append(self._value())
                return f"({field} {mark} ?)"
        raise self._error("=, !=, <, <=, >, >=, in or exists")

    def _values(self) -> str:
        if not self._take("mark", "("):
            raise self._error("an opening parenthesis")
        self._parameters.append(self._value())
        marks = ["?"]
        while self._take("mark", ","):
            self._parameters.append(self._value())
            marks.append("?")
        if not self._take("mark", ")"):
            raise self._error("a closing parenthesis")
        return ", ".join(marks)

    def _value(self) -> Any:
        text = self._take("text")
        if text is not None:
            return re.sub(r"\\(.)", r"\1", text[1:-1])
        number = self._take("number")
        if number is not None:
            value = json.loads(number)
            if isinstance(value, int) and abs(value) >= 2**63:
                return float(value)
            return value
        for word, meaning in (("true", 1), ("false", 0)):
            if self._take_word(word):
                return meaning
        raise self._error("a text in quotes, a number, true or false")

    def _take(self, kind: str, text: str | None = None) -> str | None:
        if self._place < len(self._tokens):
            found, value, _ = self._tokens[self._place]
            if found == kind and (text is None or value == text):
                self._place += 1
                return value
        return None

    def _take_word(self, word: str) -> bool:
        if self._place < len(self._tokens):
            kind, value, _ = self._tokens[self._place]
            if kind == "name" and value.lower() == word:
                self._place += 1
                return True
        return False

    def _error(self, expected: str) -> InputError:
        if self._place < len(self._tokens):
            _, value, place = self._tokens[self._place]
            found = f"{value} at character {place}"
        else:
            found = "its end"
        return InputError(
            f"the filter {self._expression!r} has {found} where {expected} was expected", _REMEDY
        )


def _json_path(name: str) -> str:
    return "$" + "".join(f'."{part}"' for part in name.split("."))
