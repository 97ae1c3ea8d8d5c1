"""Searcher: questions in, hits out, over one segment and the documents it was made from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from coil.errors import DuplicateId, InputError
from coil.hits.top_k import top_k
from coil.lists.segment import Segment
from coil.scores.scorer import Scorer, score_with_numpy
from coil.texts.values import Document
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

CHUNK = 256  # documents between two reports of progress: a few batches, so padding stays rare


@dataclass(frozen=True)
class Hit:
    """One document found: `rank` counts from 1, the rest is the document's own."""

    rank: int
    doc_id: str
    score: float
    text: str = field(repr=False)
    fields: dict[str, Any] = field(repr=False)


class Searcher:
    """An immutable snapshot to search: the encoder for queries, the lists, and the documents behind them."""

    def __init__(
        self,
        encoder: Encoder,
        segment: Segment,
        documents: Sequence[Document],
        scorer: Scorer = score_with_numpy,
    ) -> None:
        """`documents[i]` must be the document with ordinal i of the segment."""
        if len(documents) != segment.n_documents:
            raise InputError(
                f"the segment holds {segment.n_documents} documents, but {len(documents)} were given with it",
                "give the documents that the segment was built from, in the same order",
            )
        self.encoder = encoder
        self.segment = segment
        self.documents = documents
        self._scorer = scorer

    @classmethod
    def build(
        cls,
        encoder: Encoder,
        documents: Iterable[Document],
        progress: Callable[[int], object] | None = None,
        scorer: Scorer = score_with_numpy,
    ) -> Searcher:
        """Encode documents and build their lists; `progress` hears how many more documents are done."""
        kept = list(documents)
        _check_ids(kept)

        def vectors() -> Iterator[TokenVectors]:
            for start in range(0, len(kept), CHUNK):
                chunk = kept[start : start + CHUNK]
                yield from encoder.encode_documents(document.text for document in chunk)
                if progress is not None:
                    progress(len(chunk))

        segment = Segment.build(vectors(), encoder.keys, encoder.config.n_t, encoder.config.n_c)
        return cls(encoder, segment, kept, scorer)

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The k best documents for a query; see `search_many` for what counts as a hit."""
        return self.search_many([query], k)[0]

    def search_many(self, queries: Iterable[str], k: int = 10) -> list[list[Hit]]:
        """The k best documents for each of many queries, which are encoded in one go.

        An empty or blank query has no hits, not even through the sentence vector: nothing was asked.
        Without a sentence vector (COIL-tok) a document that scores exactly 0 is no hit.
        """
        asked = list(queries)
        vectors = self.encoder.encode_queries(asked)
        return [
            self._hits(query_vectors, k) if text.strip() and len(query_vectors) else []
            for text, query_vectors in zip(asked, vectors, strict=True)
        ]

    def rank(self, query_vectors: TokenVectors, k: int) -> list[tuple[int, float]]:
        """The k best (ordinal, score) for a query that is already encoded."""
        scores = self._scorer(query_vectors, self.segment, self.encoder.config.profile, self.encoder.keys)
        best = top_k(scores, k, without_zero=query_vectors.sentence is None)
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    def ordinal_of(self, doc_id: str) -> int:
        """The inside number of a document."""
        if doc_id not in self._ordinals:
            raise InputError(
                f"no document has the id {doc_id!r} among the {len(self.documents)} documents here",
                "copy the id from a hit; ids are compared letter by letter",
            )
        return self._ordinals[doc_id]

    def vectors_of(self, ordinal: int) -> TokenVectors:
        """A document's vectors as the lists hold them: in text order, only tokens that have a list."""
        rows = np.flatnonzero(self.segment.ordinals == ordinal)
        rows = rows[np.argsort(self.segment.positions[rows], kind="stable")]
        return TokenVectors(
            token_ids=self.segment.token_ids[rows],
            positions=self.segment.positions[rows],
            spans=self.segment.spans[rows],
            vectors=self.segment.vectors[rows],
            sentence=self.segment.sentences[ordinal] if self.segment.sentences.shape[1] else None,
        )

    @cached_property
    def _ordinals(self) -> dict[str, int]:
        return {document.doc_id: ordinal for ordinal, document in enumerate(self.documents)}

    def _hits(self, query_vectors: TokenVectors, k: int) -> list[Hit]:
        hits = []
        for rank, (ordinal, score) in enumerate(self.rank(query_vectors, k), start=1):
            document = self.documents[ordinal]
            hits.append(Hit(rank, document.doc_id, score, document.text, document.fields))
        return hits


def _check_ids(documents: Sequence[Document]) -> None:
    first: dict[str, int] = {}
    for ordinal, document in enumerate(documents):
        earlier = first.setdefault(document.doc_id, ordinal)
        if earlier != ordinal:
            raise DuplicateId(document.doc_id, f"document {earlier + 1}", f"document {ordinal + 1}")
