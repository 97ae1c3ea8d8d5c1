"""Hits, explanations and contrasts as HTML for notebooks.

The more a matched word contributes, the darker its shading. Colours are blended with those of the page, so
that they also suit a dark theme.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from html import escape

from coil.errors import how_many
from coil.explanations.columns import cut_end_at_word, printable
from coil.explanations.contrast import Contrast, Difference
from coil.explanations.explanation import Explanation, Match
from coil.explanations.figures import (
    SENTENCES,
    Figures,
    closing_notes,
    contrast_notes,
    partly_read,
    reading_notes,
    sentences_to_show,
)
from coil.explanations.snippet import Span
from coil.hits.hit import Hit
from coil.texts.markup import skip_front_matter

MOST_HITS = 20
TEXT_CHARACTERS = 300
_CELL = 'style="text-align:left;vertical-align:top"'
_NUMBER = 'style="text-align:right;vertical-align:top;font-variant-numeric:tabular-nums"'


def hits_html(hits: Sequence[Hit], words: Sequence[Sequence[Span]] = ()) -> str:
    """A table of hits; `words` are the spans of the words in each hit's text that match the query."""
    rows = []
    for number, hit in enumerate(hits[:MOST_HITS]):
        marked = words[number] if number < len(words) else ()
        share = "" if hit.share is None else f"{hit.share:.0%}"
        also = (
            f"<br><small>and {how_many(len(hit.duplicates), 'duplicate')}</small>" if hit.duplicates else ""
        )
        rows.append(
            f"<tr><td {_NUMBER}>{hit.rank}</td><td {_NUMBER}>{hit.score:.3f}</td><td {_NUMBER}>{share}</td>"
            f"<td {_CELL}>{escape(hit.doc_id)}{also}</td><td {_CELL}>{_text(hit, marked)}</td></tr>"
        )
    left = len(hits) - MOST_HITS
    if left > 0:
        rows.append(f'<tr><td colspan="5" {_CELL}>… and {left:,} more</td></tr>')
    if not hits:
        return "<p>no hits</p>"
    return _table(("rank", "score", "share", "id", "text"), rows, numbers=range(3))


def explanation_html(explanation: Explanation) -> str:
    """A table with the columns of `format_table`: one row per match, then the main sentences."""
    figures = Figures.of([explanation])
    between = [name for name, there in _names(figures) if there]
    rows = [_match_row(explanation, match, figures) for match in explanation.matches]
    if explanation.sentence is not None:
        value = explanation.sentence
        rows.append(_part_row("sentence", "the texts as a whole", explanation, value, len(between)))
        for part in sentences_to_show(explanation, SENTENCES):
            words = escape(cut_end_at_word(printable(part.text), TEXT_CHARACTERS))
            rows.append(_part_row("", words, explanation, part.contribution, len(between)))
    by = "" if explanation.by == "coil" else f" by {explanation.by}"
    title = (
        f"<p><b>{escape(explanation.doc_id)}</b> scores {explanation.score:.2f}{by} "
        f"for “{escape(explanation.query.strip())}”</p>"
    )
    names = ("query", "in the document", *between, "adds", "share of the score")
    table = _table(names, rows, numbers=range(2, 3 + len(between))) if rows else ""
    return title + _notes(reading_notes(explanation)) + table + _notes(closing_notes(explanation))


def contrast_html(contrast: Contrast) -> str:
    """The summary, then one row per part: its match and contribution in each document, and the difference."""
    both = (contrast.first, contrast.second)
    rows = []
    for difference in contrast.differences:
        matches, added = (
            (difference.first, difference.second),
            (difference.first_adds, difference.second_adds),
        )
        name = escape(difference.query_token)
        cells = "".join(
            _side(difference, match, explanation, adds)
            for match, explanation, adds in zip(matches, both, added, strict=True)
        )
        rows.append(f"<tr><td {_CELL}>{name}</td>{cells}<td {_NUMBER}>{difference.value:+.2f}</td></tr>")
    scores = "".join(f"<td></td><td {_NUMBER}><b>{explanation.score:.2f}</b></td>" for explanation in both)
    rows.append(f"<tr><td {_CELL}>score</td>{scores}<td {_NUMBER}><b>{contrast.gap:+.2f}</b></td></tr>")
    ids = [escape(explanation.doc_id) for explanation in both]
    table = _table(("query", ids[0], "adds", ids[1], "adds", "difference"), rows, numbers=(2, 4, 5))
    parts = [f"{explanation.doc_id}, {note}" for explanation in both for note in partly_read(explanation)]
    return f"<p>{escape(contrast.summary)}</p>" + table + _notes([*parts, *contrast_notes(contrast)])


