"""Hit: one document found. Its text and fields are loaded from the collection on first access."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from coil.texts.values import Document
from coil.tokens.contexts import Outline

BLOCK = 64  # hits whose texts are read together: usually, the neighbouring ones are read as well


class Fetches(Protocol):
    """A source of documents."""

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order."""
        ...


@runtime_checkable
class Held(Protocol):
    """A collection whose files stay open while it is referenced."""

    def retain(self) -> bool:
        """Add a reference."""
        ...

    def release(self) -> None:
        """Release a reference."""
        ...


@contextmanager
def _held(collection: Fetches) -> Iterator[None]:
    """Keep the files of a collection open meanwhile, unless they are already closed."""
    held = collection if isinstance(collection, Held) and collection.retain() else None
    try:
        yield
    finally:
        if held is not None:
            held.release()


class Shelf:
    """The documents of one query's hits. Thread-safe.

    It holds a reference to the collection until all documents are loaded, or it is discarded.
    """

    def __init__(self, collection: Fetches, ordinals: Sequence[int]) -> None:
        self._collection: Fetches | None = collection
        self._ordinals = list(ordinals)
        self._documents: dict[int, Document] = {}
        self._let_go = None
        if isinstance(collection, Held) and collection.retain():
            self._let_go = weakref.finalize(self, collection.release)
            self._let_go.atexit = False  # the system closes the files when the process exits

    def document(self, place: int) -> Document:
        """The document of the hit at this position; some of its neighbours are loaded with it."""
        found = self._documents.get(place)
        if found is None:
            begin = place - place % BLOCK
            self.load(range(begin, min(begin + BLOCK, len(self._ordinals))))
            found = self._documents[place]
        return found

    def load(self, places: Sequence[int]) -> None:
        """Load these documents."""
        collection = self._collection
        if collection is not None:
            # Several threads may read the same hits, and the first that has all of them releases the
            # collection. So each one retains it while it reads. If that is too late, nothing is left to read.
            with _held(collection):
                wanted = [place for place in places if place not in self._documents]
                read = collection.fetch([self._ordinals[place] for place in wanted]) if wanted else []
                self._documents.update(zip(wanted, read, strict=True))
            if len(self._documents) == len(self._ordinals):
                self._collection = None
                if self._let_go is not None:
                    self._let_go()


class Hit:
    """One document found: `rank` counts from 1; `chunk` is the part of its text that scored best.

    `share` is the score divided by the score that the query's own text would have as a document: near 1, a
    text says what the query says, in the same words; near 0, they have next to nothing in common.
    `duplicates` are the ids of documents with the same text that were folded into this hit, if requested.
    """

    __slots__ = ("_place", "_shelf", "chunk", "doc_id", "duplicates", "rank", "score", "share")

    def __init__(
        self,
        rank: int,
        doc_id: str,
        score: float,
        chunk: tuple[int, int],
        shelf: Shelf,
        share: float | None = None,
        place: int | None = None,
        duplicates: tuple[str, ...] = (),
    ) -> None:
        """`place` is the position of the hit on the shelf, if it is not its rank."""
        self.duplicates = duplicates
        self.rank, self.doc_id, self.score, self.chunk, self.share = rank, doc_id, score, chunk, share
        self._shelf, self._place = shelf, rank - 1 if place is None else place

    @property
    def text(self) -> str:
        """The text of the document, loaded on first access."""
        return self._shelf.document(self._place).text

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the document, loaded with its text."""
        return self._shelf.document(self._place).fields

    @property
    def context(self) -> str:
        """Where in its document the chunk is: path, title and headings, unless the chunk contains them."""
        return Outline(self._shelf.document(self._place)).trail(self.chunk)

    def _key(self) -> tuple[Any, ...]:
        return self.rank, self.doc_id, self.score, self.chunk, self.share, self.duplicates

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Hit) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Hit(rank={self.rank}, doc_id={self.doc_id!r}, score={self.score!r}, chunk={self.chunk})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the hit with its text, for another process."""
        document = self._shelf.document(self._place)
        return _restore, (self._key(), document)


def load_texts(hits: Sequence[Hit]) -> None:
    """Load the texts of neighbouring hits of one query at once."""
    if hits:
        hits[0]._shelf.load([hit._place for hit in hits])


class _Read:
    """A source of one document that was already read."""

    def __init__(self, document: Document) -> None:
        self._document = document

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        return [self._document for _ in ordinals]


def read_hit(
    rank: int,
    score: float,
    chunk: tuple[int, int],
    share: float | None,
    duplicates: tuple[str, ...],
    document: Document,
) -> Hit:
    """A hit whose document is already loaded."""
    return Hit(rank, document.doc_id, score, chunk, Shelf(_Read(document), [0]), share, 0, duplicates)


def _restore(key: tuple[Any, ...], document: Document) -> Hit:
    rank, _, score, chunk, share, duplicates = key
    return read_hit(rank, score, chunk, share, duplicates, document)
