"""What the service asks of an index, whether it is on this disk or has many shards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Protocol

from coil.explanations.explanation import Explanation
from coil.hits.answering import FIRST_PAGE, Answer
from coil.hits.paging import Paging
from coil.hits.spelling import Suggestion
from coil.indexes.index import LeftOut
from coil.storage.facts import IndexFacts
from coil.texts.asking import Question
from coil.texts.given import Texts
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors


class Explains(Protocol):
    """A query, encoded once, that explains documents."""

    @property
    def vectors(self) -> TokenVectors:
        """The encoded query."""
        ...

    def explain_many(
        self, doc_ids: Sequence[str], sentence_parts: bool = True, go_on: GoOn | None = None
    ) -> Iterable[Explanation]:
        """Why documents have their scores, in this order."""
        ...


class Readable(Protocol):
    """One state of an index; see `IndexReader`."""

    @property
    def encoder(self) -> Encoder:
        """The model that the index was built with."""
        ...

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        ...

    def tell_state(self) -> dict[str, Any]:
        """What an answer says about the state it was read from."""
        ...

    def __len__(self) -> int: ...

    def search(self, query: str, k: int = 10) -> Sequence[object]:
        """The k best documents for a query."""
        ...

    def answer_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        filter: str | None = None,
        by: By = "coil",
        min_score: float | None = None,
        min_share: float | None = None,
        timeout: float | None = None,
        texts: bool = False,
        most_text: int | None = None,
        paging: Paging = FIRST_PAGE,
        plain: bool = False,
        most_each: int | None = None,
    ) -> list[Answer]:
        """The k best documents for each of many queries, and what they cost."""
        ...

    def read_query(self, query: str, plain: bool = False, deadline: float | None = None) -> Question:
        """A query with its operators."""
        ...

    def suggest(
        self, query: str, plain: bool = False, go_on: Callable[[], object] | None = None
    ) -> list[Suggestion]:
        """Similar words for words that no document contains."""
        ...

    def explainer(
        self, query: str, by: By = "coil", vectors: TokenVectors | None = None, deadline: float | None = None
    ) -> Explains:
        """An object that explains any number of documents for one query, until the deadline."""
        ...

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id."""
        ...

    def document(self, doc_id: str) -> Document:
        """A document by its id."""
        ...

    def size_of(self, doc_id: str) -> int | None:
        """The bytes of a document's text and fields, None if no document has this id."""
        ...

    def inspect(self, *, timeout: float | None) -> IndexFacts:
        """Sizes and settings, counted within this time."""
        ...


class Changeable(Protocol):
    """An index that can be changed; see `Index`."""

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        ...

    def __len__(self) -> int: ...

    def update(self, documents: Texts, left_out: LeftOut | None = None, go_on: GoOn | None = None) -> int:
        """Add documents, replacing those with the same ids."""
        ...

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Delete documents; returns how many of the ids were there."""
        ...


class Served(Protocol):
    """A named index with many readers and one writer; see `ServedIndex`."""

    name: str
    trouble: str
    damage: str

    def reading(self) -> AbstractContextManager[Readable]:
        """The current state of the index, for as long as it is needed."""
        ...

    def count_documents(self) -> int:
        """The number of documents, or the number before it was damaged."""
        ...

    def place_to_write(self) -> AbstractContextManager[None]:
        """One of the limited places for changes."""
        ...

    def write(self, change: Callable[[Changeable], Any]) -> Future[Any]:
        """Queue a change behind those waiting."""
        ...

    @property
    def writes_waiting(self) -> int:
        """The number of changes waiting or running."""
        ...

    def check(self) -> None:
        """Check that the index is intact: problems are recorded in `trouble` and `damage`."""
        ...

    def close(self) -> None:
        """Finish pending writes, and release the index."""
        ...
