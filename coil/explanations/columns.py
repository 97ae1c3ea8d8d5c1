"""Columns: texts truncated and padded to their width in a terminal, in any script."""

from __future__ import annotations

import unicodedata

ELLIPSIS = "…"
REPLACEMENT = "�"
_EIGHTHS = " ▏▎▍▌▋▊▉"
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """A text on one line, without characters that move the cursor or change the text direction."""
    line = " ".join(text.splitlines())
    return "".join(
        " " if char == "\t" else REPLACEMENT if unicodedata.category(char) == "Cc" or char in _BIDI else char
        for char in line
    )


def width_of(text: str) -> int:
    """How many columns a text takes: two for wide characters, none for combining marks."""
    return sum(_width(char) for char in text)


def cut_end(text: str, columns: int) -> str:
    """Truncate a text to this many columns, with an ellipsis at the end."""
    return text if width_of(text) <= columns else _beginning(text, columns - 1) + ELLIPSIS * (columns > 0)


def cut_end_at_word(text: str, columns: int) -> str:
    """Like `cut_end`, at the end of a word if possible."""
    if width_of(text) <= columns:
        return text
    kept = _beginning(text, columns - 1)
    if not text[len(kept) : len(kept) + 1].isspace():  # the cut is inside a word
        whole = kept[: kept.rfind(" ") + 1]
        kept = whole if whole.strip() else kept
    return kept.rstrip() + ELLIPSIS * (columns > 0)


def cut_start_at_word(text: str, columns: int) -> str:
    """The end of a text in at most this many columns, from the start of a word if possible."""
    if width_of(text) <= columns:
        return text
    return cut_end_at_word(text[::-1], columns)[::-1]


def cut_middle(text: str, columns: int) -> str:
    """Both ends of a text in at most this many columns: long ids often differ only at the end."""
    if width_of(text) <= columns:
        return text
    end = max(columns - 1, 0) // 2
    return cut_end(text, columns - end) + _beginning(text[::-1], end)[::-1]


def pad(text: str, columns: int, width: int | None = None) -> str:
    """Pad a text with spaces; pass its `width` if it contains characters that are not displayed."""
    return text + " " * (columns - (width_of(text) if width is None else width))


def bar(share: float, columns: int) -> str:
    """A share from 0 to 1 as a bar in this many columns; a larger share fills them."""
    eighths = round(min(max(share, 0.0), 1.0) * columns * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()).ljust(columns)


def wrap(text: str, columns: int, indent: str = "") -> list[str]:
    """Break a text into lines between words, indented from the second on; a long word is not broken."""
    lines = [""]
    for word in text.split(" "):
        grown = f"{lines[-1]} {word}" if lines[-1].strip() else lines[-1] + word
        if width_of(grown) > columns and lines[-1].strip():
            lines.append(indent + word)
        else:
            lines[-1] = grown
    return lines


def _beginning(text: str, columns: int) -> str:
    taken = 0
    for place, char in enumerate(text):
        taken += _width(char)
        if taken > columns:
            return text[:place]
    return text


def _width(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1
