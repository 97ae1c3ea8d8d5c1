"""The JSON of requests and responses: validated on input, and declared in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from coil.hits.paging import MOST_OFFSET
from coil.tokens.contexts import Where
from coil.tokens.profile import By

Span = tuple[int, int]
BY = (
    "scoring system: coil (the model's own equation), tokens (without the sentence vector), bm25, "
    "dense (the sentence vector alone), hybrid (bm25 and the sentence vector)"
)
MIN_SCORE = "omit hits with a lower score"
MIN_SHARE = "omit hits with a lower share of own_score, such as 0.25"
OFFSET = "number of hits to skip, for paging"
SORT = "sort the best 10,000 hits by a field: year, or -year for descending order; see `sorted_best`"
FOLD = "show only the first of several hits with the same text; its `duplicates` lists the others"
PLAIN = "treat operators in the query as plain text"
SUGGEST = "return `suggestions`: similar words for query words that no document contains"
EXACT = "each line is {doc_id, text, fields} and is stored unchanged; fields may have any name"
MOST_UNKNOWN = 5  # unknown keys listed in a message
Strings = Annotated[list[str], FailFast()]  # reporting a million errors would take seconds


class Request(BaseModel):
    """A body. An unknown key is rejected, because it is probably a mistake."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, body: Any) -> Any:
        """Drop all but the first unknown keys: reporting 100,000 of them would block the event loop."""
        if not isinstance(body, dict) or len(body) <= MOST_UNKNOWN:
            return body
        left_out = set([name for name in body if name not in cls.model_fields][MOST_UNKNOWN:])
        return {name: value for name, value in body.items() if name not in left_out}


class SearchOptions(Request):
    """Options of a search."""

    k: int = Field(10, ge=1)
    filter: str | None = None
    by: By = Field("coil", description=BY)
    min_score: float | None = Field(None, allow_inf_nan=False, description=MIN_SCORE)
    min_share: float | None = Field(None, allow_inf_nan=False, description=MIN_SHARE)
    stats: bool = True
    matches: bool = False
    offset: int = Field(0, ge=0, le=MOST_OFFSET, description=OFFSET)
    sort: str | None = Field(None, description=SORT)
    fold_duplicates: bool = Field(False, description=FOLD)
    plain: bool = Field(False, description=PLAIN)
    suggest: bool = Field(False, description=SUGGEST)


class OneQuery(Request):
    """A query."""

    query: str


class ManyQueries(Request):
    """Several queries."""

    queries: Strings = Field(min_length=1)


class SearchRequest(SearchOptions, OneQuery):  # the last base has the first keys
    """A query with search options."""


class BatchRequest(SearchOptions, ManyQueries):
    """Queries that are answered in order with the same options."""


class ExplainRequest(Request):
    """A query and the document to explain, optionally compared with another one."""

    query: str
    doc_id: str
    versus: str | None = None
    by: By = Field("coil", description=BY)
    plain: bool = Field(False, description=PLAIN)


class SuggestRequest(Request):
    """A query whose words may be misspelled."""

    query: str
    plain: bool = Field(False, description=PLAIN)


class DeleteRequest(Request):
    """The ids of documents to delete."""

    doc_ids: Strings = Field(min_length=1)


class DocumentIn(BaseModel):
    """One line of an upload. Other names for id and text work as in files; other keys become fields."""

    model_config = ConfigDict(extra="allow")
    id: str = Field(min_length=1)
    text: str


class ExactDocumentIn(BaseModel):
    """One line of an upload with `exact`: a document as returned by `GET`, stored unchanged."""

    model_config = ConfigDict(extra="forbid")
    doc_id: str = Field(min_length=1)
    text: str
    fields: dict[str, Any] = Field(default_factory=dict)


