"""Explanations and contrasts as tables for people, as wide as their terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

from coil.explanations.columns import (
    cut_end,
    cut_end_at_word,
    cut_middle,
    cut_start_at_word,
    pad,
    printable,
    width_of,
    wrap,
)
from coil.explanations.contrast import Contrast, Difference
from coil.explanations.explanation import Explanation, Match, Mention, QueryToken
from coil.explanations.snippet import Snippet

Shade = Callable[[str, float], str]
"""Colours a text by its share of the score, from 0 to 1. Only the command line knows how."""

WIDTH = 120
NARROW = 100  # below, a share is a number without a bar
BAR_WIDTH = 10
MOST_CONTEXT = 60
LEAST_CONTEXT = 12
MOST_ID = 60
_EIGHTHS = " ▏▎▍▌▋▊▉"


def format_table(
    explanation: Explanation, shade: Shade | None = None, width: int = WIDTH, mentions: int = 1
) -> str:
    """One row a query token: its best mention in context, similarity, contribution, share of the score.

    `mentions` is how many mentions of each query token are shown; of the others, how many there are.
    """
    lines = [_heading(explanation, width)]
    lines += _about_reading(explanation, width)
    if explanation.matches or explanation.sentence is not None:
        lines += _Rows(explanation, shade or _plain, width, mentions).lines()
    lines += _footer(explanation, width)
    return "\n".join(line.rstrip() for line in lines)


class _Rows:
    """The rows of one explanation in columns that fit the width."""

    def __init__(self, explanation: Explanation, shade: Shade, width: int, mentions: int) -> None:
        self._explanation, self._shade, self._mentions = explanation, shade, max(mentions, 1)
        self._narrow = width < NARROW
        words = ["query", "sentence", *(printable(m.query_token) for m in explanation.matches)]
        self._query = min(max(width_of(word) for word in words), 12 if self._narrow else 20)
        self._share = len("floored") if self._narrow else len("share of the score")
        self._others = any(self._hidden(match) for match in explanation.matches)
        numbers = 2 + len("similarity") + 2 + 6 + 2 + self._share + (8 if self._others else 0)
        self._context = min(max(width - 2 - self._query - 2 - numbers, LEAST_CONTEXT), MOST_CONTEXT)

    def lines(self) -> list[str]:
        share = "share" if self._narrow else "share of the score"
        context = pad(cut_end("in the document", self._context), self._context)
        lines = [self._line("query", context, "similarity", "adds", share, "others" * self._others)]
        for match in self._explanation.matches:
            lines += self._of_match(match)
        if self._explanation.sentence is not None:
            value = self._explanation.sentence
            what = pad(cut_end("the texts as a whole", self._context), self._context)
            adds = f"{value:.2f}"
            lines.append(self._line("sentence", what, adds, adds, self._bar(self._explanation.share(value))))
        return lines

    def _of_match(self, match: Match) -> list[str]:
        share = self._explanation.share(match.contribution)
        floored = "floored" if self._narrow else "floored at 0"
        hidden = self._hidden(match)
        lines = [
            self._line(
                printable(match.query_token),
                fit_snippet(match.context, self._context, share, self._shade),
                f"{match.similarity:.2f}",
                f"{match.contribution:.2f}",
                floored if match.floored else self._bar(share),
                f"{hidden:6,}" if hidden else "",
            )
        ]
        for mention in match.runner_ups[: self._mentions - 1]:
            lines.append(self._of_mention(mention))
        return lines

    def _of_mention(self, mention: Mention) -> str:
        context = fit_snippet(mention.context, self._context, 0.0, _plain)
        return self._line("", context, f"{mention.similarity:.2f}", "", "")

    def _hidden(self, match: Match) -> int:
        return max(len(match.runner_ups) - (self._mentions - 1), 0)

    def _line(
        self, query: str, context: str, similarity: str, adds: str, share: str, others: str = ""
    ) -> str:
        cut = pad(cut_end(query, self._query), self._query)
        return f"  {cut}  {context}  {similarity:>10}  {adds:>6}  {share:<{self._share}}  {others}"

    def _bar(self, share: float) -> str:
        """A small bar and the share in per cent; nothing for what adds nothing."""
        if share <= 0.0:
            return ""
        if self._narrow:
            return f"{share:4.0%}"
        eighths = round(share * BAR_WIDTH * 8)
        bar = "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
        return f"{bar:<{BAR_WIDTH}} {share:4.0%}"


def format_contrast(contrast: Contrast, shade: Shade | None = None, width: int = WIDTH) -> str:
    """The summary, then one row a part: what each document has for it, and the difference."""
    first, second = contrast.first, contrast.second
    colour = shade or _plain
    words = ["sentence", *(printable(d.query_token) for d in contrast.differences)]
    query = min(max(width_of(word) for word in words), 12 if width < NARROW else 20)
    # Two spaces, the query token, and for each document a mention and its similarity; then the difference.
    cell = max(min((width - 2 - query - 2 * (2 + 1 + 7) - 2 - 10) // 2, MOST_CONTEXT), LEAST_CONTEXT)
    side = cell + 8

    def line(token: str, sides: Sequence[str], difference: str) -> str:
        return f"  {pad(cut_end(token, query), query)}  {'  '.join(sides)}  {difference:>10}"

    names = [pad(cut_middle(printable(e.doc_id), side - 1), side) for e in (first, second)]
    lines = wrap(contrast.summary, width)
    lines += [line("query", names, "difference")]
    for difference in contrast.differences:
        sides = [
            _side(difference, match, adds, explanation, cell, colour)
            for match, adds, explanation in (
                (difference.first, difference.first_adds, first),
                (difference.second, difference.second_adds, second),
            )
        ]
        lines.append(line(printable(difference.query_token), sides, f"{difference.value:+.2f}"))
    scores = [pad("", cell) + f"{e.score:7.2f} " for e in (first, second)]
    lines.append(line("score", scores, f"{contrast.gap:+.2f}"))
    if any(m.floored for d in contrast.differences for m in (d.first, d.second) if m is not None):
        lines.append("  * below 0, so floored: it adds nothing")
    for explanation in (first, second):
        name = cut_middle(printable(explanation.doc_id), MOST_ID)
        for about in _partly_read(explanation):
            lines += _note(f"{name}, {about}", width)
    lines += _tokens("in neither document", contrast.in_neither, width)
    lines += _tokens("not compared", first.without_list, width)
    return "\n".join(text.rstrip() for text in lines)


def _side(
    difference: Difference,
    match: Match | None,
    adds: float,
    explanation: Explanation,
    cell: int,
    shade: Shade,
) -> str:
    if difference.query_span is None:
        return pad(cut_end("the text as a whole", cell), cell) + f" {adds:6.2f} "
    if match is None:
        return pad("–", cell + 8)
    context = fit_snippet(match.context, cell, explanation.share(match.contribution), shade)
    return f"{context} {match.similarity:6.2f}{'*' if match.floored else ' '}"


def fit_snippet(snippet: Snippet, columns: int, share: float, shade: Shade) -> str:
    """A snippet in this many columns: the token whole if it can be, what stands around it cut to fit."""
    token = cut_end(printable(snippet.token), columns - 2)
    before, after = printable(snippet.before), printable(snippet.after)
    room = columns - 2 - width_of(token)
    before = cut_start_at_word(before, max(room // 2, room - width_of(after)))
    after = cut_end_at_word(after, room - width_of(before))
    shown = width_of(before) + 1 + width_of(token) + 1 + width_of(after)
    return pad(f"{before}[{shade(token, share)}]{after}", columns, shown)


def _heading(explanation: Explanation, width: int) -> str:
    name = cut_middle(printable(explanation.doc_id), MOST_ID)
    start = f"{name} scores {explanation.score:.2f} for "
    query = printable(explanation.query)
    return f'{start}"{cut_end(query, max(width - width_of(start) - 2, 30))}"'


def _partly_read(explanation: Explanation) -> list[str]:
    """What to say about a document of which not everything was scored."""
    start, end = explanation.chunk
    if explanation.whole:
        return []
    characters = f"characters {start:,} to {end:,} of {explanation.characters:,}"
    return [
        f"cut off: read were {characters}" if explanation.document_dropped else f"best chunk: {characters}"
    ]


def _about_reading(explanation: Explanation, width: int) -> list[str]:
    lines = _partly_read(explanation)
    if explanation.query_dropped:
        lines.append(f"the query is cut off: tokens not read: {explanation.query_dropped:,}")
    return [wrapped for line in lines for wrapped in _note(line, width)]


def _footer(explanation: Explanation, width: int) -> list[str]:
    lines = []
    nowhere = "not in the document" if explanation.whole else "not in this part of the document"
    lines += _tokens(nowhere, explanation.unmatched, width)
    lines += _tokens("not compared", explanation.without_list, width)
    if not explanation.query.strip():
        lines += _note("the query is blank: a search finds nothing with it", width)
    elif explanation.sentence is None and explanation.score == 0.0:
        lines += _note("nothing adds to the score: the document is no hit", width)
    elif not explanation.matches and explanation.unmatched:
        lines += _note("no word in common: the score is that of the texts as a whole", width)
    share = explanation.share_of_own_score
    if share is not None and share > 0.0:
        own = f"the query's own text would score {explanation.own_score:.2f}"
        lines += _note(f"{own}: this is {share:.0%} of that", width)
    return lines


def _tokens(label: str, tokens: Iterable[QueryToken], width: int) -> list[str]:
    """The tokens after a label, those with one reason together."""
    groups = []
    by_reason = sorted(tokens, key=lambda token: token.reason)  # stable: in query order within a reason
    for reason, same in groupby(by_reason, lambda token: token.reason):
        words = Counter(printable(token.text) for token in same)
        shown = ", ".join(f"{word} ×{times}" if times > 1 else word for word, times in words.items())
        groups.append(shown + (f" ({_plural(reason, len(words))})" if reason else ""))
    return _note(f"{label}: {'; '.join(groups)}", width) if groups else []


def _plural(reason: str, number: int) -> str:
    return "stop words" if reason == "stop word" and number > 1 else reason


def _note(text: str, width: int) -> list[str]:
    """A line below the heading or the table, on as many lines as it takes."""
    first, *others = wrap(text, width - 2, "  ")
    return [f"  {line}" for line in (first, *others)]


def _plain(text: str, share: float) -> str:
    return text
