"""Hits of one query: a list that renders itself in a notebook."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex, overload

from coil.explanations.notebook import MOST_HITS, hits_html
from coil.explanations.snippet import Span
from coil.hits.answering import Answer
from coil.hits.hit import Hit
from coil.vectors.encoder import Encoder


class Hits(list[Hit]):
    """The hits of a query, best first: a list that a notebook shows with the matched words shaded.

    If there are none, `unknown_fields` names the fields in the filter that no document has. If they were
    sorted by a field and more documents match than are sorted, `sorted_best` is the number of best hits that
    were.
    """

    def __init__(
        self,
        hits: Iterable[Hit] = (),
        query: str = "",
        encoder: Encoder | None = None,
        unknown_fields: Sequence[str] = (),
        sorted_best: int | None = None,
    ) -> None:
        super().__init__(hits)
        self.query, self._encoder = query, encoder
        self.unknown_fields, self.sorted_best = tuple(unknown_fields), sorted_best

    @classmethod
    def of(cls, answer: Answer, query: str, encoder: Encoder) -> Hits:
        """The hits of an answer, with what it says about them."""
        return cls(answer.hits, query, encoder, answer.unknown_fields, answer.sorted_best)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Hits:
        if isinstance(place, slice):
            some = super().__getitem__(place)
            return Hits(some, self.query, self._encoder, self.unknown_fields, self.sorted_best)
        return super().__getitem__(place)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy for another process contains the texts but no model."""
        return Hits, (list(self), self.query, None, self.unknown_fields, self.sorted_best)

    def _repr_html_(self) -> str:
        return hits_html(self, self._words())

    def _words(self) -> list[list[Span]]:
        """The words of each text that are in one of the query's lists."""
        if self._encoder is None:
            return []
        keys, profile = self._encoder.keys, self._encoder.config.profile
        [asked] = keys.of_texts([self.query], profile.query_length)
        wanted = set(asked.keys) - {None}
        found = []
        for hit in super().__getitem__(slice(MOST_HITS)):
            start, end = hit.chunk
            [keyed] = keys.of_texts([hit.text[start:end]], profile.document_length)
            found.append(
                [
                    (start + a, start + b)
                    for (a, b), key in zip(keyed.spans.tolist(), keyed.keys, strict=True)
                    if key in wanted
                ]
            )
        return found


def tell_unknown(names: Iterable[str]) -> str:
    """A message about fields in a filter that no document has: most likely typos."""
    shown = " or ".join(map(repr, names))
    return f"no document has the field {shown}" if shown else ""


def warn_of_unknown(found: Iterable[Hits], level: int = 3) -> None:
    """Warn about fields in a filter that no document has.

    It is not an error: documents with them may follow. The warning names the line of the caller at this
    level; 3 is that of the function that calls this one.
    """
    names = dict.fromkeys(name for hits in found for name in hits.unknown_fields)
    if names:
        warnings.warn(f"no hits: {tell_unknown(names)}", stacklevel=level)