class ProblemOut(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    code: str = Field(description="stable identifier of the error, such as unknown_document")
    detail: str
    request_id: str
    remedy: str | None = None


class IndexName(BaseModel):
    """An index of this server."""

    name: str
    documents: int
    default: bool
    writable: bool


class IndexNames(BaseModel):
    """All indexes of this server."""

    indexes: list[IndexName]


class IndexOut(BaseModel):
    """The size and settings of an index."""

    model_config = ConfigDict(extra="allow")
    name: str
    documents: int
    writable: bool
    model: dict[str, Any]


class RunnerUpOut(BaseModel):
    """Another mention that a query token was compared with."""

    token: str
    span: Span
    similarity: float
    fit: float = Field(description="how well the context of this mention fits")
    where: Where = Field(description="where the mention is, as in a match")


class MatchOut(BaseModel):
    """The match of one query word; contribution = rarity · factor · fit."""

    query_token: str
    query_span: Span
    document_token: str
    document_span: Span
    similarity: float = Field(description="product with the vector of the best mention; may be negative")
    fit: float = Field(
        description="how well the context of the best mention fits, computed from its similarity"
    )
    rarity: float = Field(description="the weight of the word; 1 if words are not weighted")
    rows_with: int = Field(
        description="number of encoded texts that contain the word; 0 if words are not weighted"
    )
    count: int = Field(description="number of mentions of the word in this text")
    factor: float = Field(description="saturated count, adjusted for the length of the text")
    contribution: float
    floored: bool = Field(description="whether fit was below 0 and is counted as 0")
    where: Where = Field(
        description="text, or a part of the chunk's context: path, title, heading, or field of the front "
        "matter; document_span is then [0, 0] if the text does not contain it"
    )
    runner_ups: list[RunnerUpOut]


class TokenOut(BaseModel):
    """A query token without a match."""

    text: str
    span: Span


class HitOut(BaseModel):
    """A hit; the last four keys are present only with `matches`."""

    rank: int
    doc_id: str
    score: float
    share: float | None = Field(
        description="score / own_score: near 1, text and query say the same; near 0, they share little"
    )
    text: str
    fields: dict[str, Any]
    chunk: Span
    context: str = Field(
        description="path, title and headings above the chunk, unless the chunk contains them"
    )
    duplicates: list[str] | None = Field(
        None, description="ids of folded duplicates, only with `fold_duplicates`"
    )
    sentence: float | None = None
    matches: list[MatchOut] | None = None
    unmatched: list[TokenOut] | None = None
    without_list: list[TokenOut] | None = None


class StatsOut(BaseModel):
    """The cost of a query."""

    model_config = ConfigDict(extra="allow")
    filter_ms: float = Field(
        description="time to select the documents that the filter and the operators allow; "
        "for a sharded index, part of score_ms"
    )
    encode_ms: float
    score_ms: float
    fetch_ms: float
    total_ms: float
    query_dropped: int = Field(0, description="number of query tokens ignored because the query is too long")


class QueryTokenOut(BaseModel):
    """A query token, and whether it has an inverted list."""

    text: str
    span: Span
    status: str = Field(description="listed, without_list, or not_compared (by dense)")


class SuggestionOut(BaseModel):
    """A query word that no document contains, and a similar word that occurs in some."""

    word: str
    span: Span
    suggestion: str


class MissingOut(BaseModel):
    """A shard that did not respond."""

    shard: int
    of: int = Field(description="number of shards of the index")
    documents: int = Field(description="number of documents that it had when the index was built")


class SearchOut(BaseModel):
    """The answer to one query."""

    query: str
    by: By
    hits: list[HitOut]
    stats: StatsOut | None = None
    own_score: float | None = Field(
        description="score that the query's own text would have as a document; null if the query is blank"
    )
    query_tokens: list[QueryTokenOut] | None = Field(None, description="only with `matches`")
    suggestions: list[SuggestionOut] | None = Field(None, description="only with `suggest`")
    unknown_fields: list[str] | None = Field(
        None, description="if there are no hits: fields in the filter that no document has"
    )
    sorted_best: int | None = Field(
        None, description="with `sort`, if more documents match than are sorted: how many of the best were"
    )
    versions: list[int | None] | None = Field(
        None, description="sharded index: the version of each shard, null for one that did not respond"
    )
    partial: bool | None = Field(None, description="sharded index: whether a shard did not respond")
    missing: list[MissingOut] | None = Field(
        None, description="sharded index: the shards that did not respond"
    )


class SuggestOut(BaseModel):
    """Spelling suggestions."""

    query: str
    suggestions: list[SuggestionOut]


class SentencePartOut(BaseModel):
    """The contribution of a sentence of the document to the sentence part."""

    text: str
    span: Span | None = Field(description="null for the part that belongs to no sentence")
    contribution: float


class ExplainOut(BaseModel):
    """An explanation, or with `versus` two of them as `first` and `second`. Keys are as in Python."""

    model_config = ConfigDict(extra="allow")
    query: str | None = None
    doc_id: str | None = None
    by: By | None = None
    score: float | None = None
    own_score: float | None = None
    sentence: float | None = None
    sentence_parts: list[SentencePartOut] | None = Field(
        None, description="contributions that add up to `sentence`; empty if the model does not support this"
    )
    rows: int | None = Field(None, description="number of encoded texts in the collection")
    matches: list[MatchOut] | None = None
    unmatched: list[TokenOut] | None = None
    without_list: list[TokenOut] | None = None
    first: dict[str, Any] | None = None
    second: dict[str, Any] | None = None


class BatchOut(BaseModel):
    """The answers to many queries, in order."""

    answers: list[SearchOut]


class DocumentOut(BaseModel):
    """A document."""

    doc_id: str
    text: str
    fields: dict[str, Any]


class AddedOut(BaseModel):
    """The number of documents written, and the size of the index."""

    added: int = Field(
        description="number of documents added; of several with the same id, only the last counts"
    )
    empty: list[str] = Field(
        description="ids of documents without text, which are not indexed; earlier versions are removed. "
        "If their ids take more than 16 MiB, only the first are listed."
    )
    documents: int


class DeletedOut(BaseModel):
    """The number of documents deleted, and the size of the index."""

    deleted: int
    missing: list[str] = Field(description="ids that do not exist, each once")
    documents: int
