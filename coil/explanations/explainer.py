"""Explainer: encodes a query once and explains the scores of any number of documents."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.explanations.explanation import Explanation, explain_vectors, widen_chunk
from coil.explanations.sentence_parts import SentencePart, split_sentence_part
from coil.explanations.stored import stored_row
from coil.forks import cached
from coil.hits.answering import asks_anything, check_parts
from coil.hits.searcher import Searcher
from coil.scores.prepared import PreparedQuery
from coil.texts.questions import check_id, check_query
from coil.tokens.profile import By
from coil.tokens.tokenizer import GoOn
from coil.vectors.token_vectors import TokenVectors


class Explainer:
    """Breaks down the scores of a searcher's documents, with the same vectors as the search.

    `by` is the scoring system. `vectors` are those of the query, if it is already encoded.
    """

    def __init__(
        self, searcher: Searcher, query: str, by: By = "coil", vectors: TokenVectors | None = None
    ) -> None:
        self._profile = check_parts(searcher.encoder.config, by)
        check_query(query)
        if vectors is None:
            [vectors] = searcher.encode([query], by)
        self.query, self.by, self.vectors = query, by, vectors
        self._searcher = searcher
        [self._prepared] = searcher.prepare([vectors], by)

    def explain(self, doc_id: str, sentence_parts: bool = True, go_on: GoOn | None = None) -> Explanation:
        """Why a document has its score; for the sentence parts, its text is encoded again.

        `go_on` is called between the steps, and repeatedly within those that take longer for longer texts.
        """
        step = go_on or _no_check
        searcher = self._searcher
        encoder, collection = searcher.encoder, searcher.collection
        ordinal = collection.ordinal_of(check_id(doc_id))
        document = collection.document(ordinal)
        step()
        row = stored_row(searcher, ordinal, self._prepared, document, go_on)
        chunk = row.span
        if row.dropped:  # the row ends where its text was truncated
            chunk = (chunk[0], row.end)
        step()
        explained = explain_vectors(
            self.query,
            self._as_searched,
            self._profile,
            row.scored,
            collection.statistics,
            self.by,
            self._sentence_as_searched,
        )
        parts: tuple[SentencePart, ...] = ()
        if sentence_parts:
            step()
            parts = split_sentence_part(
                encoder, self._prepared, row.scored.row, chunk, explained.sentence, go_on
            )
            step()
        return replace(
            explained,
            own_score=self.own_score,
            chunk=widen_chunk(document.text, chunk),
            document_dropped=row.dropped,
            sentence_parts=parts,
        )

    def explain_many(
        self, doc_ids: Sequence[str], sentence_parts: bool = True, go_on: GoOn | None = None
    ) -> Iterator[Explanation]:
        """Explain the scores of many documents, in this order."""
        for doc_id in doc_ids:
            (go_on or _no_check)()
            yield self.explain(doc_id, sentence_parts, go_on)

    @property
    def own_score(self) -> float | None:
        """The score of the query's own text as a document; see `Explanation`."""
        return self._prepared.own_score if asks_anything(self.query, self.vectors) else None

    @cached
    def _as_searched(self) -> PreparedQuery:
        """The query with the vectors used in the products: for int8 lists, they are rounded to 15 bits."""
        prepared, profile = self._prepared, self._profile
        if self._searcher.exact_in != "int8" or not prepared.n_t:
            return prepared
        vectors: NDArray[Any] = np.array(self.vectors.vectors, dtype=np.float64)
        for place, key, vector in zip(prepared.places, prepared.keys, prepared.token_vectors, strict=True):
            weight = profile.beta
            if prepared.saturation is not None:  # codes are those of r·β·v; the similarity shown is that of v
                weight *= self._searcher.collection.statistics.rarity(key)
            if weight:
                vectors[place] = vector.coded.astype(np.float64) / weight
        return replace(prepared, encoded=replace(self.vectors, vectors=vectors))

    @cached
    def _sentence_as_searched(self) -> NDArray[np.float64] | None:
        pair = self._prepared.sentence_vectors
        if self._searcher.exact_in != "int8" or pair is None:
            return None
        return np.concatenate([part.coded.astype(np.float64) for part in pair])


def _no_check() -> None:
    """Do nothing: the work is never stopped."""


def explain_hit(
    searcher: Searcher,
    query: str,
    doc_id: str,
    query_vectors: TokenVectors | None = None,
    by: By = "coil",
) -> Explanation:
    """Explain the score of a single document."""
    return Explainer(searcher, query, by, query_vectors).explain(doc_id)
