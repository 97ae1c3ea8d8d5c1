"""Explainer: a query, encoded once, and the reasons for the scores of any number of documents."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coil.explanations.explanation import (
    Explanation,
    check_parts,
    explain_vectors,
    score_own_text,
    widen_chunk,
)
from coil.explanations.stored import stored_vectors
from coil.forks import cached
from coil.hits.searcher import Searcher
from coil.scores.prepared import prepare
from coil.texts.questions import check_id, check_query
from coil.vectors.token_vectors import TokenVectors


class Explainer:
    """Takes the scores of a searcher's documents apart, with the very vectors that it searches.

    `tok_only` leaves the sentence part out. `vectors` saves encoding the query where that has been done.
    """

    def __init__(
        self, searcher: Searcher, query: str, tok_only: bool = False, vectors: TokenVectors | None = None
    ) -> None:
        encoder = searcher.encoder
        check_parts(encoder, tok_only)
        check_query(query)
        if vectors is None:
            [vectors] = encoder.encode_queries([query])
        self.query = query
        self.vectors = replace(vectors, sentence=None) if tok_only else vectors
        self._searcher = searcher
        self._prepared = prepare(encoder, self.vectors)

    def explain(self, doc_id: str) -> Explanation:
        """Why a document scores what it scores."""
        encoder, collection = self._searcher.encoder, self._searcher.collection
        ordinal = collection.ordinal_of(check_id(doc_id))
        document = collection.document(ordinal)
        vectors, chunk = stored_vectors(self._searcher, ordinal, self._prepared)
        profile = encoder.config.profile
        [tokens] = encoder.tokenizer.cut([document.text[slice(*chunk)]], profile.document_length)
        stored = replace(vectors, dropped=tokens.dropped)
        if tokens.dropped:  # the row ends where its text was truncated
            chunk = (chunk[0], chunk[0] + int(tokens.spans[-1, 1]))
        explained = explain_vectors(
            self.query,
            self._as_searched,
            document,
            stored,
            profile,
            encoder.keys,
            encoder.tokenizer.unknown_id,
        )
        return replace(explained, own_score=self.own_score, chunk=widen_chunk(document.text, chunk))

    @cached
    def own_score(self) -> float | None:
        """What the query's own text would score as a document; see `Explanation`."""
        return score_own_text(self._searcher.encoder, self.query, self._as_searched)

    @cached
    def _as_searched(self) -> TokenVectors:
        """The query with the vectors that the stored ones are multiplied with: int8 lists see 15 bits."""
        if self._searcher.exact_in != "int8":
            return self.vectors
        prepared = self._prepared
        vectors = np.array(self.vectors.vectors)
        for place, vector in zip(prepared.places, prepared.token_vectors, strict=True):
            vectors[place] = vector.coded
        sentence = None if prepared.sentence_vector is None else prepared.sentence_vector.coded
        return replace(self.vectors, vectors=vectors, sentence=sentence)


def explain_hit(
    searcher: Searcher,
    query: str,
    doc_id: str,
    query_vectors: TokenVectors | None = None,
    tok_only: bool = False,
) -> Explanation:
    """The same for a single document."""
    return Explainer(searcher, query, tok_only, query_vectors).explain(doc_id)
