"""An explanation as a table for people."""

from __future__ import annotations

from collections.abc import Callable

from coil.explanations.explanation import Explanation, QueryToken
from coil.explanations.snippet import Snippet

Shade = Callable[[str, float], str]
"""Colours a text by its share of the score, from 0 to 1. Only the command line knows how."""

CONTEXT_WIDTH = 60
BAR_WIDTH = 10
_EIGHTHS = " ▏▎▍▌▋▊▉"


def format_table(explanation: Explanation, shade: Shade | None = None) -> str:
    """One row a query token: its best mention in context, similarity, contribution, share of the score."""
    colour = shade if shade is not None else _plain
    width = max([len("query"), len("sentence"), *(len(m.query_token) for m in explanation.matches)])
    lines = [f'{explanation.doc_id} scores {explanation.score:.2f} for "{explanation.query}"']
    if explanation.matches or explanation.sentence is not None:
        titles = f"{'in the document':<{CONTEXT_WIDTH}}  similarity    adds  share of the score"
        lines.append(f"  {'query':<{width}}  {titles}")
    for match in explanation.matches:
        share = explanation.share(match.contribution)
        context = _fit(match.context, share, colour)
        similarity, adds = f"{match.similarity:10.2f}", f"{match.contribution:6.2f}"
        lines.append(f"  {match.query_token:<{width}}  {context}  {similarity}  {adds}  {_bar(share)}")
    if explanation.sentence is not None:
        share = explanation.share(explanation.sentence)
        what = f"{'the texts as a whole':<{CONTEXT_WIDTH}}"
        value = explanation.sentence
        lines.append(f"  {'sentence':<{width}}  {what}  {value:10.2f}  {value:6.2f}  {_bar(share)}")
    for label, tokens in (
        ("not in the document", explanation.unmatched),
        ("not compared", explanation.without_list),
    ):
        if tokens:
            lines.append(f"  {label}: {_join(tokens)}")
    return "\n".join(line.rstrip() for line in lines)


def _fit(snippet: Snippet, share: float, colour: Shade) -> str:
    """The context in at least CONTEXT_WIDTH visible columns, the token whole, its surroundings cut to fit."""
    room = max(0, CONTEXT_WIDTH - len(snippet.token) - 2)
    before = snippet.before[-room:] if room else ""
    after = snippet.after[: room - len(before)]
    padding = " " * (room - len(before) - len(after))
    return Snippet(before, colour(snippet.token, share), after).marked() + padding


def _bar(share: float) -> str:
    """A small bar and the share in per cent; nothing for what adds nothing."""
    if share <= 0.0:
        return ""
    eighths = round(share * BAR_WIDTH * 8)
    bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
    return f"{bar:<{BAR_WIDTH}} {share:4.0%}"


def _join(tokens: tuple[QueryToken, ...]) -> str:
    return ", ".join(token.text for token in tokens)


def _plain(text: str, share: float) -> str:
    return text
