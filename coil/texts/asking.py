"""The grammar of queries: words to search for, and what a document must or must not contain.

    river "steep bank"        the text must contain the phrase, word for word
    river +bank               the text must contain a form of the word; several (+well-known) are a phrase
    river -money -"due date"  the text must contain neither
    river title:bank          the field must contain the word, or with title:"steep bank" the phrase

A plain sentence is a plain query. + and - are operators only at the start of a word, directly before a
letter or a quote; before a digit, they are the sign of a number. A quote opens a phrase only at the start of
a word, and only if a closing quote follows at the end of a word. A name before a colon is a field only if a
document of the index has that field.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from coil.errors import InputError

MOST_CONDITIONS = 50
_PART = re.compile(
    r"""(?<!\S)(?P<sign>[+-]?)(?P<field>[^\W\d][\w.-]{0,99}:)?
    (?:"(?P<phrase>[^"]{0,2000})"(?!\w)|“(?P<curly>[^“”]{0,2000})”(?!\w)|(?P<word>[^\s"“]\S*))""",
    re.VERBOSE,
)
_SIGNS = re.compile(r'["“:]|(?<!\S)[+-]')
_LETTERS = re.compile(r"\w")
_TRAILING = ".,;:!?)]…"
IsField = Callable[[str], bool]


@dataclass(frozen=True)
class Condition:
    """What a document must or must not contain: a form of a word, or a phrase, word for word.

    `phrase` means that it was quoted; only the tokenizer knows whether it is a single word. If a field is
    given, it is searched instead of the text.
    """

    text: str
    phrase: bool = False
    wanted: bool = True
    field: str | None = None

    def __str__(self) -> str:
        sign = "-" if not self.wanted else "" if self.phrase or self.field else "+"
        field = f"{self.field}:" if self.field else ""
        return sign + field + (f'"{self.text}"' if self.phrase else self.text)


@dataclass(frozen=True)
class Question:
    """A parsed query.

    Documents are scored by `text`: the query with its operators replaced by spaces, so that positions in the
    text are positions in the query.
    """

    query: str
    text: str
    conditions: tuple[Condition, ...] = ()


def may_have_operators(query: str) -> bool:
    """Quickly check whether a query could contain operators."""
    return _SIGNS.search(query) is not None


def plain_question(query: str) -> Question:
    """A query without operators."""
    return Question(query, query)


def read_question(query: str, is_field: IsField) -> Question:
    """Parse a query. A query that only excludes words is an InputError."""
    text = list(query)
    conditions: list[Condition] = []

    def blank(start: int, end: int) -> None:
        text[start:end] = " " * (end - start)

    for match in _PART.finditer(query):
        found = _condition(match, is_field)
        if found is None:
            continue
        condition, (start, end) = found
        conditions.append(condition)
        if len(conditions) > MOST_CONDITIONS:
            raise InputError(
                f"the query exceeds the limit of {MOST_CONDITIONS} conditions", "use fewer operators"
            )
        if condition.wanted:
            blank(match.start(), start)
            blank(end, match.end())
        else:
            blank(*match.span())
    if not conditions:
        return plain_question(query)
    kept = "".join(text)
    if not _LETTERS.search(kept):
        raise InputError("the query only excludes words", "add words to search for, such as: river -money")
    return Question(query, kept, tuple(conditions))


def _condition(match: re.Match[str], is_field: IsField) -> tuple[Condition, tuple[int, int]] | None:
    """The condition that a part of a query states, and the span of its text; None without an operator."""
    group = next(name for name in ("word", "phrase", "curly") if match[name] is not None)
    said, (start, end) = match[group], match.span(group)
    phrase, wanted, named = group != "word", match["sign"] != "-", match["field"]
    if not _LETTERS.search(said):
        return None
    if named is not None:
        if (phrase or _LETTERS.match(said)) and is_field(named[:-1]):
            said = said if phrase else said.rstrip(_TRAILING)
            return Condition(said, phrase, wanted, named[:-1]), (start, start + len(said))
        if phrase:
            return None
        said, start = named + said, match.start("field")
    if not phrase:
        if not match["sign"] or not said[0].isalpha():
            return None
        said = said.rstrip(_TRAILING)
        end = start + len(said)
    return Condition(said, phrase, wanted), (start, end)
