"""Collection: what a searcher searches, whether it is an index on disk or a few documents in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from coil.errors import DuplicateId, InputError
from coil.lists.precision import Precision
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment, SegmentBuilder
from coil.texts.values import Document
from coil.tokens.list_keys import ListKeys
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

REPORT_EVERY = 256  # documents between two reports of progress


class Collection(Protocol):
    """Segments, and the documents that their ordinals stand for."""

    @property
    def segments(self) -> Sequence[LiveSegment]:
        """The lists, in blocks."""
        ...

    def document(self, ordinal: int) -> Document:
        """A document by its inside number."""
        ...

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their inside numbers, in this order; without texts and fields they cost less."""
        ...

    def ordinal_of(self, doc_id: str) -> int:
        """The inside number of a document; an unknown id is an InputError."""
        ...


class MemoryCollection:
    """Documents and their lists in memory; the ordinal of a document is its place."""

    def __init__(self, documents: Sequence[Document], segments: Sequence[Segment]) -> None:
        self.documents = documents
        self.segments = [LiveSegment(segment, None) for segment in segments]
        self._ordinals: dict[str, int] = {}
        for ordinal, document in enumerate(documents):
            first = self._ordinals.setdefault(document.doc_id, ordinal)
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
        """Encode documents, cut off where the model ends; `progress` hears how many more are done."""
        kept = list(documents)
        collection = cls(kept, [])  # checks the ids before anything is encoded

        def report(vectors: Iterable[TokenVectors]) -> Iterable[TokenVectors]:
            for done, of_text in enumerate(vectors, start=1):
                yield of_text
                if progress is not None and (done % REPORT_EVERY == 0 or done == len(kept)):
                    progress(REPORT_EVERY if done % REPORT_EVERY == 0 else done % REPORT_EVERY)

        vectors = report(encoder.encode_documents(document.text for document in kept))
        config = encoder.config
        found = build_segments(vectors, encoder.keys, config.n_t, config.n_c, precision)
        collection.segments = [LiveSegment(segment, None) for segment in found]
        return collection

    def document(self, ordinal: int) -> Document:
        """A document by its inside number."""
        return self.documents[ordinal]

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their inside numbers, in this order."""
        found = [self.documents[ordinal] for ordinal in ordinals]
        return found if texts else [Document(document.doc_id, "") for document in found]

    def ordinal_of(self, doc_id: str) -> int:
        """The inside number of a document."""
        if doc_id not in self._ordinals:
            raise InputError(
                f"no document has the id {doc_id!r} among the {len(self.documents)} documents here",
                "copy the id from a hit; ids are compared letter by letter",
            )
        return self._ordinals[doc_id]


def build_segments(
    texts: Iterable[TokenVectors], keys: ListKeys, n_t: int, n_c: int, precision: Precision = "fp32"
) -> list[Segment]:
    """The segments of encoded texts, one row a document, the ordinal its place."""
    segments: list[Segment] = []
    builder = SegmentBuilder(keys, n_t, n_c, precision)
    for ordinal, text in enumerate(texts):
        if len(builder) == MOST_ROWS:
            segments.append(builder.finish())
            builder = SegmentBuilder(keys, n_t, n_c, precision)
        end = int(text.spans[-1, 1]) if len(text) else 0
        builder.add(ordinal, (0, end), text)
    return [*segments, builder.finish()] if len(builder) else segments
