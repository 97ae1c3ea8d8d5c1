"""The JSON of requests and answers: checked on the way in, and declared in the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

Span = tuple[int, int]
MOST_UNKNOWN = 5  # keys that a message lists
Strings = Annotated[list[str], FailFast()]  # a million errors of one list would cost seconds


class Request(BaseModel):
    """A body; an unknown key is more likely a mistake than intended."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown(cls, body: Any) -> Any:
        """All but the first unknown keys: a hundred thousand errors would hold up the event loop."""
        if not isinstance(body, dict) or len(body) <= MOST_UNKNOWN:
            return body
        left_out = set([name for name in body if name not in cls.model_fields][MOST_UNKNOWN:])
        return {name: value for name, value in body.items() if name not in left_out}


class SearchRequest(Request):
    """A query and how to answer it."""

    query: str
    k: int = Field(10, ge=1)
    filter: str | None = None
    tok_only: bool = False
    stats: bool = True
    matches: bool = False


class BatchRequest(Request):
    """Queries that are answered in order with the same options."""

    queries: Strings = Field(min_length=1)
    k: int = Field(10, ge=1)
    filter: str | None = None
    tok_only: bool = False
    stats: bool = True
    matches: bool = False


class ExplainRequest(Request):
    """A query and the document to explain, optionally compared with another one."""

    query: str
    doc_id: str
    versus: str | None = None
    tok_only: bool = False


class DeleteRequest(Request):
    """The ids of documents to delete."""

    doc_ids: Strings = Field(min_length=1)


class DocumentIn(BaseModel):
    """One line of an upload. Other names for id and text work as in files; further keys become fields."""

    model_config = ConfigDict(extra="allow")
    id: str = Field(min_length=1)
    text: str


class ProblemOut(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    remedy: str | None = None


class IndexName(BaseModel):
    """An index that is served."""

    name: str
    documents: int
    default: bool
    writable: bool


class IndexNames(BaseModel):
    """All indexes that are served."""

    indexes: list[IndexName]


class IndexOut(BaseModel):
    """Sizes and settings of an index."""

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


class MatchOut(BaseModel):
    """The best match of one query token."""

    query_token: str
    query_span: Span
    document_token: str
    document_span: Span
    similarity: float
    contribution: float
    runner_ups: list[RunnerUpOut]


class TokenOut(BaseModel):
    """A query token without a match."""

    text: str
    span: Span


class HitOut(BaseModel):
    """A document found; the last four only with `matches`."""

    rank: int
    doc_id: str
    score: float
    share: float | None = Field(description="score / best_possible; null without `matches`")
    text: str
    fields: dict[str, Any]
    chunk: Span
    sentence: float | None = None
    matches: list[MatchOut] | None = None
    unmatched: list[TokenOut] | None = None
    without_list: list[TokenOut] | None = None


class StatsOut(BaseModel):
    """The cost of a query."""

    model_config = ConfigDict(extra="allow")
    encode_ms: float
    score_ms: float
    fetch_ms: float
    total_ms: float
    query_dropped: int = Field(0, description="query tokens dropped because the query is too long")


class QueryTokenOut(BaseModel):
    """A token of the query, and whether it has an inverted list."""

    text: str
    span: Span
    status: str = Field(description="listed or without_list")


class SearchOut(BaseModel):
    """The answer to one query."""

    query: str
    hits: list[HitOut]
    stats: StatsOut | None = None
    best_possible: float | None = Field(
        description="the score of the query's own text as a document; null without `matches`"
    )
    query_tokens: list[QueryTokenOut] | None = Field(None, description="only with `matches`")


class BatchOut(BaseModel):
    """The answers to many queries, in order."""

    answers: list[SearchOut]


class DocumentOut(BaseModel):
    """A document."""

    doc_id: str
    text: str
    fields: dict[str, Any]


class AddedOut(BaseModel):
    """The documents written, and how many the index has now."""

    added: int = Field(description="documents that are there now: of several with one id, the last counts")
    empty: list[str] = Field(
        description="ids of documents without text: they are not indexed, and earlier versions are removed"
    )
    documents: int


class DeletedOut(BaseModel):
    """The documents deleted, and how many the index has now."""

    deleted: int
    missing: list[str] = Field(description="ids that do not exist, each once")
    documents: int
