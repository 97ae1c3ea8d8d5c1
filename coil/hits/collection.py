"""Collection: what a searcher searches: an index on disk, or documents in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

from coil.errors import DuplicateId, InputError
from coil.forks import cached
from coil.lists.building import SegmentBuilder
from coil.lists.precision import Precision
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment
from coil.scores.prepared import KnowsCollection
from coil.scores.statistics import Statistics
from coil.texts.questions import check_id
from coil.texts.values import Document, field_of
from coil.tokens.contexts import NO_CONTEXT, ContextRule
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

REPORT_EVERY = 256  # documents between two reports of progress


class Collection(Protocol):
    """Segments, and the documents by ordinal."""

    @property
    def segments(self) -> Sequence[LiveSegment]:
        """The segments with the lists."""
        ...

    @property
    def statistics(self) -> KnowsCollection:
        """The statistics that weights are computed from."""
        ...

    @property
    def context(self) -> ContextRule:
        """What the context of a row contains."""
        ...

    def document(self, ordinal: int) -> Document:
        """A document by its ordinal."""
        ...

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order; without texts and fields, this is faster."""
        ...

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterable[tuple[int, Any]]:
        """The values of a field of these documents, by ordinal; a dotted name may refer to a nested field.

        Documents without the field are left out.
        """
        ...

    def blocks(self, ordinals: Sequence[int]) -> Iterable[Sequence[int]]:
        """Split ordinals into blocks whose documents are read together: small, or a single document."""
        ...

    def sizes_of(self, ordinals: Sequence[int]) -> Iterable[int]:
        """The bytes of each document's text and fields."""
        ...

    def ordinal_of(self, doc_id: str) -> int:
        """The ordinal of a document; an unknown id raises InputError."""
        ...


class MemoryCollection:
    """Documents and their lists in memory; the ordinal of a document is its position."""

    context = NO_CONTEXT

    def __init__(self, documents: Sequence[Document], segments: Sequence[Segment]) -> None:
        self.documents = documents
        self.segments = [LiveSegment(segment, None) for segment in segments]
        self._ordinals: dict[str, int] = {}
        for ordinal, document in enumerate(documents):
            first = self._ordinals.setdefault(check_id(document.doc_id), ordinal)
            if first != ordinal:
                raise DuplicateId(document.doc_id, f"document {first + 1}", f"document {ordinal + 1}")

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        documents: Iterable[Document],
        precision: Precision = "fp32",
        progress: Callable[[int], object] | None = None,
    ) -> MemoryCollection:
        """Encode documents, truncated to the model's length.

        `progress` is called with the number of documents since its last call.
        """
        kept = list(documents)
        collection = cls(kept, [])  # checks the ids before anything is encoded

        def report(vectors: Iterable[TokenVectors]) -> Iterable[TokenVectors]:
            for done, of_text in enumerate(vectors, start=1):
                yield of_text
                if progress is not None and (done % REPORT_EVERY == 0 or done == len(kept)):
                    progress(REPORT_EVERY if done % REPORT_EVERY == 0 else done % REPORT_EVERY)

        vectors = report(encoder.encode_documents(document.text for document in kept))
        config = encoder.config
        found = build_segments(vectors, config, precision)
        collection.segments = [LiveSegment(segment, None) for segment in found]
        return collection

    @cached
    def statistics(self) -> Statistics:
        """The statistics that weights are computed from."""
        return Statistics(self.segments)

    def document(self, ordinal: int) -> Document:
        """A document by its ordinal."""
        return self.documents[ordinal]

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order."""
        found = [self.documents[ordinal] for ordinal in ordinals]
        return found if texts else [Document(document.doc_id, "") for document in found]

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The values of a field of these documents, by ordinal; a dotted name may refer to a nested field."""
        for ordinal in ordinals:
            value = field_of(self.documents[ordinal].fields, name)
            if value is not None:
                yield ordinal, value

    def blocks(self, ordinals: Sequence[int]) -> list[Sequence[int]]:
        """A single block: the documents are in memory."""
        return [ordinals]

    def sizes_of(self, ordinals: Sequence[int]) -> Iterator[int]:
        """Roughly the bytes of each document's text and fields."""
        return (self.documents[ordinal].size for ordinal in ordinals)

    def ordinal_of(self, doc_id: str) -> int:
        """The ordinal of a document."""
        doc_id = check_id(doc_id)
        if doc_id not in self._ordinals:
            raise InputError(
                f"no document has the id {doc_id!r} among the {len(self.documents)} documents here",
                "ids are case-sensitive; copy one from a result",
            )
        return self._ordinals[doc_id]


class PartCollection:
    """Some segments of a collection, with the statistics of the whole collection or those given."""

    def __init__(
        self,
        collection: Collection,
        segments: Sequence[LiveSegment],
        statistics: KnowsCollection | None = None,
    ) -> None:
        self._collection = collection
        self.segments = segments
        self.context = collection.context
        # Not the statistics of these segments: weights would depend on the candidates.
        self.statistics = collection.statistics if statistics is None else statistics

    def document(self, ordinal: int) -> Document:
        """A document by its ordinal."""
        return self._collection.document(ordinal)

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order."""
        return self._collection.fetch(ordinals, texts)

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterable[tuple[int, Any]]:
        """The values of a field of these documents, by ordinal."""
        return self._collection.field_values(name, ordinals, deadline)

    def blocks(self, ordinals: Sequence[int]) -> Iterable[Sequence[int]]:
        """Split ordinals into blocks whose documents are read together."""
        return self._collection.blocks(ordinals)

    def sizes_of(self, ordinals: Sequence[int]) -> Iterable[int]:
        """The bytes of each document's text and fields."""
        return self._collection.sizes_of(ordinals)

    def ordinal_of(self, doc_id: str) -> int:
        """The ordinal of a document."""
        return self._collection.ordinal_of(doc_id)


def build_segments(
    texts: Iterable[TokenVectors], config: ModelConfig, precision: Precision = "fp32"
) -> list[Segment]:
    """The segments of encoded texts: one row per document, whose ordinal is its position."""

    def fresh() -> SegmentBuilder:
        return SegmentBuilder(config.profile, config.n_t, config.n_c, precision)

    segments: list[Segment] = []
    builder = fresh()
    for ordinal, text in enumerate(texts):
        if len(builder) == MOST_ROWS:
            segments.append(builder.finish())
            builder = fresh()
        end = int(text.spans[-1, 1]) if len(text) else 0
        builder.add(ordinal, (0, end), text)
    return [*segments, builder.finish()] if len(builder) else segments
