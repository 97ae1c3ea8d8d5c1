"""The application: the endpoints and their handlers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import HTMLResponse, Response

from coil import __version__
from coil.errors import CoilError
from coil.hits.paging import MOST_OFFSET
from coil.service.answers import Asked, Explained
from coil.service.api_page import render_api_page
from coil.service.connections import GONE
from coil.service.gate import Gate
from coil.service.names import EXPOSED
from coil.service.openapi import describe_api
from coil.service.page_files import PageFile, read_page
from coil.service.problems import (
    Problem,
    check_encoding,
    check_keys,
    check_values,
    not_json,
    repeated_parameters,
    unknown_parameters,
)
from coil.service.refusals import tell_bad_request, tell_coil_error, tell_http_error
from coil.service.replies import PIECE, Reply, ReplyResponse
from coil.service.schemas import (
    BY,
    EXACT,
    FOLD,
    MIN_SCORE,
    MIN_SHARE,
    OFFSET,
    PLAIN,
    SORT,
    SUGGEST,
    AddedOut,
    BatchOut,
    BatchRequest,
    DeletedOut,
    DeleteRequest,
    DocumentOut,
    ExplainOut,
    ExplainRequest,
    IndexNames,
    IndexOut,
    SearchOptions,
    SearchOut,
    SearchRequest,
    SuggestOut,
    SuggestRequest,
)
from coil.service.service import Service
from coil.tokens.profile import By

NDJSON = "application/x-ndjson"
DESCRIPTION = "Search, explain and change indexes. Errors are `application/problem+json` with a request id."

HitCount = Annotated[int, Query(ge=1, description="number of hits")]
FilterText = Annotated[str | None, Query(description='such as: year >= 2020 and lang = "en"')]
SystemName = Annotated[By, Query(description=BY)]
LeastScore = Annotated[float | None, Query(allow_inf_nan=False, description=MIN_SCORE)]
LeastShare = Annotated[float | None, Query(allow_inf_nan=False, description=MIN_SHARE)]
Offset = Annotated[int, Query(ge=0, le=MOST_OFFSET, description=OFFSET)]
SortField = Annotated[str | None, Query(description=SORT)]
Folded = Annotated[bool, Query(description=FOLD)]
Plain = Annotated[bool, Query(description=PLAIN)]
Suggest = Annotated[bool, Query(description=SUGGEST)]
Exact = Annotated[bool, Query(description=EXACT)]


def make_app(service: Service) -> FastAPI:
    """The application of a service; it stops the service at shutdown."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        service.stop()

    app = FastAPI(
        title="COIL",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.service, app.state.page = service, read_page()
    app.openapi = lambda: describe_api(app)  # type: ignore[method-assign]
    app.add_exception_handler(CoilError, tell_coil_error)
    app.add_exception_handler(RequestValidationError, tell_bad_request)
    app.add_exception_handler(HTTPException, tell_http_error)
    _add_routes(app)
    if service.options.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(service.options.origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-Request-Id"],
            expose_headers=list(EXPOSED),
        )
    app.add_middleware(Gate, options=service.options, meters=service.meters)
    return app


# Dependencies are async although none of them waits: FastAPI would run plain functions in a thread.


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _authorise(request: Request) -> None:
    service: Service = request.app.state.service
    service.authorise(request.headers.get("authorization"))


class _Question(APIRoute):
    """Rejects a body with very many values before it is parsed, because parsing would block the event
    loop."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Called by FastAPI to create the handler."""
        handle = super().get_route_handler()

        async def check_and_handle(request: Request) -> Response:
            body = await request.body()
            check_encoding(body)
            check_values(body)
            check_keys(body)
            return await handle(request)

        return check_and_handle


class _DocumentId(PathConvertor):
    """The rest of a path, with any characters; Starlette's own convertor excludes line breaks."""

    regex = "(?s:.*)"


register_url_convertor("id", _DocumentId())


class _Change(APIRoute):
    """Checks the token before the body is read; a dependency would check it afterwards."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Called by FastAPI to create the handler."""
        handle = super().get_route_handler()

        async def check_and_handle(request: Request) -> Response:
            await _authorise(request)
            if request.method == "DELETE":
                body = await request.body()
                check_encoding(body)
                check_keys(body)
            return await handle(request)

        return check_and_handle


async def _check_parameters(request: Request) -> None:
    """Reject unknown and repeated parameters, which are most likely mistakes."""
    route: APIRoute = request.scope["route"]
    known = [parameter.alias for parameter in route.dependant.query_params]
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        raise unknown_parameters(unknown, known)
    repeated = [name for name in known if len(request.query_params.getlist(name)) > 1]
    if repeated:
        raise repeated_parameters(repeated)


async def _check_content_type(request: Request) -> None:
    """Check the Content-Type first: FastAPI would only report that the body is not an object."""
    given = request.headers.get("content-type")
    main, _, kind = (given or "").partition(";")[0].strip().lower().partition("/")
    if main != "application" or not (kind == "json" or kind.endswith("+json")):
        raise not_json(given)


Served = Annotated[Service, Depends(_service)]
KnownParameters = Depends(_check_parameters)
JsonBody = Depends(_check_content_type)


def _note(request: Request, service: Service, index: str, *queries: str) -> None:
    """Add details of a request to its log line."""
    if index in service.served:
        request.state.note["index"] = index
    if service.options.log_queries and queries:
        most = service.options.limits  # not yet checked: even a request that is refused must not fill the log
        request.state.note["queries"] = [
            query if len(query) <= most.query_characters else f"{query[: most.query_characters]}…"
            for query in queries[: most.batch_queries]
        ]


def _gone(request: Request) -> Callable[[], bool]:
    """A function that tells whether the client has disconnected; cheaper than Starlette's
    `is_disconnected`, which creates and cancels a task."""
    asked: Callable[[], bool] = request.scope["state"].get(GONE, bool)
    return asked


def _reply(content: bytes | Reply) -> Response:
    if isinstance(content, Reply):
        if len(content.pieces) > 1 or content.length > PIECE:
            return ReplyResponse(content)
        content = content.pieces[0]
    return Response(content, media_type="application/json")


def _shape(model: type) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model}}


