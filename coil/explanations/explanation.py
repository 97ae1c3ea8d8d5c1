"""Explanation: a score broken down into the match of each query token (the paper's Table 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coil.compiled import importing
from coil.errors import InputError
from coil.explanations.sentence_parts import SentencePart, split_sentence_part
from coil.explanations.snippet import Snippet, Span, cut_snippet, piece_text
from coil.hits.answering import asks_anything, check_parts
from coil.scores.prepared import KnowsCollection, PreparedQuery
from coil.scores.statistics import Tally
from coil.texts.questions import check_query
from coil.texts.values import Document
from coil.tokens.contexts import Place, RowText, Where
from coil.tokens.list_keys import unlisted_reason
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

if TYPE_CHECKING:
    from coil.explanations.contrast import Contrast


@dataclass(frozen=True)
class QueryToken:
    """A query token that contributed nothing; `span` is its character span, `reason` why it has no list."""

    text: str
    span: Span
    reason: str = ""


@dataclass(frozen=True)
class Mention:
    """An occurrence in the document that a query token was compared with; `similarity` is v_q · v_d.

    `fit` is computed from `similarity`; see `Match`. `where` says whether the mention is in the chunk's own
    text or in its context: the path, the title, a heading or a field of the front matter. `span` is its
    position in the document's text, or (0, 0) if the text does not contain that part of the context.
    """

    token: str
    span: Span
    context: Snippet
    similarity: float
    fit: float = 0.0
    where: Where = "text"


@dataclass(frozen=True)
class Match:
    """The match of one query word: the most similar mention in the document, and the others.

    `contribution` = `rarity` · `factor` · `fit` is added to the score. `similarity` is the raw product with
    the best mention, which may be negative; `fit` is α + β · `similarity`, floored at 0 if the profile says
    so (`floored` is true if it was below 0). `rarity` is the weight of the word, computed from `rows_with`,
    the number of texts in the collection that contain it (if words are not weighted, they are 1 and 0).
    `count` is how often this text contains the word, and `factor` is computed from `count` and the length of
    the text. `runner_ups` are the other mentions, most similar first. `where` is that of the best mention;
    see `Mention`.
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
    fit: float = 0.0
    rarity: float = 1.0
    rows_with: int = 0
    count: int = 1
    factor: float = 1.0
    where: Where = "text"


