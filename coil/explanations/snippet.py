"""Snippet: a token shown in the text around it."""

from __future__ import annotations

from dataclasses import dataclass

Span = tuple[int, int]
CONTEXT_CHARACTERS = 24
ELLIPSIS = "…"


@dataclass(frozen=True)
class Snippet:
    """A token and some of the text on both sides, on one line."""

    before: str
    token: str
    after: str

    def marked(self, left: str = "[", right: str = "]") -> str:
        """The snippet as one string with marks around the token."""
        return f"{self.before}{left}{self.token}{right}{self.after}"

    def __str__(self) -> str:
        return self.marked()


def cut_snippet(text: str, span: Span, characters: int = CONTEXT_CHARACTERS) -> Snippet:
    """Cut the surroundings of a span out of a text, up to `characters` on each side, at whole words."""
    start, end = span
    first, last = max(0, start - characters), min(len(text), end + characters)
    before, after = text[first:start], text[end:last]
    if first > 0:  # the first word may be incomplete
        space = next((i for i, char in enumerate(before) if char.isspace()), -1)
        before = ELLIPSIS + before[space + 1 :]
    if last < len(text):
        space = next((i for i in reversed(range(len(after))) if after[i].isspace()), len(after))
        after = after[:space] + ELLIPSIS
    return Snippet(_one_line(before).lstrip(), _one_line(text[start:end]), _one_line(after).rstrip())


def piece_text(text: str, span: Span) -> str:
    """The text of a token; an ellipsis shows on which side its word continues (`run…`, `…ning`).

    It is taken from the text, not from the vocabulary, so it works with every tokenizer.
    """
    start, end = span
    piece = text[start:end]
    joined_before = bool(piece) and start > 0 and text[start - 1].isalnum() and piece[0].isalnum()
    joined_after = bool(piece) and end < len(text) and piece[-1].isalnum() and text[end].isalnum()
    return f"{ELLIPSIS * joined_before}{piece}{ELLIPSIS * joined_after}"


def _one_line(text: str) -> str:
    """Replace runs of white space by one space, also at both ends, where it separates words."""
    words = " ".join(text.split())
    if not words:
        return " " if text else ""
    return f"{' ' * text[0].isspace()}{words}{' ' * text[-1].isspace()}"