# ---- searching


async def list_indexes(service: Served) -> Response:
    """List the indexes of this server; the first is the default."""
    return _reply(await service.list_indexes())


async def describe_index(name: str, request: Request, service: Served) -> Response:
    """Describe an index: size, settings and model."""
    _note(request, service, name)
    return _reply(await service.describe(name))


async def search(
    name: str,
    request: Request,
    service: Served,
    q: str,
    k: HitCount = 10,
    filter: FilterText = None,
    by: SystemName = "coil",
    min_score: LeastScore = None,
    min_share: LeastShare = None,
    stats: bool = True,
    matches: bool = False,
    offset: Offset = 0,
    sort: SortField = None,
    fold_duplicates: Folded = False,
    plain: Plain = False,
    suggest: Suggest = False,
) -> Response:
    """Find the best documents for a query. With `matches`, each hit has the parts of its score."""
    _note(request, service, name, q)
    how = Asked(
        k, filter, by, min_score, min_share, stats, matches, offset, sort, fold_duplicates, plain, suggest
    )
    return _reply(await service.search(name, q, how, _gone(request)))


async def post_search(name: str, request: Request, service: Served, asked: SearchRequest) -> Response:
    """Find the best documents for a query; the parameters are in a JSON body."""
    _note(request, service, name, asked.query)
    return _reply(await service.search(name, asked.query, _how(asked), _gone(request)))


async def search_batch(name: str, request: Request, service: Served, asked: BatchRequest) -> Response:
    """Find the best documents for each of many queries; the answers are in the same order."""
    _note(request, service, name, *asked.queries)
    return _reply(await service.search_batch(name, asked.queries, _how(asked), _gone(request)))


def _how(asked: SearchOptions) -> Asked:
    return Asked(**{field.name: getattr(asked, field.name) for field in fields(Asked)})


async def explain(
    name: str,
    request: Request,
    service: Served,
    q: str,
    doc_id: str,
    versus: str | None = None,
    by: SystemName = "coil",
    plain: Plain = False,
) -> Response:
    """Explain the score of a document; with `versus`, also that of another document."""
    _note(request, service, name, q)
    return _reply(await service.explain(name, q, doc_id, versus, Explained(by, plain), _gone(request)))


async def post_explain(name: str, request: Request, service: Served, asked: ExplainRequest) -> Response:
    """Explain the score of a document; the parameters are in a JSON body."""
    _note(request, service, name, asked.query)
    how = Explained(asked.by, asked.plain)
    gone = _gone(request)
    return _reply(await service.explain(name, asked.query, asked.doc_id, asked.versus, how, gone))


async def suggest(name: str, request: Request, service: Served, q: str, plain: Plain = False) -> Response:
    """Suggest similar words for query words that no document contains, without a search."""
    _note(request, service, name, q)
    return _reply(await service.suggest(name, q, plain, _gone(request)))


async def post_suggest(name: str, request: Request, service: Served, asked: SuggestRequest) -> Response:
    """Suggest similar words; the parameters are in a JSON body."""
    _note(request, service, name, asked.query)
    return _reply(await service.suggest(name, asked.query, asked.plain, _gone(request)))


# ---- documents


async def get_document(name: str, doc_id: str, request: Request, service: Served) -> Response:
    """Return a document by its id."""
    _note(request, service, name)
    return _reply(await service.document(name, doc_id))


