"""Hits and explanations as HTML for notebooks; the more a matched word contributes, the darker its shading.

Colours are blended with those of the page, so that they also suit a dark theme.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from coil.explanations.explanation import Explanation, Match
from coil.explanations.snippet import Span
from coil.hits.hit import Hit

MOST_HITS = 20
MOST_SENTENCES = 3
TEXT_CHARACTERS = 300
_CELL = 'style="text-align:left;vertical-align:top"'
_NUMBER = 'style="text-align:right;vertical-align:top;font-variant-numeric:tabular-nums"'


def hits_html(hits: Sequence[Hit], words: Sequence[Sequence[Span]] = ()) -> str:
    """A table of hits; `words` are the characters of the words in each hit's text that match the query."""
    rows = []
    for number, hit in enumerate(hits[:MOST_HITS]):
        marked = words[number] if number < len(words) else ()
        share = "" if hit.share is None else f"{hit.share:.0%}"
        also = f"<br><small>and {len(hit.duplicates):,} duplicates</small>" if hit.duplicates else ""
        rows.append(
            f"<tr><td {_NUMBER}>{hit.rank}</td><td {_NUMBER}>{hit.score:.3f}</td><td {_NUMBER}>{share}</td>"
            f"<td {_CELL}>{escape(hit.doc_id)}{also}</td><td {_CELL}>{_text(hit, marked)}</td></tr>"
        )
    left = len(hits) - MOST_HITS
    if left > 0:
        rows.append(f'<tr><td colspan="5" {_CELL}>… and {left:,} more</td></tr>')
    if not hits:
        return "<p>no hits</p>"
    return _table(("rank", "score", "share", "id", "text"), rows)


def explanation_html(explanation: Explanation) -> str:
    """A table of what each word found and adds, and of the sentences that add most."""
    rows = [_match_row(explanation, match) for match in explanation.matches]
    if explanation.sentence is not None:
        rows.append(_part_row("sentence", "the texts as a whole", explanation, explanation.sentence))
        parts = sorted(explanation.sentence_parts, key=lambda part: -part.contribution)
        rows += [
            _part_row("", escape(part.text[:TEXT_CHARACTERS]), explanation, part.contribution)
            for part in parts[:MOST_SENTENCES]
            if part.span is not None
        ]
    missing = ", ".join(escape(token.text) for token in explanation.unmatched)
    below = f"<p>not in this document: {missing}</p>" if missing else ""
    title = (
        f"<p><b>{escape(explanation.doc_id)}</b> scores {explanation.score:.3f} "
        f"for “{escape(explanation.query.strip())}”</p>"
    )
    return title + _table(("query", "in the document", "texts with it", "fit", "adds", "share"), rows) + below


def _match_row(explanation: Explanation, match: Match) -> str:
    context = match.context
    shown = escape(context.before) + _mark(context.token, explanation.share(match.contribution))
    rows_with = f"{match.rows_with:,}" if match.rows_with else ""
    return (
        f"<tr><td {_CELL}>{escape(match.query_token)}</td><td {_CELL}>{shown}{escape(context.after)}</td>"
        f"<td {_NUMBER}>{rows_with}</td><td {_NUMBER}>{match.fit:.2f}</td>"
        f"<td {_NUMBER}>{match.contribution:.2f}</td>{_share_cell(explanation, match.contribution)}</tr>"
    )


def _part_row(name: str, what: str, explanation: Explanation, value: float) -> str:
    return (
        f"<tr><td {_CELL}>{name}</td><td {_CELL}>{what}</td><td></td><td></td>"
        f"<td {_NUMBER}>{value:.2f}</td>{_share_cell(explanation, value)}</tr>"
    )


def _share_cell(explanation: Explanation, value: float) -> str:
    share = explanation.share(value)
    bar = f'<span style="display:inline-block;height:.7em;width:{share * 6:.2f}em;background:currentColor">'
    return f"<td {_CELL}>{bar}</span> {share:.0%}</td>"


def _text(hit: Hit, words: Iterable[Span]) -> str:
    """The beginning of the chunk that scored best, with its matching words marked."""
    start, end = hit.chunk
    first = min((a for a, _ in words), default=start)
    if first - start > TEXT_CHARACTERS // 2:  # nothing that matches is at the beginning
        start = first - TEXT_CHARACTERS // 3
    end = min(end, start + TEXT_CHARACTERS)
    parts, place = ["… " if start > hit.chunk[0] else ""], start
    for a, b in sorted(words):
        if place <= a and b <= end:
            parts += [escape(hit.text[place:a]), _mark(hit.text[a:b], 0.5)]
            place = b
    parts.append(escape(hit.text[place:end]))
    return "".join(parts) + (" …" if end < hit.chunk[1] else "")


def _mark(text: str, share: float) -> str:
    strength = 15 + round(45 * max(0.0, min(share, 1.0)))
    colour = f"color-mix(in srgb, orange {strength}%, transparent)"
    return f'<mark style="background:{colour};color:inherit">{escape(text)}</mark>'


def _table(names: Sequence[str], rows: Sequence[str]) -> str:
    head = "".join(f"<th {_CELL}>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
