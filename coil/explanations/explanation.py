"""Explanation: a score taken apart into what each query token found (the paper's Table 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.explanations.snippet import Snippet, Span, cut_snippet, piece_text
from coil.hits.searcher import Searcher
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True)
class QueryToken:
    """A token of the query that added nothing: its text, and its characters in the query."""

    text: str
    span: Span


@dataclass(frozen=True)
class Mention:
    """A place in the document that a query token was compared with; `similarity` is v_q · v_d."""

    token: str
    span: Span
    context: Snippet
    similarity: float


@dataclass(frozen=True)
class Match:
    """What one query token found: the document's mention that is most similar to it, and the others.

    `similarity` is the plain product, which may be negative; `contribution` is what it adds to the score,
    floored at 0 where the profile says so. `runner_ups` are the other mentions, the most similar first.
    """

    query_token: str
    query_span: Span
    document_token: str
    document_span: Span
    context: Snippet
    similarity: float
    contribution: float
    runner_ups: tuple[Mention, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why a document scores what it scores: `matches` and `sentence` sum to `score`.

    `matches` stand in query order, each occurrence of a token on its own. `sentence` is v_cls^q · v_cls^d,
    None for a model without it. `unmatched` tokens have a list that the document is not in;
    `without_list` tokens have no list at all and are never compared (stop words, say).
    """

    query: str
    doc_id: str
    score: float
    sentence: float | None
    matches: tuple[Match, ...]
    unmatched: tuple[QueryToken, ...]
    without_list: tuple[QueryToken, ...]

    def share(self, part: float) -> float:
        """How much of all that speaks for the document a part is, from 0 to 1."""
        positive = sum(max(match.contribution, 0.0) for match in self.matches) + max(
            self.sentence or 0.0, 0.0
        )
        return max(part, 0.0) / positive if positive else 0.0

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        from coil.explanations.table import format_table

        return format_table(self)


def explain(encoder: Encoder, query: str, document: Document) -> Explanation:
    """Encode a query and a document, and take their score apart."""
    [query_vectors] = encoder.encode_queries([query])
    [document_vectors] = encoder.encode_documents([document.text])
    return explain_vectors(
        query, query_vectors, document, document_vectors, encoder.config.profile, encoder.keys
    )


def explain_hit(
    searcher: Searcher, query: str, doc_id: str, query_vectors: TokenVectors | None = None
) -> Explanation:
    """Take the score of a document of a searcher apart, with the very vectors that it searches.

    `query_vectors` saves encoding the query again where they are at hand.
    """
    ordinal = searcher.collection.ordinal_of(doc_id)
    if query_vectors is None:
        [query_vectors] = searcher.encoder.encode_queries([query])
    document_vectors, _ = searcher.vectors_of(ordinal, query_vectors)
    return explain_vectors(
        query,
        query_vectors,
        searcher.collection.document(ordinal),
        document_vectors,
        searcher.encoder.config.profile,
        searcher.encoder.keys,
    )


def explain_vectors(
    query: str,
    query_vectors: TokenVectors,
    document: Document,
    document_vectors: TokenVectors,
    profile: ScoringProfile,
    keys: ListKeys,
) -> Explanation:
    """The same for a query and a document that are already encoded."""
    matches: list[Match] = []
    unmatched: list[QueryToken] = []
    without_list: list[QueryToken] = []
    # A dense model has no token vectors: its tokens neither match nor fail to.
    n = len(query_vectors) if query_vectors.vectors.shape[1] else 0
    query_lists = keys.of(query_vectors.token_ids)
    document_lists = keys.of(document_vectors.token_ids)
    for i in range(n):
        token = QueryToken(piece_text(query, _span(query_vectors, i)), _span(query_vectors, i))
        places = np.flatnonzero(document_lists == query_lists[i])
        if query_lists[i] == NO_LIST:
            without_list.append(token)
        elif not len(places):
            unmatched.append(token)
        else:
            mentions = _mentions(query_vectors.vectors[i], document, document_vectors, places)
            matches.append(_match(token, mentions, profile))
    sentence = _sentence_part(query_vectors, document_vectors)
    return Explanation(
        query=query,
        doc_id=document.doc_id,
        score=sum(match.contribution for match in matches) + (sentence or 0.0),
        sentence=sentence,
        matches=tuple(matches),
        unmatched=tuple(unmatched),
        without_list=tuple(without_list),
    )


def _match(token: QueryToken, mentions: list[Mention], profile: ScoringProfile) -> Match:
    best, *others = mentions
    return Match(
        query_token=token.text,
        query_span=token.span,
        document_token=best.token,
        document_span=best.span,
        context=best.context,
        similarity=best.similarity,
        contribution=max(best.similarity, 0.0) if profile.floor else best.similarity,
        runner_ups=tuple(others),
    )


def _mentions(
    query_vector: NDArray[np.float32],
    document: Document,
    document_vectors: TokenVectors,
    places: NDArray[np.intp],
) -> list[Mention]:
    """The mentions at these places, the most similar first, equals in text order."""
    # In float64, so that the parts add up to what they are said to add up to.
    similarities = document_vectors.vectors[places].astype(np.float64) @ query_vector.astype(np.float64)
    mentions = []
    for row in np.argsort(-similarities, kind="stable"):
        span = _span(document_vectors, int(places[row]))
        mentions.append(
            Mention(
                piece_text(document.text, span),
                span,
                cut_snippet(document.text, span),
                float(similarities[row]),
            )
        )
    return mentions


def _sentence_part(query: TokenVectors, document: TokenVectors) -> float | None:
    if query.sentence is None or document.sentence is None:
        return None
    return float(query.sentence.astype(np.float64) @ document.sentence.astype(np.float64))


def _span(vectors: TokenVectors, place: int) -> Span:
    start, end = vectors.spans[place].tolist()
    return start, end
