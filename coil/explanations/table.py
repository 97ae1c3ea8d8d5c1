"""Explanations and contrasts as text tables, fitted to the width of the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from coil.explanations.columns import (
    bar,
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
from coil.explanations.explanation import Explanation, Match, Mention
from coil.explanations.figures import (
    SENTENCES,
    WIDTH,
    Figures,
    closing_notes,
    contrast_notes,
    partly_read,
    reading_notes,
    sentences_to_show,
)
from coil.explanations.snippet import Snippet

Shade = Callable[[str, float], str]
"""Colours a text by its share of the score, from 0 to 1; provided by the command line."""

NARROW = 100  # in fewer columns, a share is a number without a bar
BAR_WIDTH = 10
MOST_CONTEXT = 60
LEAST_CONTEXT = 12
ENOUGH_CONTEXT = 18  # a contrast omits optional numbers to keep this many columns
MOST_ID = 60
ADDS = 6  # columns of a contribution
HERE = len("here")


def format_table(
    explanation: Explanation, shade: Shade | None = None, width: int = WIDTH, mentions: int = 1
) -> str:
    """An explanation as a text table.

    One row per query word: its best mention in context, how rare it is in the collection, how often this text
    contains it, how well the context fits, its contribution, and its share of the score. Then the sentence
    part, and the sentences of the document that contribute most to it. `mentions` is how many mentions of
    each query word are shown, and how many sentences, but at least three.
    """
    lines = [_heading(explanation, width)]
    lines += _notes(reading_notes(explanation), width)
    if explanation.matches or explanation.sentence is not None:
        lines += _Rows(explanation, shade or _plain, width, mentions).lines()
    lines += _notes(closing_notes(explanation), width)
    return "\n".join(line.rstrip() for line in lines)


class _Rows:
    """The rows of one explanation in columns that fit the width."""

    def __init__(self, explanation: Explanation, shade: Shade, width: int, mentions: int) -> None:
        self._explanation, self._shade, self._mentions = explanation, shade, max(mentions, 1)
        self._width, self._narrow = width, width < NARROW
        self._figures = figures = Figures.of([explanation], width)
        words = ["query", "sentence", *(printable(m.query_token) for m in explanation.matches)]
        self._query = min(max(width_of(word) for word in words), 12 if self._narrow else 20)
        self._share = len("floored") if self._narrow else len("share of the score")
        # If the count of a word is shown, it tells how many mentions are not.
        self._others = not figures.rarity and any(self._hidden(match) for match in explanation.matches)
        shown = [figures.show_rows(match, self._narrow) for match in explanation.matches]
        self._rows_name = "texts" if self._narrow else "texts with it"
        self._rows = max(map(len, [self._rows_name, *shown])) if figures.rarity else 0
        self._between = (4 + self._rows + HERE if figures.rarity else 0) + (
            2 + figures.fit_width if figures.fit else 0
        )  # columns between the context and what it adds
        numbers = self._between + 2 + ADDS + 2 + self._share + (8 if self._others else 0)
        self._context = min(max(width - 2 - self._query - 2 - numbers, LEAST_CONTEXT), MOST_CONTEXT)

    def lines(self) -> list[str]:
        explanation, figures = self._explanation, self._figures
        share = "share" if self._narrow else "share of the score"
        between = self._numbers(self._rows_name, "here", figures.fit)
        context = pad(cut_end("in the document", self._context), self._context)
        lines = [self._line("query", context + between, "adds", share, "others" * self._others)]
        for match in explanation.matches:
            lines += self._of_match(match)
        if explanation.sentence is not None:
            lines.append(self._of_sentence("sentence", "the texts as a whole", explanation.sentence))
            for part in sentences_to_show(explanation, max(SENTENCES, self._mentions)):
                lines.append(self._of_sentence("", f"  {printable(part.text)}", part.contribution))
        if figures.rarity and self._narrow and figures.rows:
            lines += _notes([f"texts: how many of {figures.rows:,} contain the word"], self._width)
        return lines

    def _of_match(self, match: Match) -> list[str]:
        share = self._explanation.share(match.contribution)
        floored = "floored" if self._narrow else "floored at 0"
        hidden = self._hidden(match)
        between = self._numbers(
            self._figures.show_rows(match, self._narrow),
            f"{match.count:,}×",
            self._figures.show_fit(match.similarity, match.fit),
        )
        lines = [
            self._line(
                printable(match.query_token),
                fit_snippet(match.context, self._context, share, self._shade) + between,
                f"{match.contribution:.2f}",
                floored if match.floored else self._bar(share),
                f"{hidden:6,}" if hidden and self._others else "",
            )
        ]
        for mention in match.runner_ups[: self._mentions - 1]:
            lines.append(self._of_mention(mention))
        return lines

    def _of_mention(self, mention: Mention) -> str:
        context = fit_snippet(mention.context, self._context, 0.0, _plain)
        fit = self._figures.show_fit(mention.similarity, mention.fit)
        return self._line("", context + self._numbers("", "", fit), "", "")

    def _of_sentence(self, name: str, text: str, value: float) -> str:
        """A line of the sentence part: its only number is its contribution, so its text spans the others."""
        room = self._context + self._between
        words = pad(cut_end_at_word(text, room), room)
        return self._line(name, words, f"{value:.2f}", self._bar(self._explanation.share(value)))

    def _hidden(self, match: Match) -> int:
        return max(len(match.runner_ups) - (self._mentions - 1), 0)

    def _numbers(self, rows: str, here: str, fit: str) -> str:
        figures = self._figures
        weighed = f"  {rows:>{self._rows}}  {here:>{HERE}}" if figures.rarity else ""
        return weighed + (f"  {fit:>{figures.fit_width}}" if figures.fit else "")

    def _line(self, query: str, middle: str, adds: str, share: str, others: str = "") -> str:
        cut = pad(cut_end(query, self._query), self._query)
        return f"  {cut}  {middle}  {adds:>{ADDS}}  {share:<{self._share}}  {others}"

    def _bar(self, share: float) -> str:
        """A bar and the share as a percentage; empty if the share is 0."""
        if share <= 0.0:
            return ""
        return f"{share:4.0%}" if self._narrow else f"{bar(share, BAR_WIDTH)} {share:4.0%}"


def format_contrast(contrast: Contrast, shade: Shade | None = None, width: int = WIDTH) -> str:
    """A contrast as text: the summary, then one row per part with both documents and the difference."""
    return "\n".join(line.rstrip() for line in _Sides(contrast, shade or _plain, width).lines())


class _Sides:
    """The rows of a contrast in columns that fit the width."""

    def __init__(self, contrast: Contrast, shade: Shade, width: int) -> None:
        self._contrast, self._shade, self._width = contrast, shade, width
        self._both = (contrast.first, contrast.second)
        self._figures = figures = Figures.of(self._both, width)
        # In the paper's model, a match adds its similarity. Otherwise, the contribution is shown, with the
        # figures behind it if there is room.
        self._alike = figures.fit == "similarity" and not figures.rarity
        words = ["sentence", *(printable(d.query_token) for d in contrast.differences)]
        self._query = min(max(width_of(word) for word in words), 12 if width < NARROW else 20)
        matches = [match for d in contrast.differences for match in (d.first, d.second) if match is not None]
        rows = max(map(len, ["texts with it", *(figures.show_rows(m, narrow=False) for m in matches)]))
        for why, how_rare in ((True, True), (True, False), (False, False)):
            self._why, self._rows = why and not self._alike, rows if how_rare and figures.rarity else 0
            self._numbers = 8  # a space, the number, and a star or a space
            if self._why:
                self._numbers += (1 + HERE) * figures.rarity + (1 + figures.fit_width) * bool(figures.fit)
            before = 2 + self._query + 2 + (self._rows + 2 if self._rows else 0)
            room = (width - before - 2 * self._numbers - 2 - 2 - len("difference")) // 2
            if room >= ENOUGH_CONTEXT:
                break
        self._cell = max(min(room, MOST_CONTEXT), LEAST_CONTEXT)

    def lines(self) -> list[str]:
        contrast, both = self._contrast, self._both
        lines = wrap(contrast.summary, self._width)
        names = [cut_middle(printable(e.doc_id), self._cell + 7 * (not self._why)) for e in both]
        titles = [self._side(name, "here", self._figures.fit, "adds" * self._why) for name in names]
        if not self._why:
            titles = [pad(name, self._cell + self._numbers) for name in names]
        lines.append(self._line("query", "texts with it", titles, "difference"))
        for difference in contrast.differences:
            lines += self._of_difference(difference)
        scores = [self._side("", "", "", f"{e.score:.2f}") for e in both]
        lines.append(self._line("score", "", scores, f"{contrast.gap:+.2f}"))
        if any(m.floored for d in contrast.differences for m in (d.first, d.second) if m is not None):
            lines.append("  * below 0, so floored: it adds nothing")
        for explanation in both:
            name = cut_middle(printable(explanation.doc_id), MOST_ID)
            lines += _notes([f"{name}, {about}" for about in partly_read(explanation)], self._width)
        return lines + _notes(contrast_notes(contrast), self._width)

    def _of_difference(self, difference: Difference) -> list[str]:
        pairs = [(difference.first, difference.first_adds), (difference.second, difference.second_adds)]
        if difference.query_span is None:
            whole = [self._side("the text as a whole", "", "", f"{adds:.2f}") for _, adds in pairs]
            return [self._line("sentence", "", whole, f"{difference.value:+.2f}"), *self._of_sentences()]
        known = difference.first or difference.second
        assert known is not None
        rows = self._figures.show_rows(known, narrow=False)
        sides = [
            self._of_match(match, explanation)
            for (match, _), explanation in zip(pairs, self._both, strict=True)
        ]
        return [self._line(printable(difference.query_token), rows, sides, f"{difference.value:+.2f}")]

    def _of_match(self, match: Match | None, explanation: Explanation) -> str:
        if match is None:
            return pad("–", self._cell + self._numbers)
        context = fit_snippet(match.context, self._cell, explanation.share(match.contribution), self._shade)
        value = match.similarity if self._alike else match.contribution
        fit = self._figures.show_fit(match.similarity, match.fit)
        return context + self._figures_of(f"{match.count:,}×", fit, f"{value:.2f}", match.floored)

    def _of_sentences(self) -> list[str]:
        """The sentence of each document that contributes most, if it has several."""
        parts = [sentences_to_show(explanation, 1)[:1] for explanation in self._both]
        if not any(parts):
            return []
        sides = [
            self._side(f"  {printable(part[0].text)}", "", "", f"{part[0].contribution:.2f}")
            if part
            else pad("", self._cell + self._numbers)
            for part in parts
        ]
        return [self._line("", "", sides, "")]

    def _side(self, text: str, here: str, fit: str, adds: str) -> str:
        words = pad(cut_end_at_word(text, self._cell), self._cell)
        return words + self._figures_of(here, fit, adds, floored=False)

    def _figures_of(self, here: str, fit: str, adds: str, floored: bool) -> str:
        why = ""
        if self._why:
            why += f" {here:>{HERE}}" * self._figures.rarity
            why += f" {fit:>{self._figures.fit_width}}" * bool(self._figures.fit)
        return f"{why} {adds:>6}{'*' if floored else ' '}"

    def _line(self, query: str, rows: str, sides: Sequence[str], difference: str) -> str:
        name = pad(cut_end(query, self._query), self._query)
        weighed = f"{rows:>{self._rows}}  " if self._rows else ""
        return f"  {name}  {weighed}{'  '.join(sides)}  {difference:>10}"


def fit_snippet(snippet: Snippet, columns: int, share: float, shade: Shade) -> str:
    """A snippet in this many columns: the whole token if possible, with its context truncated to fit."""
    token = cut_end(printable(snippet.token), columns - 2)
    before, after = printable(snippet.before), printable(snippet.after)
    room = columns - 2 - width_of(token)
    before = cut_start_at_word(before, max(room // 2, room - width_of(after)))
    after = cut_end_at_word(after, room - width_of(before))
    shown = width_of(before) + 1 + width_of(token) + 1 + width_of(after)
    return pad(f"{before}[{shade(token, share)}]{after}", columns, shown)


def _heading(explanation: Explanation, width: int) -> str:
    name = cut_middle(printable(explanation.doc_id), MOST_ID)
    by = "" if explanation.by == "coil" else f" by {explanation.by}"
    start = f"{name} scores {explanation.score:.2f}{by} for "
    query = printable(explanation.query)
    return f'{start}"{cut_end(query, max(width - width_of(start) - 2, 20))}"'


def _notes(notes: Iterable[str], width: int) -> list[str]:
    """Notes below the heading or the table, wrapped to the width."""
    return [f"  {line}" for note in notes for line in wrap(note, width - 2, "  ")]


def _plain(text: str, share: float) -> str:
    return text