def _side(difference: Difference, match: Match | None, explanation: Explanation, adds: float) -> str:
    if difference.query_span is None:
        return f"<td {_CELL}>the text as a whole</td><td {_NUMBER}>{adds:.2f}</td>"
    if match is None:
        return f"<td {_CELL}>–</td><td></td>"
    floored = "<br><small>floored at 0</small>" if match.floored else ""
    return f"<td {_CELL}>{_snippet(explanation, match)}</td><td {_NUMBER}>{adds:.2f}{floored}</td>"


def _snippet(explanation: Explanation, match: Match) -> str:
    context = match.context
    marked = _mark(context.token, explanation.share(match.contribution))
    return escape(context.before) + marked + escape(context.after)


def _names(figures: Figures) -> list[tuple[str, bool]]:
    return [
        ("texts with it", figures.rarity),
        ("here", figures.rarity),
        (figures.fit, bool(figures.fit)),
    ]


def _match_row(explanation: Explanation, match: Match, figures: Figures) -> str:
    numbers = [figures.show_rows(match, narrow=False), f"{match.count:,}×"] if figures.rarity else []
    numbers += [figures.show_fit(match.similarity, match.fit)] if figures.fit else []
    numbers.append(f"{match.contribution:.2f}")
    cells = "".join(f"<td {_NUMBER}>{number}</td>" for number in numbers)
    share = (
        f"<td {_CELL}>floored at 0</td>" if match.floored else _share_cell(explanation, match.contribution)
    )
    return (
        f"<tr><td {_CELL}>{escape(match.query_token)}</td><td {_CELL}>{_snippet(explanation, match)}</td>"
        f"{cells}{share}</tr>"
    )


def _part_row(name: str, what: str, explanation: Explanation, value: float, between: int) -> str:
    """A row of the sentence part: its only number is its contribution, so its text spans the others."""
    return (
        f'<tr><td {_CELL}>{name}</td><td colspan="{1 + between}" {_CELL}>{what}</td>'
        f"<td {_NUMBER}>{value:.2f}</td>{_share_cell(explanation, value)}</tr>"
    )


def _share_cell(explanation: Explanation, value: float) -> str:
    share = explanation.share(value)
    if share <= 0.0:
        return f"<td {_CELL}></td>"
    width = f"display:inline-block;height:.7em;width:{min(share, 1.0) * 6:.2f}em"
    bar = f'<span style="{width};background:currentColor;opacity:.6"></span>'
    return f'<td style="text-align:left;vertical-align:top;white-space:nowrap">{bar} {share:.0%}</td>'


def _notes(notes: Iterable[str]) -> str:
    lines = "<br>".join(escape(note) for note in notes)
    return f"<p><small>{lines}</small></p>" if lines else ""


def _text(hit: Hit, words: Iterable[Span]) -> str:
    """The beginning of the chunk that scored best, with its matching words marked."""
    chunk = skip_front_matter(hit.doc_id, hit.text, hit.chunk)
    start, end = chunk
    words = [(a, b) for a, b in words if a >= start]
    first = min((a for a, _ in words), default=start)
    if first - start > TEXT_CHARACTERS // 2:  # no word at the beginning matches
        start = first - TEXT_CHARACTERS // 3
    end = min(end, start + TEXT_CHARACTERS)
    parts, place = ["… " if start > chunk[0] else ""], start
    for a, b in sorted(words):
        if place <= a and b <= end:
            parts += [escape(hit.text[place:a]), _mark(hit.text[a:b], 0.5)]
            place = b
    parts.append(escape(hit.text[place:end]))
    return "".join(parts) + (" …" if end < chunk[1] else "")


def _mark(text: str, share: float) -> str:
    strength = 15 + round(45 * max(0.0, min(share, 1.0)))
    colour = f"color-mix(in srgb, orange {strength}%, transparent)"
    return f'<mark style="background:{colour};color:inherit">{escape(text)}</mark>'


def _table(names: Sequence[str], rows: Sequence[str], numbers: Container[int] = ()) -> str:
    """A table with numbers in some of its columns."""
    head = "".join(f"<th {_NUMBER if n in numbers else _CELL}>{name}</th>" for n, name in enumerate(names))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
