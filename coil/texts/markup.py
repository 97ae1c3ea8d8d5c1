"""Headings and front matter of texts in Markdown and reStructuredText.

HTML and .docx files are converted to text with Markdown headings (see `files`), so their texts count as
Markdown. The id, which ends like the file name, determines the markup of a text. This also holds for records:
a text whose id ends in .md is Markdown; without such an id, a line that starts with # is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from coil.texts.decompression import COMPRESSIONS

Markup = Literal["markdown", "rst"]

MARKDOWN_KINDS = (".md", ".markdown", ".html", ".htm", ".docx")
RST_KINDS = (".rst",)

_LINE = re.compile(r"[^\n]*\n?")
_ATX = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*?)(?:[ \t]+#+)?[ \t]*\r?\n?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_UNDERLINE = re.compile(r"([!-/:-@\[-`{-~])\1{2,}[ \t]*\r?\n?")
_FIELD = re.compile(r"([A-Za-z_][\w-]{0,99}):(?:[ \t]+(.*))?")
_MOST_LINES = 200  # of front matter
_MOST_VALUES = 100_000  # in the lists of front matter, unless the caller allows more or fewer
_MOST_HEADINGS = 100_000  # of a text; later ones are ordinary lines, so that they take little memory
_LONGEST_HEADING = 300  # characters; a longer line is not a heading


@dataclass(frozen=True)
class Heading:
    """A heading: its span in the text, its level (1 is the highest), and its words."""

    start: int
    end: int
    level: int
    text: str


def markup_of(name: str) -> Markup | None:
    """The markup of a file with this name; None if it cannot have headings."""
    lowered = name.lower()
    for compression in COMPRESSIONS:
        lowered = lowered.removesuffix(compression)
    if lowered.endswith(MARKDOWN_KINDS):
        return "markdown"
    return "rst" if lowered.endswith(RST_KINDS) else None


def find_headings(text: str, markup: Markup | None) -> list[Heading]:
    """The headings of a text, in order."""
    if markup is None:
        return []
    headings = _markdown_headings(text) if markup == "markdown" else _rst_headings(text)
    return list(islice(headings, _MOST_HEADINGS))


def _markdown_headings(text: str) -> Iterator[Heading]:
    fence = ""
    for line in _LINE.finditer(text, read_front_matter(text)[1]):
        marks = _FENCE.match(line[0])
        if marks is not None:
            if not fence:
                fence = marks[1]
            elif marks[1].startswith(fence) and not line[0][marks.end() :].strip():
                fence = ""
        elif not fence and len(line[0]) <= _LONGEST_HEADING and (heading := _ATX.fullmatch(line[0])):
            yield Heading(line.start(), line.end(), len(heading[1]), heading[2])


def _rst_headings(text: str) -> Iterator[Heading]:
    """Lines underlined with punctuation of at least their length; levels follow the order of first use."""
    styles: list[tuple[str, bool]] = []
    before = above = ""  # the last line, and the one above it
    start = start_above = 0
    for line in _LINE.finditer(text):
        words, over = before.strip(), above.strip()
        underline = _UNDERLINE.fullmatch(line[0])
        is_title = 0 < len(words) <= len(line[0].rstrip()) and len(words) <= _LONGEST_HEADING
        if underline and is_title and not _UNDERLINE.fullmatch(before):
            has_over = over == line[0].strip()
            style = underline[1], has_over
            if style not in styles:
                styles.append(style)
            begin = start_above if has_over else start
            yield Heading(begin, line.end(), styles.index(style) + 1, words)
        above, before = before, line[0]
        start_above, start = start, line.start()


def skip_front_matter(name: str, text: str, span: tuple[int, int]) -> tuple[int, int]:
    """The span without the front matter of a Markdown file, whose values are already fields."""
    start, end = span
    if start == 0 and markup_of(name) == "markdown":
        start = min(read_front_matter(text)[1], end)
    return (start, end) if start < end else span


def read_front_matter(text: str, most: int = _MOST_VALUES) -> tuple[dict[str, Any], int]:
    """The fields between two lines of `---` at the start of a Markdown text, and where the text continues.

    Of YAML, only `name: value` and lists of plain values are read; other lines are skipped, and so are lists
    from the one on with which there are more than `most` values.
    """
    return _read_front_matter(text, most)[:2]


def count_front_values(text: str) -> int:
    """The number of values in the one-line lists of front matter; this takes little memory."""
    return _read_front_matter(text, 0)[2]


def _read_front_matter(text: str, most: int) -> tuple[dict[str, Any], int, int]:
    lines = _LINE.finditer(text)
    first = next(lines)
    if first[0].rstrip() != "---":
        return {}, 0, 0
    fields: dict[str, Any] = {}
    name, values = "", 0
    for number, line in enumerate(lines):
        content = line[0].rstrip()
        if number == _MOST_LINES:
            break
        if content in ("---", "..."):
            return {key: value for key, value in fields.items() if value is not None}, line.end(), values
        field = _FIELD.fullmatch(content)
        if field is not None:
            name, written = field[1], (field[2] or "").strip()
            is_list = written.startswith("[") and written.endswith("]")
            values += written.count(",") + 1 if is_list else 0
            fields[name] = _value(written) if not is_list or values <= most else None
        elif name and content.lstrip().startswith("- ") and not isinstance(fields[name], str):
            fields[name] = [*(fields[name] or []), _plain(content.lstrip()[2:])]
    return {}, 0, 0


def _value(written: str) -> Any:
    if written.startswith("[") and written.endswith("]"):
        return [_plain(part) for part in written[1:-1].split(",") if part.strip()]
    return _plain(written) if written and written[0] not in "|>&*!{" else None


def _plain(written: str) -> str:
    written = written.strip()
    quoted = len(written) > 1 and written[0] == written[-1] and written[0] in "\"'"
    return written[1:-1] if quoted else written
