"""The protocols of systems to compare.

A system is a frozen dataclass. `name` is its label in tables, `model` (if it has one) the folder of its
model, and every other field is an option that a user may set by name; `option` adds a help text. A system is
cheap to construct: models are loaded on first use. Its methods determine what a system can do:

- a `Retriever` searches a collection by itself: `index` once, then `search`;
- a `Reranker` reorders the candidates of a retriever from their texts, a `StoredReranker` from its own index;
- a `Fuser` merges the answers of other systems;
- a `Trainable` learns its model from pairs: `fit` writes a model folder, to be passed as `model` to another
  instance.

Indexes and trained models are cached, keyed by a digest of their inputs. The inputs of an index are the kind
of system, the model and all options, unless the class has a method `index_inputs` that returns fewer;
likewise `training_inputs` for a trained model. Systems with equal inputs share the result. A class with
`continues_index = True` resumes an interrupted `index` from what is in its folder. A class with
`needs_model = True` cannot run without a trained or named model.

All answers are sorted by score, descending, ties in the order of the documents in the collection. Scores are
finite numbers, and a document occurs at most once in an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from coil.texts.values import Document, Query
from coil.training.options import TrainingOptions

Say = Callable[[str], object]
"""Reports one line of progress."""


def silent(text: str) -> None:
    """Report nothing."""


def option(default: Any, help_text: str) -> Any:
    """A field of a system that a user may set, with its help text."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class Answered:
    """The documents that a system found for one query, best first, and the time of each part of the work."""

    query_id: str
    doc_ids: list[str]
    scores: list[float]
    parts_ms: dict[str, float]  # such as {"encode": 1.2, "search": 0.3}; each query is timed separately


@dataclass(frozen=True)
class TrainingData:
    """The training data and recipe, the same for all systems, so that results differ only by the method.

    `recipe` has the options that all systems share: steps, batch sizes, learning rates, lengths, seed. A
    system changes only the options of its own kind of model.
    """

    pairs: Sequence[Path]
    base: str  # the language model to start from
    negatives: Sequence[Path] = ()  # made by `coil mine`
    corpus: str | None = None  # of the negatives, if they were mined from a collection
    recipe: TrainingOptions = field(default_factory=TrainingOptions)
    device: str | None = None  # None: a GPU if there is one
    prepared: Path | None = None  # folder for tokenized pairs, which systems with the same lists share


@runtime_checkable
class Retriever(Protocol):
    """Searches a whole collection."""

    @property
    def name(self) -> str:
        """The label in tables."""

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Write everything that the search needs into the folder, which exists and is empty.

        The size of the folder is reported as the size of the index; the model is not part of it. A class that
        also stores texts, which ranking does not read, returns their size from `text_bytes(folder)`; that is
        subtracted.
        """

    def search(self, queries: Sequence[Query], k: int, folder: Path) -> Iterator[Answered]:
        """The k best documents of each query, in the order of the queries, each as soon as it is known."""


@runtime_checkable
class Reranker(Protocol):
    """Reorders the candidates that a retriever found."""

    @property
    def name(self) -> str:
        """The label in tables."""

    def rerank(
        self,
        queries: Sequence[Query],
        candidates: Mapping[str, Sequence[str]],
        documents: Mapping[str, Document],
    ) -> Iterator[Answered]:
        """All candidates of each query in a new order, in the order of the queries.

        `candidates` maps each query id to the ids of its documents; `documents` is the whole collection, in
        order. It may be read from disk, so look up only the documents that are needed.
        """


@runtime_checkable
class StoredReranker(Protocol):
    """Reorders candidates with an index of its own."""

    @property
    def name(self) -> str:
        """The label in tables."""

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """See `Retriever.index`."""

    def rerank_stored(
        self, queries: Sequence[Query], candidates: Mapping[str, Sequence[str]], folder: Path
    ) -> Iterator[Answered]:
        """All candidates of each query that are in the index, in a new order."""


@runtime_checkable
class Fuser(Protocol):
    """Merges the answers of other systems to a query."""

    @property
    def name(self) -> str:
        """The label in tables."""

    def fuse(self, answers: Sequence[Answered], k: int, place: Callable[[str], int]) -> Answered:
        """One answer for one query; `place` returns the position of a document in the collection."""


@runtime_checkable
class Trainable(Protocol):
    """Learns its model from pairs of queries and passages."""

    def fit(self, data: TrainingData, folder: Path, say: Say = silent) -> None:
        """Write a trained model into the folder; an instance with `model` set to it can then search.

        The folder may contain the state of an interrupted call, which `fit` resumes or discards. On Ctrl-C it
        raises KeyboardInterrupt. The caller records the time.
        """