@dataclass(frozen=True)
class Explanation:
    """Why a document has its score: `matches` and `sentence` add up to `score`.

    `matches` are in query order, with one entry for each occurrence of a word. `sentence` is
    γ(q)·v_cls^q·v_cls^d, None for a system without it and for a query without words; `sentence_parts` are the
    contributions of the document's sentences, which add up to it (empty if the model does not support them).
    `unmatched` words have a list that does not contain the document; `without_list` words have no list and
    are never compared (stop words, for example).

    `chunk` is the span of the document that was scored, out of `characters`: the best chunk for this query,
    or the indexed part of a truncated text (`document_dropped` tokens of the document and `query_dropped` of
    the query were ignored). `context` is what the chunk was encoded with: path, title, headings and front
    matter, unless the chunk contains them.

    `own_score` is the score that the query's own text would have as a document, None if the query has no
    words. It is a yardstick for `score`, which says little by itself. A score may exceed it, but to come near
    it, a text has to say what the query says, in the same words. `by` is the scoring system, and `rows` the
    number of texts (documents, or chunks of long ones) in the collection.
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
    sentence_parts: tuple[SentencePart, ...] = ()
    by: By = "coil"
    rows: int = 0
    context: str = ""

    def share(self, part: float) -> float:
        """A part as a share of all positive contributions, from 0 to 1."""
        positive = sum(max(match.contribution, 0.0) for match in self.matches) + max(
            self.sentence or 0.0, 0.0
        )
        return max(part, 0.0) / positive if positive else 0.0

    @property
    def whole(self) -> bool:
        """Whether the whole text of the document was scored, not a chunk or its beginning."""
        return self.chunk == (0, self.characters)

    @property
    def share_of_own_score(self) -> float | None:
        """The score divided by that of the query's own text; None if that is not above 0."""
        return self.score / self.own_score if self.own_score is not None and self.own_score > 0.0 else None

    def versus(self, other: Explanation) -> Contrast:
        """Why this document ranks above or below another one, explained for the same query."""
        with importing():
            from coil.explanations.contrast import make_contrast

        if not isinstance(other, Explanation):
            raise InputError(
                f"got a value of type {type(other).__name__}; expected the explanation of another document",
                "pass the result of index.explain for the same query",
            )
        if (self.query, self.by) != (other.query, other.by):
            raise InputError(
                "the two explanations are for different queries or scoring systems",
                "explain both documents for the same query and with the same `by`",
            )
        return make_contrast(self, other)

    def to_json(self) -> dict[str, Any]:
        """Everything as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Explanation:
        """The inverse of `to_json`."""
        return cls(
            **{
                **{field.name: value[field.name] for field in fields(cls)},
                "matches": tuple(_match_from(match) for match in value["matches"]),
                "unmatched": tuple(_token_from(token) for token in value["unmatched"]),
                "without_list": tuple(_token_from(token) for token in value["without_list"]),
                "chunk": _pair(value["chunk"]),
                "sentence_parts": tuple(
                    SentencePart(part["text"], part["span"] and _pair(part["span"]), part["contribution"])
                    for part in value["sentence_parts"]
                ),
            }
        )

    def __str__(self) -> str:
        with importing():
            from coil.explanations.table import format_table

        return format_table(self)

    def _repr_html_(self) -> str:
        with importing():
            from coil.explanations.notebook import explanation_html

        return explanation_html(self)


def _match_from(value: Mapping[str, Any]) -> Match:
    runner_ups = tuple(
        Mention(**{**other, "span": _pair(other["span"]), "context": Snippet(**other["context"])})
        for other in value["runner_ups"]
    )
    spans = {name: _pair(value[name]) for name in ("query_span", "document_span")}
    return Match(**{**value, **spans, "context": Snippet(**value["context"]), "runner_ups": runner_ups})


def _token_from(value: Mapping[str, Any]) -> QueryToken:
    return QueryToken(value["text"], _pair(value["span"]), value["reason"])


def _pair(value: Sequence[int]) -> Span:
    start, end = value
    return start, end


def explain(
    encoder: Encoder,
    query: str,
    document: Document,
    by: By = "coil",
    statistics: KnowsCollection | None = None,
) -> Explanation:
    """Encode a query and a document, and break down their score.

    Weights are those of a collection with these statistics, or of a collection with only this document.
    """
    profile = check_parts(encoder.config, by)
    if not isinstance(document, Document):
        raise InputError(
            f"the document is a value of type {type(document).__name__}; expected a Document",
            'pass Document("id", "text")',
        )
    [encoded] = encoder.encode_queries([check_query(query)])
    [vectors] = encoder.encode_documents([document.text])
    if statistics is None:
        alone = Tally()
        alone.add(vectors.keys)
        statistics = alone
    prepared = PreparedQuery.of(encoded, profile, statistics)
    row = RowText(document, (0, len(document.text)))
    whole = Scored(row, vectors, sum(key is not None for key in vectors.keys))
    explained = explain_vectors(query, prepared, profile, whole, statistics, by)
    end = int(vectors.spans[-1, 1]) if vectors.dropped else len(document.text)
    return replace(
        explained,
        own_score=prepared.own_score if asks_anything(query, encoded) else None,
        chunk=widen_chunk(document.text, (0, end)),
        document_dropped=vectors.dropped,
        sentence_parts=split_sentence_part(encoder, prepared, row, (0, end), explained.sentence),
    )


def widen_chunk(text: str, chunk: Span) -> Span:
    """The whole text, if a chunk omits only white space."""
    return chunk if text[: chunk[0]].strip() or text[chunk[1] :].strip() else (0, len(text))


@dataclass(frozen=True, eq=False)
class Scored:
    """A row of a document, its vectors (at least those of the query words), and its length."""

    row: RowText
    vectors: TokenVectors
    length: int


def explain_vectors(
    query: str,
    prepared: PreparedQuery,
    profile: ScoringProfile,
    scored: Scored,
    statistics: KnowsCollection,
    by: By = "coil",
    sentence_vector: NDArray[np.float64] | None = None,
) -> Explanation:
    """Break down the score of an encoded query and an encoded document.

    `sentence_vector` is the query's sentence vector as used in the product, if it is not `prepared.sentence`.
    """
    encoded, document, vectors = prepared.encoded, scored.row.document, scored.vectors
    matches: list[Match] = []
    unmatched: list[QueryToken] = []
    without_list: list[QueryToken] = []
    used = {int(place): number for number, place in enumerate(prepared.places)}
    for i, key in enumerate(encoded.keys if profile.uses_lists else ()):
        token = QueryToken(piece_text(query, _span(encoded, i)), _span(encoded, i))
        places = np.array([j for j, other in enumerate(vectors.keys) if other == key], dtype=np.intp)
        if key is None:
            without_list.append(replace(token, reason=unlisted_reason(query[slice(*token.span)])))
        elif i not in used or not len(places):
            unmatched.append(token)
        else:
            matches.append(_match(token, key, i, places, prepared, profile, scored, statistics))
    sentence = None
    asks = asks_anything(query, encoded)  # otherwise, no document has a score, despite the sentence vectors
    if asks and prepared.sentence is not None and vectors.sentence is not None:
        of_query = prepared.sentence.astype(np.float64) if sentence_vector is None else sentence_vector
        sentence = float(of_query @ vectors.sentence.astype(np.float64))
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
        query_dropped=encoded.dropped,
        by=by,
        rows=statistics.n_rows,
        context=scored.row.context,
    )


def _match(
    token: QueryToken,
    key: str,
    place: int,
    places: NDArray[np.intp],
    prepared: PreparedQuery,
    profile: ScoringProfile,
    scored: Scored,
    statistics: KnowsCollection,
) -> Match:
    vector = prepared.encoded.vectors[place]
    best, *others = _mentions(vector, scored.row, scored.vectors, places, profile)
    floored = profile.floor and profile.alpha + profile.beta * best.similarity < 0.0
    rarity, rows_with = 1.0, 0
    if prepared.saturation is not None:
        rarity, rows_with = statistics.rarity(key), statistics.rows_with(key)
    counts = np.array([len(places)])
    factor = float(np.reshape(prepared.factors(counts, np.array([scored.length], dtype=np.uint32)), -1)[0])
    return Match(
        query_token=token.text,
        query_span=token.span,
        document_token=best.token,
        document_span=best.span,
        context=best.context,
        similarity=best.similarity,
        contribution=rarity * factor * best.fit,
        runner_ups=tuple(others),
        floored=floored,
        fit=best.fit,
        rarity=rarity,
        rows_with=rows_with,
        count=len(places),
        factor=factor,
        where=best.where,
    )


def _mentions(
    query_vector: NDArray[np.float32],
    row: RowText,
    document_vectors: TokenVectors,
    places: NDArray[np.intp],
    profile: ScoringProfile,
) -> list[Mention]:
    """The mentions at these positions, most similar first, ties in text order."""
    # In float64, so that the parts add up to the score.
    similarities = np.zeros(len(places))
    if profile.beta > 0.0 and len(query_vector):
        similarities = document_vectors.vectors[places].astype(np.float64) @ query_vector.astype(np.float64)
    mentions = []
    for number in np.argsort(-similarities, kind="stable"):
        place = row.place(_span(document_vectors, int(places[number])))
        similarity = float(similarities[number])
        fit = profile.alpha + profile.beta * similarity
        mentions.append(
            Mention(
                piece_text(place.around, place.at),
                place.span,
                _snippet(place),
                similarity,
                max(fit, 0.0) if profile.floor else fit,
                place.where,
            )
        )
    return mentions


def _snippet(place: Place) -> Snippet:
    """A mention with the text around it; in the context, the part is named first."""
    snippet = cut_snippet(place.around, place.at)
    return snippet if place.where == "text" else replace(snippet, before=f"{place.where}: {snippet.before}")


def _span(vectors: TokenVectors, place: int) -> Span:
    start, end = vectors.spans[place].tolist()
    return start, end
