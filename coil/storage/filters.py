"""Filters on fields: a small expression language, compiled to SQL with parameters.

    year >= 2020 and (lang = "en" or lang = 'de') and not draft = true
    kind in ("function", "class") and module exists

Comparisons are `=`, `!=`, `<`, `<=`, `>`, `>=`, `in (...)` and `exists`; they are combined with `and`, `or`,
`not` and parentheses. Values are "strings", 'strings', numbers, true and false. A field name consists of
letters, digits, `_`, `-` and dots: `a.b` is a field of that name or, if a document has none, the field `b`
inside the field `a`; `id` is the id of the document. A number is compared with numbers and with strings that
represent a number, as in CSV files; a string with strings; true and false with booleans and with the strings
"true" and "false" in any case, as in front matter. If a field is
missing or has another type, every comparison is false, including `!=`. For a list, a comparison is true if it
is true for one of its elements; `!=` if it is true for all of them that have the type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coil.errors import InputError
from coil.texts.values import clean

_TOKEN = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?P<number>[+-]?\d(?:(?<=[eE])[+-]|[\w.])*|[+-])
    |(?P<name>[^\W\d][\w.-]*)|(?P<mark><=|>=|!=|[=<>(),])""",
    re.VERBOSE | re.DOTALL,
)
_SPACE = re.compile(r"\s*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")  # in JSON notation
_REMEDY = 'write for example: year >= 2020 and lang = "en"'
_DEEPEST = 10  # SQLite's parser stack has room for a hundred tokens; a level takes up to six
_MOST_COMPARISONS = 500  # SQLite nests joined expressions, at most a thousand deep
_MOST_VALUES = 10_000
_LONGEST = 1 << 20  # characters
_SHOWN = 200
Value = str | float | bool
_LONGEST_NUMBER = 400  # characters of a string that may be a number
# A field's value {v}, of the JSON type {t}, as one of a kind; else it is NULL, which fails every comparison.
_AS = {
    "text": "WHEN 'text' THEN {v}",
    "bool": "WHEN 'true' THEN 1 WHEN 'false' THEN 0 "
    "WHEN 'text' THEN CASE lower({v}) WHEN 'true' THEN 1 WHEN 'false' THEN 0 END",
    "number": "WHEN 'integer' THEN {v} WHEN 'real' THEN {v} WHEN 'text' THEN CASE WHEN length({v}) <= "
    f"{_LONGEST_NUMBER} AND json_valid({{v}}) THEN CASE WHEN json_type({{v}}) IN ('integer', 'real') "
    "THEN CAST({v} AS NUMERIC) END END",
}


@dataclass(frozen=True)
class Filter:
    """A condition in SQL over a document's id and the types and values of its fields (t0, v0, t1, ...)."""

    where: str
    values: tuple[Any, ...]  # that fields are compared with
    names: tuple[str, ...] = ()  # of fields

    def over(self, documents: str) -> tuple[str, tuple[Any, ...]]:
        """What to select from: these rows of the table, each field read once, however often it is compared;
        and all parameters."""
        if not self.names:
            return documents, self.values
        columns, paths = [], list[str]()
        for n, name in enumerate(self.names):
            kind, value, of_name = columns_of(name)
            columns.append(f"{kind} AS t{n}, {value} AS v{n}")
            paths += of_name
        # The limit is none, but keeps SQLite from reading a field anew for each comparison.
        source = f"(SELECT ordinal, doc_id, {', '.join(columns)} FROM {documents} LIMIT -1 OFFSET 0)"
        return source, (*paths, *self.values)

    def over_values(self, ordinal: int, fields: list[tuple[str | None, Any]]) -> tuple[str, tuple[Any, ...]]:
        """The same for one document, whose fields were read before."""
        columns = "".join(f", ? AS t{n}, ? AS v{n}" for n in range(len(fields)))
        source = f"(SELECT ordinal, doc_id{columns} FROM documents WHERE ordinal = ?)"
        return source, (*(part for field in fields for part in field), ordinal, *self.values)


