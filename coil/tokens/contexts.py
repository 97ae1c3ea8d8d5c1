"""Context: the title, path and headings of a document, encoded together with each of its rows.

A row is a span of the document's text. The model reads the context, a line feed, and the span:

    git › Branches › Deleting a branch
    Use the option -d ...

The context consists of the path of the file (unless the title contains the words of its name), the title, the
headings above the span, and the words of a Markdown file's front matter, except for those that the span
itself contains. It is computed from the document alone, so writer, explanation and reranker always agree.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from coil.texts.files import KINDS, kind_of
from coil.texts.markup import Heading, find_headings, markup_of, read_front_matter
from coil.texts.opening import split_name
from coil.texts.values import Document
from coil.tokens.tokenizer import Tokenizer

Span = tuple[int, int]
Where = Literal["text", "path", "title", "heading", "field"]

MOST_TOKENS = 48
SEPARATOR = " › "
_LEAST_SHARE = 4  # the context takes at most one in this many of the model's tokens
_JOINTS = 2  # tokens that the line feed between context and span may take
_LONGEST = 400  # characters of a title
_SEARCHED = 4096  # characters at the start of a text in which its title is searched for
_WORD = re.compile(r"\w+")
_SPACE = re.compile(r"\s*")
_MOST_VALUES = 20  # of the front matter
_SWITCHES = frozenset("true false yes no on off null".split())


@dataclass(frozen=True)
class ContextRule:
    """What a context contains: at most `tokens` tokens, with or (in older indexes) without front matter."""

    tokens: int = 0
    front_matter: bool = False


NO_CONTEXT = ContextRule()
USUAL_CONTEXT = ContextRule(MOST_TOKENS, front_matter=True)


@dataclass(frozen=True)
class Part:
    """A path, title, heading or front matter value, and its position in the text, if it is there."""

    where: Where
    text: str
    start: int | None

    def is_within(self, span: Span) -> bool:
        """Whether a span of the text contains this part."""
        return self.start is not None and span[0] <= self.start < span[1]


@dataclass(frozen=True)
class Place:
    """Where a token of a row is: at `around[at]` and, if it is in the document's text, at `span` there."""

    where: Where
    span: Span
    around: str
    at: Span


@dataclass(frozen=True)
class RowText:
    """The text that the model reads for a row."""

    document: Document
    span: Span
    context: str = ""
    parts: tuple[tuple[int, Part], ...] = ()  # each with its position in the context

    @property
    def before(self) -> str:
        """The text before the span."""
        return f"{self.context}\n" if self.context else ""

    @property
    def text(self) -> str:
        """The whole text: context and span."""
        return self.before + self.document.text[slice(*self.span)]

    def place(self, span: Span) -> Place:
        """Where a span of the row's text comes from."""
        start, end = span
        shift = self.span[0] - len(self.before)
        if start >= len(self.before):
            found = start + shift, end + shift
            return Place("text", found, self.document.text, found)
        begin, part = next(pair for pair in reversed(self.parts) if pair[0] <= start)
        at = start - begin, end - begin
        if at[1] > len(part.text):  # the separator between two parts
            return Place(part.where, (0, 0), self.context, span)
        if part.start is None:
            return Place(part.where, (0, 0), part.text, at)
        found = part.start + at[0], part.start + at[1]
        return Place(part.where, found, self.document.text, found)


