"""Documents with given ordinals: those of a shard, numbered over the whole index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from coil.texts.values import Document

Numbered = Sequence[tuple[int, Document]]
"""Documents with their ordinals, ascending."""


class NumberedDocuments(Iterator[Document]):
    """Documents on their way into an index; the mark of each is its ordinal."""

    position = 0  # bytes are not counted

    def __init__(self, numbered: Numbered) -> None:
        assert all(one < other for (one, _), (other, _) in pairwise(numbered))
        self._stream = iter(numbered)
        self.mark = 0

    def __next__(self) -> Document:
        self.mark, document = next(self._stream)
        return document

    def place_of(self, mark: int, doc_id: str) -> str:
        """A document's place in words."""
        return f"document {doc_id!r:.80}"
