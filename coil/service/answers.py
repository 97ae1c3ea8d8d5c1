"""Answers: the results of the library as JSON objects."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from coil.errors import SearchTimeout
from coil.explanations.explanation import Explanation
from coil.explanations.snippet import Span, piece_text
from coil.hits.answering import Answer, SearchStats
from coil.hits.hit import Hit
from coil.hits.paging import SORTED
from coil.indexes.questions import check_paging
from coil.service.readable import Readable
from coil.tokens.profile import By
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True)
class Asked:
    """How to answer queries. Queries with the same options can be answered together."""

    k: int = 10
    filter: str | None = None
    by: By = "coil"
    min_score: float | None = None
    min_share: float | None = None
    stats: bool = True
    matches: bool = False
    offset: int = 0
    sort: str | None = None
    fold_duplicates: bool = False
    plain: bool = False
    suggest: bool = False

    @property
    def is_slow(self) -> bool:
        """Whether more than the hits is read."""
        return self.filter is not None or self.matches or self.suggest or self.fold_duplicates

    @property
    def hits(self) -> int:
        """Roughly how many hits have to be found."""
        return self.k + self.offset if self.sort is None else max(self.k + self.offset, SORTED)


@dataclass(frozen=True)
class Explained:
    """How to explain documents."""

    by: By = "coil"
    plain: bool = False


@dataclass(frozen=True)
class Answered:
    """An answer as JSON, and what it cost; no JSON if its hits have more text than may be read."""

    value: dict[str, Any] | None
    stats: SearchStats


def answer_queries(
    index: Readable,
    queries: Sequence[str],
    asked: Asked,
    seconds: float,
    most_text: int | None = None,
    most_each: int | None = None,
) -> list[Answered]:
    """Answer queries from one state of the index; `index` is pinned.

    `most_text` and `most_each` limit the texts of all and of each; see `Index.answer_many`.
    """
    deadline = time.monotonic() + seconds
    # Texts are read here, not when they are written: within the deadline, and no more than may be sent.
    found = index.answer_many(
        queries,
        asked.k,
        asked.filter,
        asked.by,
        asked.min_score,
        asked.min_share,
        seconds,
        texts=True,
        most_text=most_text,
        paging=check_paging(asked.offset, asked.sort, asked.fold_duplicates),
        plain=asked.plain,
        most_each=most_each,
    )
    to_json = _explained_json if asked.matches else _search_json
    return [
        Answered(None if a.is_large else to_json(index, q, a, asked, deadline), a.stats)
        for q, a in zip(queries, found, strict=True)
    ]


def explain_one(
    index: Readable, query: str, doc_id: str, versus: str | None, how: Explained, seconds: float
) -> dict[str, Any]:
    """Why a document has its score, next to another one if that is named."""
    deadline = time.monotonic() + seconds
    go_on = partial(_check_time, deadline)
    go_on()
    text = index.read_query(query, how.plain, deadline).text
    explainer = index.explainer(text, how.by, deadline=deadline)
    wanted = [doc_id] if versus is None else [doc_id, versus]
    found = [
        {**explanation.to_json(), "query": query, **index.tell_state()}
        for explanation in explainer.explain_many(wanted, go_on=go_on)
    ]
    return found[0] if versus is None else {"first": found[0], "second": found[1]}


def describe(index: Readable, name: str, writable: bool, seconds: float) -> dict[str, Any]:
    """Sizes and settings, without anything that reveals where the index is."""
    facts = asdict(index.inspect(timeout=seconds))
    del facts["folder"]
    model = dict(facts["model"])
    # A model may be given by its folder, whose last part is all that a client has to know.
    named = str(model.pop("model") or "bundled").replace("\\", "/").rstrip("/")
    facts["model"] = {"name": named.rsplit("/", maxsplit=1)[-1], **model}
    return {"name": name, "writable": writable, **facts}


def suggest_one(index: Readable, query: str, plain: bool, seconds: float) -> list[dict[str, Any]]:
    """Similar words for words that no document contains."""
    deadline = time.monotonic() + seconds
    text = index.read_query(query, plain, deadline).text  # which names are fields may take long to find out
    return [asdict(found) for found in index.suggest(text, True, partial(_check_time, deadline))]


def _search_json(
    index: Readable, query: str, answer: Answer, asked: Asked, deadline: float
) -> dict[str, Any]:
    value: dict[str, Any] = {"query": query, "by": asked.by, "hits": [_hit_json(hit) for hit in answer.hits]}
    if asked.fold_duplicates:
        for hit, shown in zip(answer.hits, value["hits"], strict=True):
            shown["duplicates"] = list(hit.duplicates)
    if asked.stats:
        stats = asdict(answer.stats)
        stats["total_ms"] = sum(stats[f"{part}_ms"] for part in ("filter", "encode", "score", "fetch"))
        value["stats"] = stats
    value["own_score"] = answer.own_score
    if answer.unknown_fields:
        value["unknown_fields"] = list(answer.unknown_fields)
    if answer.sorted_best is not None:
        value["sorted_best"] = answer.sorted_best
    value.update(index.tell_state())
    if asked.suggest:
        value["suggestions"] = suggest_one(index, query, asked.plain, deadline - time.monotonic())
    return value


def _hit_json(hit: Hit) -> dict[str, Any]:
    return {
        "rank": hit.rank,
        "doc_id": hit.doc_id,
        "score": hit.score,
        "share": hit.share,
        "text": hit.text,
        "fields": hit.fields,
        "chunk": list(hit.chunk),
        "context": hit.context,
    }


def _explained_json(
    index: Readable, query: str, answer: Answer, asked: Asked, deadline: float
) -> dict[str, Any]:
    """The answer with the parts of every hit's score.

    The sentence part is not broken down further: for that, the text of every hit would have to be encoded.
    """
    go_on = partial(_check_time, deadline)
    go_on()
    text = index.read_query(query, asked.plain, deadline).text
    explainer = index.explainer(text, asked.by, answer.query_vectors, deadline)
    value = _search_json(index, query, answer, asked, deadline)
    explained = explainer.explain_many([hit.doc_id for hit in answer.hits], False, go_on)
    for explanation, shown in zip(explained, value["hits"], strict=True):
        shown.update(_parts_json(explanation))
    compared = index.encoder.config.profile.answering(asked.by).uses_lists
    value["query_tokens"] = _query_tokens(query, explainer.vectors, compared)
    return value


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise SearchTimeout("the explanation exceeded its time limit", "request less at a time")


def _parts_json(explanation: Explanation) -> dict[str, Any]:
    return {
        "sentence": explanation.sentence,
        "matches": [
            {
                "query_token": match.query_token,
                "query_span": match.query_span,
                "document_token": match.document_token,
                "document_span": match.document_span,
                "similarity": match.similarity,
                "fit": match.fit,
                "rarity": match.rarity,
                "rows_with": match.rows_with,
                "count": match.count,
                "factor": match.factor,
                "contribution": match.contribution,
                "floored": match.floored,
                "where": match.where,
                "runner_ups": [
                    {
                        "token": other.token,
                        "span": other.span,
                        "similarity": other.similarity,
                        "fit": other.fit,
                        "where": other.where,
                    }
                    for other in match.runner_ups
                ],
            }
            for match in explanation.matches
        ],
        "unmatched": [asdict(token) for token in explanation.unmatched],
        "without_list": [asdict(token) for token in explanation.without_list],
    }


def _query_tokens(query: str, vectors: TokenVectors, compared: bool) -> list[dict[str, Any]]:
    tokens = []
    for (start, end), key in zip(vectors.spans.tolist(), vectors.keys, strict=True):
        span: Span = (start, end)
        status = "not_compared" if not compared else "without_list" if key is None else "listed"
        tokens.append({"text": piece_text(query, span), "span": list(span), "status": status})
    return tokens