async def find_document(name: str, doc_id: str, request: Request, service: Served) -> Response:
    """Return a document by its id, given as a parameter. Use this for ids that contain `.` or `..` as a path
    segment, which many clients would resolve."""
    _note(request, service, name)
    return _reply(await service.document(name, doc_id))


async def add_documents(name: str, request: Request, service: Served, exact: Exact = False) -> Response:
    """Add documents, or replace those with the same id: one JSON object per line.

    Nothing is written unless every line is valid. When the response arrives, the documents are searchable.
    """
    _note(request, service, name)
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise Problem(415, "encoded", "the body is compressed", "send uncompressed JSON lines")
    request.state.body.allow_upload()
    return _reply(await service.add(name, request.stream(), exact))


async def delete_documents(name: str, request: Request, service: Served, asked: DeleteRequest) -> Response:
    """Delete documents; the response lists the ids that do not exist."""
    _note(request, service, name)
    return _reply(await service.delete(name, asked.doc_ids))


async def delete_document(name: str, doc_id: str, request: Request, service: Served) -> Response:
    """Delete one document; 404 if it does not exist."""
    _note(request, service, name)
    return _reply(await service.delete_one(name, doc_id))


# ---- the server itself


async def health() -> Response:
    """Report that the server is running."""
    return _reply(b'{"status": "alive"}')


async def ready(service: Served) -> Response:
    """Report whether every index is open and has answered a query; if not, 503 names the others."""
    return _reply(await service.check_ready())


async def metrics(service: Served) -> Response:
    """Metrics in Prometheus format."""
    return Response(service.meters.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def reference(request: Request) -> Response:
    """A reference of all endpoints; /openapi.json is the machine-readable version."""
    return HTMLResponse(render_api_page(request.app.openapi()))


async def front_page(request: Request) -> Response:
    """The search page."""
    return _file(request, "index.html")


async def page_file(file: str, request: Request) -> Response:
    """A file of the search page."""
    return _file(request, file)


def _file(request: Request, name: str) -> Response:
    page: dict[str, PageFile] = request.app.state.page
    found = page.get(name)
    if found is None:
        raise Problem(404, "unknown_file", "the search page has no such file")
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == found.etag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


def _add_routes(app: FastAPI) -> None:
    forms = [{"$ref": f"#/components/schemas/{of}"} for of in ("DocumentIn", "ExactDocumentIn")]  # of a line
    lines = {"requestBody": {"required": True, "content": {NDJSON: {"schema": {"anyOf": forms}}}}}
    one = "/v1/indexes/{name}"
    reads: dict[str, Any] = {"dependencies": [KnownParameters]}
    asks: dict[str, Any] = {"dependencies": [KnownParameters, JsonBody]}
    add = app.router.add_api_route
    question: dict[str, Any] = {"methods": ["POST"], "route_class_override": _Question, **asks}
    change: dict[str, Any] = {"route_class_override": _Change}
    app.get("/v1/indexes", responses=_shape(IndexNames), **reads)(list_indexes)
    app.get(one, responses=_shape(IndexOut), **reads)(describe_index)
    app.get(f"{one}/search", responses=_shape(SearchOut), **reads)(search)
    add(f"{one}/search", post_search, responses=_shape(SearchOut), **question)
    add(f"{one}/search_batch", search_batch, responses=_shape(BatchOut), **question)
    app.get(f"{one}/explain", responses=_shape(ExplainOut), **reads)(explain)
    add(f"{one}/explain", post_explain, responses=_shape(ExplainOut), **question)
    app.get(f"{one}/suggest", responses=_shape(SuggestOut), **reads)(suggest)
    add(f"{one}/suggest", post_suggest, responses=_shape(SuggestOut), **question)
    app.get(f"{one}/documents", responses=_shape(DocumentOut), **reads)(find_document)
    app.get(f"{one}/documents/{{doc_id:id}}", responses=_shape(DocumentOut), **reads)(get_document)
    change["responses"] = _shape(AddedOut)
    add(f"{one}/documents", add_documents, methods=["POST"], openapi_extra=lines, **reads, **change)
    change |= {"methods": ["DELETE"], "responses": _shape(DeletedOut)}
    add(f"{one}/documents", delete_documents, **asks, **change)
    add(f"{one}/documents/{{doc_id:id}}", delete_document, **reads, **change)
    app.get("/health")(health)
    app.get("/ready")(ready)
    app.get("/metrics", include_in_schema=False)(metrics)
    app.get("/docs", include_in_schema=False)(reference)
    app.get("/", include_in_schema=False)(front_page)
    app.get("/page/{file:path}", include_in_schema=False)(page_file)
