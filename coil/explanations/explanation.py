"""Explanation: a score taken apart into what each query token found (the paper's Table 5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.explanations.snippet import Snippet, Span, cut_snippet, piece_text
from coil.texts.questions import check_query
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST, ListKeys, unlisted_reason
from coil.tokens.profile import ScoringProfile
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

if TYPE_CHECKING:
    from coil.explanations.contrast import Contrast


@dataclass(frozen=True)
class QueryToken:
    """A token of the query that added nothing; `span` are its characters, `reason` why it has no list."""

    text: str
    span: Span
    reason: str = ""


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
    floored at 0 where the profile says so; `floored` tells that it was. `runner_ups` are the other mentions,
    the most similar first.
    """

    query_token: str
    query_span: Span
    document_token: str
    document_span: Span
    context: Snippet
    similarity: float
    contribution: float
    runner_ups: tuple[Mention, ...] = ()
    floored: bool = False


@dataclass(frozen=True)
class Explanation:
    """Why a document scores what it scores: `matches` and `sentence` sum to `score`.

    `matches` stand in query order, each occurrence of a token on its own. `sentence` is v_cls^q · v_cls^d,
    None for a model without it. `unmatched` tokens have a list that the document is not in;
    `without_list` tokens have no list at all and are never compared (stop words, say).

    `chunk` are the characters of the document that were scored, out of `characters`: the chunk that is best
    for this query, or what the model could take of a text that is cut off (`document_dropped` tokens were
    not read, nor `query_dropped` of the query).

    `own_score` is what the query's own text would score as a document: something to hold `score` against,
    since a score by itself says little. It is no limit, but a text has to say what the query says, in its
    words, to come near. None where the query is blank or was not encoded here.
    """

    query: str
    doc_id: str
    score: float
    sentence: float | None
    matches: tuple[Match, ...]
    unmatched: tuple[QueryToken, ...]
    without_list: tuple[QueryToken, ...]
    chunk: Span = (0, 0)
    characters: int = 0
    document_dropped: int = 0
    query_dropped: int = 0
    own_score: float | None = None

    def share(self, part: float) -> float:
        """How much of all that speaks for the document a part is, from 0 to 1."""
        positive = sum(max(match.contribution, 0.0) for match in self.matches) + max(
            self.sentence or 0.0, 0.0
        )
        return max(part, 0.0) / positive if positive else 0.0

    @property
    def whole(self) -> bool:
        """Whether all of the document's text was scored, not a chunk or the beginning of it."""
        return self.chunk == (0, self.characters)

    @property
    def share_of_own_score(self) -> float | None:
        """The score against that of the query's own text; None where that is not above 0."""
        return self.score / self.own_score if self.own_score is not None and self.own_score > 0.0 else None

    def versus(self, other: Explanation) -> Contrast:
        """Why this document is above or below another, which is explained for the same query."""
        from coil.explanations.contrast import make_contrast

        if (self.query, self.sentence is None) != (other.query, other.sentence is None):
            raise InputError(
                "the two explanations answer different questions", "explain both documents for one query"
            )
        return make_contrast(self, other)

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return asdict(self)

    def __str__(self) -> str:
        from coil.explanations.table import format_table

        return format_table(self)


def explain(encoder: Encoder, query: str, document: Document, tok_only: bool = False) -> Explanation:
    """Encode a query and a document, and take their score apart; `tok_only` leaves the sentence part out."""
    check_parts(encoder, tok_only)
    if not isinstance(document, Document):
        raise InputError(
            f"the document is a value of type {type(document).__name__}; expected a Document",
            'write Document("id", "text")',
        )
    [encoded] = encoder.encode_queries([check_query(query)])
    [vectors] = encoder.encode_documents([document.text])
    asked = replace(encoded, sentence=None) if tok_only else encoded
    profile, keys, unknown = encoder.config.profile, encoder.keys, encoder.tokenizer.unknown_id
    explained = explain_vectors(query, asked, document, vectors, profile, keys, unknown)
    end = int(vectors.spans[-1, 1]) if vectors.dropped else len(document.text)
    own_score = score_own_text(encoder, query, asked)
    return replace(explained, own_score=own_score, chunk=widen_chunk(document.text, (0, end)))


def check_parts(encoder: Encoder, tok_only: bool) -> None:
    """A model without token vectors cannot be explained by them alone."""
    if tok_only and not encoder.config.n_t:
        raise InputError("a dense model has no token part to explain", "explain without --tok-only")


def score_own_text(encoder: Encoder, query: str, query_vectors: TokenVectors) -> float | None:
    """What a query's own text would score as a document, None for a blank query."""
    if not query.strip() or not len(query_vectors):
        return None
    [own] = encoder.encode_documents([query])
    profile, keys = encoder.config.profile, encoder.keys
    return explain_vectors(query, query_vectors, Document("", query), own, profile, keys).score


def widen_chunk(text: str, chunk: Span) -> Span:
    """All of a text where a chunk leaves out nothing but white space."""
    return chunk if text[: chunk[0]].strip() or text[chunk[1] :].strip() else (0, len(text))


def explain_vectors(
    query: str,
    query_vectors: TokenVectors,
    document: Document,
    document_vectors: TokenVectors,
    profile: ScoringProfile,
    keys: ListKeys,
    unknown_id: int | None = None,
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
            unknown = unknown_id is not None and int(query_vectors.token_ids[i]) == unknown_id
            written = query[slice(*token.span)]
            without_list.append(replace(token, reason=unlisted_reason(written, unknown)))
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
        chunk=(0, len(document.text)),
        characters=len(document.text),
        document_dropped=document_vectors.dropped,
        query_dropped=query_vectors.dropped,
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
        floored=profile.floor and best.similarity < 0.0,
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