def context_room(tokenizer: Tokenizer, length: int, most: int) -> int:
    """How many tokens a context may have if the model reads `length` tokens."""
    return min(most, (length - len(tokenizer.prefix) - len(tokenizer.suffix)) // _LEAST_SHARE)


class Outline:
    """The title, path and headings of a document and, with `front_matter`, its front matter."""

    def __init__(self, document: Document, front_matter: bool = False) -> None:
        self._document = document
        self._values = _front_values(document) if front_matter else []
        self.headings: list[Heading] = find_headings(document.text, markup_of(document.doc_id))
        self._starts = [heading.start for heading in self.headings]
        self._parents = _parents(self.headings)
        self._named = _named(document)

    def parts(self, span: Span) -> list[Part]:
        """The path, title and headings that apply to a span but are not in it, outermost first."""
        text = self._document.text
        found = [part for part in self._named if not part.is_within(span)]
        known = {part.text.casefold() for part in self._named}
        for heading in self._above(span[0]):
            if heading.text.casefold() not in known:
                start = text.index(heading.text, heading.start)
                found.append(Part("heading", heading.text, start))
        return found

    def _above(self, begin: int) -> list[Heading]:
        """The headings above a position; if the next heading begins there, only those above that heading."""
        following = bisect_left(self._starts, begin)
        place = following - 1
        if following < len(self.headings):
            space = _SPACE.match(self._document.text, begin, self._starts[following])
            if space is not None and space.end() == self._starts[following]:
                place = self._parents[following]
        above: list[Heading] = []
        while place >= 0:
            above.append(self.headings[place])
            place = self._parents[place]
        return above[::-1]

    def trail(self, span: Span) -> str:
        """The parts of a span, joined to one line."""
        return SEPARATOR.join(part.text for part in self.parts(span))

    def row(self, tokenizer: Tokenizer, span: Span, most: int) -> RowText:
        """The row of a span, with a context of at most `most` tokens."""
        parts: list[tuple[int, Part]] = []
        context = ""
        found = [*self.parts(span), *(part for part in self._values if not part.is_within(span))]
        for part in found if most > 0 else ():
            context += SEPARATOR if parts else ""
            parts.append((len(context), part))
            context += part.text
        context = _cut(tokenizer, context, most)
        kept = tuple((begin, part) for begin, part in parts if begin < len(context))
        return RowText(self._document, span, context, kept)

    def reserved(self, tokenizer: Tokenizer, most: int) -> tuple[int, int]:
        """Tokens to keep free for the context: if the text is one row, and for each row if it is several."""
        if most <= 0 or not (self._named or self.headings or self._values):
            return 0, 0
        whole = self.row(tokenizer, (0, len(self._document.text)), most)
        if self.headings:
            return _count(tokenizer, whole), most + _JOINTS
        return _count(tokenizer, whole), _count(tokenizer, self.row(tokenizer, (0, 0), most))


def _parents(headings: Sequence[Heading]) -> list[int]:
    """The index of each heading's parent; -1 if it has none."""
    parents: list[int] = []
    for number, heading in enumerate(headings):
        place = number - 1
        while place >= 0 and headings[place].level >= heading.level:
            place = parents[place]
        parents.append(place)
    return parents


def _count(tokenizer: Tokenizer, row: RowText) -> int:
    if not row.context:
        return 0
    [tokens] = tokenizer.cut([row.context], 2**31)
    return len(tokens.spans) + _JOINTS


def _named(document: Document) -> list[Part]:
    """The path of a file and the title of a document."""
    parts: list[Part] = []
    given = document.fields.get("title")
    words = given[:_LONGEST].split() if isinstance(given, str) else []
    if isinstance(given, str) and len(given) > _LONGEST:
        words = words[:-1]  # the last word may be incomplete
    if kind_of(document.doc_id) in KINDS:
        path = document.doc_id[: -len("".join(split_name(document.doc_id)[1:]))]
        name = _WORD.findall(path.rpartition("/")[2].casefold())
        if not set(name) <= set(_WORD.findall(" ".join(words).casefold())):
            parts.append(Part("path", path[-_LONGEST:], None))
    if words:
        pattern = r"\s+".join(map(re.escape, words))
        found = re.compile(rf"(?<!\w){pattern}(?!\w)").search(document.text, 0, _SEARCHED)
        if found is not None:
            parts.append(Part("title", found[0], found.start()))
        else:
            parts.append(Part("title", " ".join(words), None))
    return parts


def _front_values(document: Document) -> list[Part]:
    """The front matter values of a Markdown file that are words: no dates, booleans or addresses."""
    if kind_of(document.doc_id) not in (".md", ".markdown"):
        return []
    fields, end = read_front_matter(document.text)
    found: list[Part] = []
    at = 0
    for name, given in fields.items():
        for value in given if isinstance(given, list) else [given]:
            is_address = "/" in value and len(value.split()) == 1
            is_word = any(map(str.isalpha, value)) and value.lower() not in _SWITCHES and not is_address
            start = document.text.find(value, at, end)
            at = max(at, start + len(value))
            if name != "title" and is_word and start >= 0:
                found.append(Part("field", value[:_LONGEST], start))
    return found[:_MOST_VALUES]


def _cut(tokenizer: Tokenizer, context: str, most: int) -> str:
    """As many whole words of a context as fit."""
    if not context:
        return ""
    [tokens] = tokenizer.cut([context], most + len(tokenizer.prefix) + len(tokenizer.suffix))
    if not tokens.dropped:
        return context
    words = tokens.words()[1][:-1]  # the last one may be incomplete
    return context[: int(words[-1, 1])].rstrip(SEPARATOR) if len(words) else ""