def parse_filter(expression: str) -> Filter:
    """Parse a filter; raises InputError with the position if it is malformed."""
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        if len(expression) > _LONGEST:
            raise InputError(
                f"the filter has {len(expression):,} characters, which exceeds the limit of {_LONGEST:,}",
                "shorten it",
            )
        self._shown = repr(expression if len(expression) <= _SHOWN else expression[: _SHOWN - 3] + "...")
        self._tokens = self._split(expression)
        self._place = 0
        self._parameters: list[Any] = []
        self._depth = 0
        self._names: dict[str, int] = {}
        self._comparisons = 0
        self._values_read = 0

    def _split(self, expression: str) -> list[tuple[str, str, int]]:
        tokens, place = [], self._skip_space(expression, 0)
        while place < len(expression):
            match = _TOKEN.match(expression, place)
            if match is None or match.lastgroup is None:
                raise InputError(
                    f"syntax error at character {place + 1} of the filter: {self._shown}", _REMEDY
                )
            tokens.append((match.lastgroup, match.group(), place + 1))
            place = self._skip_space(expression, match.end())
        return tokens

    @staticmethod
    def _skip_space(expression: str, place: int) -> int:
        found = _SPACE.match(expression, place)
        return found.end() if found is not None else place

    def parse(self) -> Filter:
        where = self._either()
        if self._place < len(self._tokens):
            raise self._error("the end")
        return Filter(where, tuple(self._parameters), tuple(self._names))

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
            raise InputError(f"the filter is nested deeper than {_DEEPEST} levels", "use fewer parentheses")
        try:
            if self._take_word("not"):
                return f"({self._single()} IS NOT 1)"  # a comparison that fails may be NULL
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
        self._comparisons += 1
        if self._comparisons > _MOST_COMPARISONS:
            raise InputError(
                f"the filter exceeds the limit of {_MOST_COMPARISONS} comparisons",
                "use `in` to compare a field with several values: lang in ('de', 'en')",
            )
        if self._take_word("exists"):
            if name == "id":
                return "(doc_id IS NOT NULL)"
            return f"(coalesce(t{self._number(name)}, 'null') != 'null')"
        if self._take_word("in"):
            return self._is_one_of(name, self._values())
        for mark in ("=", "!=", "<=", ">=", "<", ">"):
            if self._take("mark", mark):
                value = self._value()
                return self._compared(name, _kind(value), mark, "?", [value])
        raise self._error("=, !=, <, <=, >, >=, in or exists")

    def _is_one_of(self, name: str, values: list[Value]) -> str:
        parts = []
        for kind in _AS:
            of_kind = [value for value in values if _kind(value) == kind]
            if of_kind:
                several = f"({', '.join('?' * len(of_kind))})"
                parts.append(self._compared(name, kind, "IN", several, of_kind))
        # Where the field is of one kind, it is NULL, and so is its part, for the others.
        return "(" + " OR ".join(f"coalesce({part}, 0)" for part in parts) + ")"

    def _compared(self, name: str, kind: str, mark: str, to: str, values: list[Value]) -> str:
        """A comparison of the field if it is of this kind, or of the elements of a list."""
        self._parameters += values
        if name == "id":
            return f"(CASE 'text' {_AS[kind].format(v='doc_id')} END {mark} {to})"
        self._parameters += values
        number = self._number(name)
        plain = f"CASE t{number} {_AS[kind].format(v=f'v{number}')} END {mark} {to}"
        element = f"CASE type {_AS[kind].format(v='value')} END"
        found = (
            f"(SELECT {'min' if mark == '!=' else 'max'}({element} {mark} {to}) FROM json_each(v{number}))"
        )
        return f"(CASE t{number} WHEN 'array' THEN {found} ELSE {plain} END)"

    def _number(self, name: str) -> int:
        """The column of a field."""
        return self._names.setdefault(name, len(self._names))

    def _values(self) -> list[Value]:
        if not self._take("mark", "("):
            raise self._error("an opening parenthesis")
        values = [self._value()]
        while self._take("mark", ","):
            values.append(self._value())
        if not self._take("mark", ")"):
            raise self._error("a closing parenthesis")
        return values

    def _value(self) -> Value:
        self._values_read += 1
        if self._values_read > _MOST_VALUES:
            raise InputError(f"the filter exceeds the limit of {_MOST_VALUES:,} values", "use fewer values")
        _, _, place = self._tokens[self._place] if self._place < len(self._tokens) else ("", "", 0)
        text = self._take("text")
        if text is not None:
            return _text(re.sub(r"\\(.)", r"\1", text[1:-1], flags=re.DOTALL), place)
        number = self._take("number")
        if number is not None:
            return _number(number, place)
        for word, meaning in (("true", True), ("false", False)):
            if self._take_word(word):
                return meaning
        raise self._error("a string in quotes, a number, true or false")

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
            found = f"{value[:_SHOWN]} at character {place}"
        else:
            found = "ended"
        return InputError(f"the filter {self._shown} has {found}; expected {expected}", _REMEDY)


def _text(value: str, place: int) -> str:
    """A string that SQLite can compare, cleaned like stored ids and fields."""
    if "\0" in value:
        raise InputError(
            f"the string at character {place} of the filter contains a NUL character", "remove it"
        )
    return clean(value)


def _number(value: str, place: int) -> float:
    """A number in JSON notation, within SQLite's range."""
    shown = value if len(value) <= 40 else value[:37] + "..."
    if not _NUMBER.fullmatch(value):
        raise InputError(
            f"{shown!r} at character {place} of the filter is not a number",
            "write numbers as 7, -1.5 or 2e6, and strings in quotes",
        )
    if not math.isfinite(float(value)):
        raise InputError(
            f"the number {shown} at character {place} of the filter is too large",
            "the largest number is about 1.8e308",
        )
    whole = value.lstrip("-").isdigit() and len(value) <= 20  # a sign and 19 digits
    return int(value) if whole and abs(int(value)) < 2**63 else float(value)


def _kind(value: Value) -> str:
    return "bool" if isinstance(value, bool) else "text" if isinstance(value, str) else "number"


def columns_of(name: str) -> tuple[str, str, list[str]]:
    """The type and the value of a field as SQL expressions, with the parameters of both.

    The value of an object is NULL: it is equal to nothing and may be large.
    """
    path, values = path_of(name)
    kind = f"json_type(fields, {path})"
    return kind, f"CASE WHEN {kind} != 'object' THEN json_extract(fields, {path}) END", 3 * values


def path_of(name: str) -> tuple[str, list[str]]:
    """The JSON path of a field as an SQL expression, with its parameters.

    A field is looked up under its full name first and then, if that contains dots, inside other fields.
    """
    whole = f'$."{name}"'
    if "." not in name:
        return "?", [whole]
    inside = "$" + "".join(f'."{part}"' for part in name.split("."))
    return "CASE WHEN json_type(fields, ?) IS NULL THEN ? ELSE ? END", [whole, inside, whole]
