"""The figures, sentences and notes of explanations and contrasts.

Shared by the tables for terminals and notebooks. Columns without information are omitted: BM25 does not
compare contexts, and the paper's COIL does not weight words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from coil.errors import how_many
from coil.explanations.columns import printable
from coil.explanations.contrast import Contrast
from coil.explanations.explanation import Explanation, Match, QueryToken
from coil.explanations.sentence_parts import SentencePart

WIDTH = 120  # columns of a terminal
TINY = 64  # in a narrower terminal, there is no room for the rarity and the count of a word
SENTENCES = 3  # shown at least, if there are as many
WITHOUT_CONTEXTS = ("bm25", "hybrid")  # they count words and do not compare contexts


@dataclass(frozen=True)
class Figures:
    """Which figures of matches to show. `fit` is the name of its column, empty if it is not shown."""

    fit: str
    rarity: bool  # and how often the text contains the word
    rows: int

    @classmethod
    def of(cls, explanations: Sequence[Explanation], width: int = WIDTH) -> Figures:
        matches = [match for explanation in explanations for match in explanation.matches]
        plain = all(match.fit == (0.0 if match.floored else match.similarity) for match in matches)
        compared = bool(matches) and explanations[0].by not in WITHOUT_CONTEXTS
        return cls(
            fit="" if not compared else "similarity" if plain else "fit",
            rarity=width >= TINY and any(match.rows_with for match in matches),
            rows=explanations[0].rows,
        )

    @property
    def fit_width(self) -> int:
        return max(len(self.fit), 5) if self.fit else 0

    def show_fit(self, similarity: float, fit: float) -> str:
        """The similarity or the fit of a context, depending on the name of the column."""
        return f"{similarity if self.fit == 'similarity' else fit:.2f}" if self.fit else ""

    def show_rows(self, match: Match, narrow: bool) -> str:
        """How many texts contain the word."""
        return f"{match.rows_with:,}" if narrow or not self.rows else f"{match.rows_with:,} of {self.rows:,}"


def sentences_to_show(explanation: Explanation, most: int) -> list[SentencePart]:
    """The sentences that contribute most, and all others as one entry; they sum to `sentence`.

    Empty if there is only one sentence, which is the whole text.
    """
    spoken = sorted(
        (part for part in explanation.sentence_parts if part.span is not None),
        key=lambda part: -abs(part.contribution),
    )
    beside = [part for part in explanation.sentence_parts if part.span is None]
    if len(spoken) < 2:
        return []
    if len(spoken) == most + 1:  # "1 more sentence" would take as many lines as the sentence
        most += 1
    shown, left = spoken[:most], spoken[most:]
    if left or beside:
        names = [f"{len(left):,} more sentences"] if left else []
        total = sum(part.contribution for part in (*left, *beside))
        shown.append(SentencePart(", ".join([*names, *(part.text for part in beside)]), None, total))
    return shown


def partly_read(explanation: Explanation) -> list[str]:
    """A note if only a part of the document was scored."""
    start, end = explanation.chunk
    if explanation.whole:
        return []
    characters = f"characters {start:,} to {end:,} of {explanation.characters:,}"
    read_with = f", encoded with: {printable(explanation.context)}" if explanation.context else ""
    return [
        f"truncated: only {characters} were indexed"
        if explanation.document_dropped
        else f"best chunk: {characters}{read_with}"
    ]


def reading_notes(explanation: Explanation) -> list[str]:
    """The notes above the table: which part of the texts was read."""
    lines = partly_read(explanation)
    if explanation.query_dropped:
        dropped = how_many(explanation.query_dropped, "token")
        lines.append(f"the query is too long; its last {dropped} were ignored")
    return lines


def closing_notes(explanation: Explanation) -> list[str]:
    """The notes below the table: words that were not found, and the share of the query's own score."""
    nowhere = "not in the document" if explanation.whole else "not in this part of the document"
    lines = _tokens(nowhere, explanation.unmatched) + _tokens("not compared", explanation.without_list)
    if not explanation.query.strip():
        lines.append("the query is blank, so a search finds nothing")
    elif explanation.sentence is None and explanation.score == 0.0:
        lines.append("nothing contributes to the score: the document is not a hit")
    elif not explanation.matches and explanation.unmatched:
        lines.append("no word in common: the score comes from the texts as a whole")
    share = explanation.share_of_own_score
    if share is not None and share > 0.0:
        own = f"the query's own text would score {explanation.own_score:.2f}"
        lines.append(f"{own}: this is {share:.0%} of that")
    return lines


def contrast_notes(contrast: Contrast) -> list[str]:
    """The notes below a contrast: words that neither document contains."""
    in_neither = _tokens("in neither document", contrast.in_neither)
    return in_neither + _tokens("not compared", contrast.first.without_list)


def _tokens(label: str, tokens: Iterable[QueryToken]) -> list[str]:
    """The tokens after a label, grouped by reason."""
    groups = []
    by_reason = sorted(tokens, key=lambda token: token.reason)  # stable: in query order within a reason
    for reason, same in groupby(by_reason, lambda token: token.reason):
        words = Counter(printable(token.text) for token in same)
        shown = ", ".join(f"{word} ×{times}" if times > 1 else word for word, times in words.items())
        groups.append(shown + (f" ({_plural(reason, len(words))})" if reason else ""))
    return [f"{label}: {'; '.join(groups)}"] if groups else []


def _plural(reason: str, number: int) -> str:
    return "stop words" if reason == "stop word" and number > 1 else reason
