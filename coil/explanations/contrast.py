"""Contrast: why one document ranks above another, part by part."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from coil.compiled import importing
from coil.explanations.columns import cut_middle, printable
from coil.explanations.explanation import Explanation, Match, QueryToken
from coil.explanations.snippet import Span

TIE = 0.005  # scores are shown with two decimals: closer ones look the same
MOST_NAMED = 3  # parts in the summary
ENOUGH = 2 / 3  # the summary names parts until this share of the higher document's advantage is covered
ID_WIDTH = 40

_Key = tuple[Span, int]


@dataclass(frozen=True)
class Difference:
    """One part of two scores. `query_span` is None for the sentence part; `value` is first minus second."""

    query_token: str
    query_span: Span | None
    first: Match | None
    second: Match | None
    first_adds: float
    second_adds: float

    @property
    def value(self) -> float:
        """The contribution to the first score minus that to the second."""
        return self.first_adds - self.second_adds


@dataclass(frozen=True)
class Contrast:
    """Two explanations for the same query; `differences` add up to `gap`, and the largest comes first."""

    first: Explanation
    second: Explanation
    differences: tuple[Difference, ...]

    @property
    def query(self) -> str:
        """The query of both explanations."""
        return self.first.query

    @property
    def gap(self) -> float:
        """The first score minus the second."""
        return self.first.score - self.second.score

    @property
    def in_neither(self) -> tuple[QueryToken, ...]:
        """Query tokens that have a list but no mention in either document."""
        other = {token.span for token in self.second.unmatched}
        return tuple(token for token in self.first.unmatched if token.span in other)

    @property
    def summary(self) -> str:
        """The contrast in one sentence."""
        first, second = (_short(e.doc_id) for e in (self.first, self.second))
        if abs(self.gap) < TIE:
            more = [d for d in self.differences if abs(d.value) >= TIE]
            why = f"; differences such as {_name(more[0])} ({more[0].value:+.2f}) cancel out" if more else ""
            return f"{first} and {second} score the same, {self.first.score:.2f}{why}"
        sign = 1 if self.gap > 0 else -1
        upper, lower = (first, second) if sign > 0 else (second, first)
        whole = (self.second if sign > 0 else self.first).whole
        speaking = sorted((d for d in self.differences if sign * d.value > 0), key=lambda d: -abs(d.value))
        named: list[Difference] = []
        total = sum(abs(d.value) for d in speaking)
        for difference in speaking[:MOST_NAMED]:
            if sum(abs(d.value) for d in named) >= ENOUGH * total:
                break
            named.append(difference)
        mostly = "mostly " if len(named) < len(speaking) else ""
        through = _reasons(named, sign, lower if whole else f"the scored part of {lower}")
        against = [d for d in self.differences if sign * d.value <= -TIE]  # already sorted, largest first
        gain = f"{abs(against[0].value):.2f} through {_name(against[0])}" if against else ""
        although = f", although {lower} gains {gain}" if gain else ""
        return f"{upper} scores {abs(self.gap):.2f} more than {lower}, {mostly}through {through}{although}"

    def to_json(self) -> dict[str, Any]:
        """Everything as one JSON object."""
        return {
            "query": self.query,
            "summary": self.summary,
            "gap": self.gap,
            "differences": [
                {
                    "part": "token" if difference.query_span is not None else "sentence",
                    **asdict(difference),
                    "value": difference.value,
                }
                for difference in self.differences
            ],
            "first": self.first.to_json(),
            "second": self.second.to_json(),
        }

    def __str__(self) -> str:
        with importing():
            from coil.explanations.table import format_contrast

        return format_contrast(self)

    def _repr_html_(self) -> str:
        with importing():
            from coil.explanations.notebook import contrast_html

        return contrast_html(self)


def make_contrast(first: Explanation, second: Explanation) -> Contrast:
    """Compare two explanations for the same query."""
    one, other = _keyed(first.matches), _keyed(second.matches)
    differences = [
        Difference(
            query_token=match.query_token,
            query_span=match.query_span,
            first=one.get(key),
            second=other.get(key),
            first_adds=one[key].contribution if key in one else 0.0,
            second_adds=other[key].contribution if key in other else 0.0,
        )
        for key, match in sorted({**one, **other}.items())
    ]
    if first.sentence is not None and second.sentence is not None:
        differences.append(Difference("sentence", None, None, None, first.sentence, second.sentence))
    differences.sort(key=lambda difference: -abs(difference.value))
    return Contrast(first, second, tuple(differences))


def _keyed(matches: Iterable[Match]) -> dict[_Key, Match]:
    """Matches by the span of the query token, and a number for tokens with the same span."""
    keyed: dict[_Key, Match] = {}
    for match in matches:
        number = 0
        while (match.query_span, number) in keyed:
            number += 1
        keyed[match.query_span, number] = match
    return keyed


def _short(doc_id: str) -> str:
    return cut_middle(printable(doc_id), ID_WIDTH)


def _name(difference: Difference) -> str:
    return (
        "the texts as a whole" if difference.query_span is None else f"'{printable(difference.query_token)}'"
    )


def _reasons(named: list[Difference], sign: int, lower: str) -> str:
    """The parts with their values; words that the lower document does not contain are grouped."""

    def lacks(difference: Difference) -> bool:
        match = difference.second if sign > 0 else difference.first
        return difference.query_span is not None and match is None

    groups = []
    for lacking in sorted((True, False), key=lambda value: value != lacks(named[0])):
        parts = [f"{_name(d)} ({sign * d.value:+.2f})" for d in named if lacks(d) == lacking]
        if parts:
            joined = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
            groups.append(joined + (f", which {lower} does not contain" if lacking else ""))
    return ", and ".join(groups)
