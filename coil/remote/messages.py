"""Messages between client and server: requests as values; responses as hits, documents and errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote, unquote, urlsplit

from coil.errors import (
    CoilError,
    IndexLocked,
    InputError,
    OutputError,
    RemoteProblem,
    SearchTimeout,
    UnknownId,
)
from coil.explanations.explanation import Explanation
from coil.hits.hit import Hit, read_hit
from coil.hits.spelling import Suggestion
from coil.indexes.hits import Hits, warn_of_unknown
from coil.indexes.index import LeftOut, warn_of_empty
from coil.indexes.questions import check_paging
from coil.storage.filters import parse_filter
from coil.texts.columns import name_columns
from coil.texts.given import GivenDocuments, Texts
from coil.texts.questions import (
    check_filter,
    check_id,
    check_ids,
    check_k,
    check_min_score,
    check_min_share,
    check_query,
    show,
)
from coil.texts.values import MOST_ID_BYTES, Document, EmptyTally, clean, id_size
from coil.tokens.profile import By, check_by

UPLOAD_BYTES = 512 << 10  # approximate size of a request with documents: seconds of encoding, not a minute
QUESTION_BYTES = 256 << 10  # approximate size of one with queries or ids: a quarter of the server's limit
NDJSON = "application/x-ndjson"
BATCH = 200  # queries per request
ANOTHER = "check that it is `coil serve`"
_BETWEEN = 2  # bytes: a comma and a space
_Item = TypeVar("_Item")
_KINDS: dict[int, type[CoilError]] = {
    401: OutputError, 403: OutputError, 409: IndexLocked, 422: InputError, 504: SearchTimeout,
    507: OutputError,
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    content: bytes | None = None
    media_type: str = "application/json"
    changes: bool = False  # whether it changes the index
    halves: Callable[[], list[Ask]] | None = None  # splits the request into two, if possible


class TooLarge(RemoteProblem):
    """The body of a request exceeds a limit of the server; nothing was done."""


class TooMany(InputError):
    """A request asks for more than the server allows; nothing was done."""


NAMES = Ask("GET", "/v1/indexes")
_CODES: dict[Any, type[CoilError]] = {
    "unknown_document": UnknownId, "too_large": TooLarge, "too_many": TooMany,
}  # fmt: skip


class Messages:
    """The requests for one index."""

    def __init__(self, name: str) -> None:
        self._path = f"/v1/indexes/{quote(clean(name), safe='')}"

    def describe(self) -> Ask:
        return Ask("GET", self._path)

    def search(self, query: str, options: Mapping[str, Any]) -> Ask:
        value = {"query": clean(check_query(query)), **options}
        return Ask("POST", f"{self._path}/search", content=_json(value))

    def search_batch(self, queries: Sequence[str], options: Mapping[str, Any]) -> Iterator[Ask]:
        cleaned = [clean(query) for query in queries]
        for some in _split(cleaned, lambda query: len(_json(query)), QUESTION_BYTES, BATCH):
            yield self._batch(some, options)

    def _batch(self, queries: Sequence[str], options: Mapping[str, Any]) -> Ask:
        content = _json({"queries": queries, **options})
        halves = _halves(queries, lambda some: self._batch(some, options))
        return Ask("POST", f"{self._path}/search_batch", content=content, halves=halves)

    def suggest(self, query: str, plain: bool) -> Ask:
        value = {"query": clean(check_query(query)), "plain": bool(plain)}
        return Ask("POST", f"{self._path}/suggest", content=_json(value))

    def explain(self, query: str, doc_id: str, by: By, plain: bool) -> Ask:
        asked = {"query": clean(check_query(query)), "doc_id": _possible_id(doc_id)}
        value = {**asked, "by": check_by(by), "plain": bool(plain)}
        return Ask("POST", f"{self._path}/explain", content=_json(value))

    def document(self, doc_id: str) -> Ask:
        return Ask("GET", f"{self._path}/documents", params={"doc_id": _possible_id(doc_id)})

    def update(self, upload: Upload) -> Iterator[Ask]:
        """Upload documents in as many requests as necessary; each is a separate change."""
        for lines in _split(upload, len, UPLOAD_BYTES):
            yield self._lines(lines)

    def _lines(self, lines: Sequence[bytes]) -> Ask:
        halves = _halves(lines, self._lines)
        return Ask(
            "POST", f"{self._path}/documents", {"exact": "true"}, b"".join(lines), NDJSON, True, halves
        )

    def delete(self, doc_ids: Iterable[str]) -> Iterator[Ask]:
        """Delete documents in as many requests as necessary; each is a separate change."""
        wanted = [doc_id for doc_id in dict.fromkeys(check_ids(doc_ids)) if id_size(doc_id) <= MOST_ID_BYTES]
        for some in _split(wanted, lambda doc_id: len(_json(doc_id)), QUESTION_BYTES):
            yield self._deletion(some)

    def _deletion(self, doc_ids: Sequence[str]) -> Ask:
        content, halves = _json({"doc_ids": doc_ids}), _halves(doc_ids, self._deletion)
        return Ask("DELETE", f"{self._path}/documents", content=content, changes=True, halves=halves)


class Upload:
    """Documents sent to a server as JSON lines, and the counts that `Index.update` would report."""

    def __init__(
        self,
        documents: Texts,
        left_out: LeftOut | None = None,
        id_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        title_column: str | None = None,
    ) -> None:
        self._documents = GivenDocuments(documents, name_columns(id_column, text_column, title_column))
        self._left_out = left_out or warn_of_empty
        self._added = 0
        self._empty = EmptyTally()

    def __iter__(self) -> Iterator[bytes]:
        for document in self._documents:
            self._empty.see(document)
            if not document.is_empty:
                self._added += 1
            # In exact form; in a record, the server would look for id and text among the fields.
            yield json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n"

    def finish(self) -> int:
        """Report documents without text after all have been sent; returns the number of documents added."""
        if self._empty.found:
            self._left_out(self._empty.found)
        return self._added


def search_options(
    k: int = 10,
    filter: str | None = None,
    by: By = "coil",
    min_score: float | None = None,
    min_share: float | None = None,
    offset: int = 0,
    sort: str | None = None,
    fold_duplicates: bool = False,
    plain: bool = False,
) -> dict[str, Any]:
    """The arguments of `Index.search`, validated in the same way, as the JSON of a request."""
    paging = check_paging(offset, sort, fold_duplicates)
    filter = check_filter(filter)
    if filter is not None and clean(filter) != filter:
        parse_filter(filter)  # so that an error quotes the original filter
        filter = clean(filter)  # lone surrogates cannot be sent, and stored fields do not contain any
    given = {
        "k": max(check_k(k), 1),  # the server rejects 0
        "filter": filter,
        "by": check_by(by),
        "min_score": check_min_score(min_score),
        "min_share": check_min_share(min_share),
        "offset": paging.offset,
        "sort": paging.sort,
        "fold_duplicates": paging.fold,
        "plain": bool(plain),
        "stats": False,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def _understood(changes: bool = False) -> Iterator[None]:
    """Raises RemoteProblem if a key is missing or has a wrong type: it is not a response of `coil serve`.

    `changes`: the response is to a change.
    """
    try:
        yield
    except CoilError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise unreadable("the server's response has an unexpected form", changes) from error


def read_hits(answer: Mapping[str, Any], query: str, k: int) -> Hits:
    """The hits of a response, at most k, with their texts."""
    with _understood():
        hits = _hits_of(answer, query, k)
    warn_of_unknown([hits], level=4)
    return hits


def read_many(batches: Iterable[Mapping[str, Any]], queries: Sequence[str], k: int) -> list[Hits]:
    """The hits of the answers to many queries, in order."""
    with _understood():
        answers = [answer for batch in batches for answer in batch["answers"]]
        hits = [_hits_of(answer, query, k) for answer, query in zip(answers, queries, strict=True)]
    warn_of_unknown(hits, level=4)
    return hits


@_understood()
def read_suggestions(answer: Mapping[str, Any]) -> list[Suggestion]:
    """The suggestions of a response."""
    return [
        Suggestion(of["word"], (of["span"][0], of["span"][1]), of["suggestion"])
        for of in answer["suggestions"]
    ]


@_understood()
def read_explanation(answer: Mapping[str, Any]) -> Explanation:
    """The explanation of a response."""
    return Explanation.from_json(answer)


@_understood()
def read_document(answer: Mapping[str, Any]) -> Document:
    """The document of a response."""
    return _document(answer)


@_understood(changes=True)
def read_added(answer: Mapping[str, Any]) -> int:
    """The number of added documents."""
    return int(answer["added"])


@_understood(changes=True)
def read_deleted(answer: Mapping[str, Any]) -> int:
    """The number of deleted documents."""
    return int(answer["deleted"])


def error_of(status: int, content: bytes | bytearray, changes: bool = False) -> CoilError:
    """The exception for an error response of the server, to a request that changes the index or does not."""
    try:
        value = json.loads(content)
        code, detail, remedy = value["code"], value["detail"], value.get("remedy") or ""
        if not all(isinstance(part, str) for part in (code, detail, remedy)):
            raise TypeError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return unreadable(f"the server answered with status {status}", changes)
    kind = _CODES.get(code) or _KINDS.get(status, RemoteProblem)
    return kind(detail, remedy)


def unreadable(what: str, changes: bool) -> RemoteProblem:
    """The exception for a response that does not say what was done."""
    return RemoteProblem(f"{what}; it is unknown whether the change was made" if changes else what, ANOTHER)


def split_address(url: str, index: str | None) -> tuple[str, str | None]:
    """The address of the server, and the name of the index if the address contains it."""
    remedy = "use an address such as http://127.0.0.1:8080"
    for what, given in (("address", url), ("name of the index", index or "")):
        if not isinstance(given, str):
            raise InputError(f"the {what} is {show(given)}; expected a string", remedy)
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        if known and str(parts.hostname).isascii():  # httpx encodes other names
            str(parts.hostname).encode("idna")
    except ValueError:  # invalid brackets, port or host name
        known = False
    if not known or " " in url or not url.isprintable():
        raise InputError(f"{url[:200]!r} is not the address of a server", remedy)
    head, found, name = parts.path.partition("/v1/indexes/")
    name = unquote(name.strip("/"))
    if parts.query or parts.fragment or "/" in name or (found and not name):
        remedy = "use an address such as http://127.0.0.1:8080 or http://127.0.0.1:8080/v1/indexes/NAME"
        raise InputError(f"{url[:200]!r} is not the address of a server or of an index", remedy)
    return f"{parts.scheme}://{parts.netloc}{head.rstrip('/')}", index or (name if found else None)


@_understood()
def choose_index(answer: Mapping[str, Any], url: str, name: str | None = None) -> str:
    """The server's index with this name, or its default index."""
    if name is not None:
        return str(_find_index(answer, name)["name"])
    for found in answer["indexes"]:
        if found["default"]:
            return str(found["name"])
    raise InputError(f"{url} serves no index", "start `coil serve` with one")


@_understood()
def read_size(answer: Mapping[str, Any], name: str) -> int:
    """The number of documents of an index. Its description also has it, but counts all lists first."""
    return int(_find_index(answer, name)["documents"])


def _find_index(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    listed: dict[str, Mapping[str, Any]] = {found["name"]: found for found in answer["indexes"]}
    if name not in listed:
        remedy = f"the server has {', '.join(listed) or 'none'}"
        raise RemoteProblem(f"there is no index {name[:200]!r}", remedy)
    return listed[name]


def _split(
    items: Iterable[_Item], size_of: Callable[[_Item], int], most_bytes: int, most_items: int | None = None
) -> Iterator[list[_Item]]:
    """Split items into parts of about the size of one request; each part has at least one item."""
    part: list[_Item] = []
    size = 0
    for item in items:
        more = size_of(item) + _BETWEEN
        if part and (size + more > most_bytes or len(part) == most_items):
            yield part
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part


def _halves(items: Sequence[_Item], ask: Callable[[Sequence[_Item]], Ask]) -> Callable[[], list[Ask]] | None:
    """A function that returns a request for each half of the items; None if there is only one item."""
    middle = len(items) // 2
    return (lambda: [ask(items[:middle]), ask(items[middle:])]) if middle else None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _possible_id(doc_id: str) -> str:
    """An id as the index stores it; one above the size limit, which cannot exist, raises UnknownId."""
    kept = check_id(doc_id)
    if id_size(kept) > MOST_ID_BYTES:
        remedy = "ids are case-sensitive; copy one from a result"
        raise UnknownId(f"no document has the id {doc_id!r:.200}", remedy)
    return kept


def _hits_of(answer: Mapping[str, Any], query: str, k: int) -> Hits:
    unknown = [str(name) for name in answer.get("unknown_fields") or ()]
    best = answer.get("sorted_best")
    hits = [_hit(hit) for hit in answer["hits"][:k]]
    return Hits(hits, query, None, unknown, None if best is None else int(best))


def _hit(value: Mapping[str, Any]) -> Hit:
    start, end = (_typed(place, int) for place in value["chunk"])
    duplicates = tuple(_typed(doc_id, str) for doc_id in value.get("duplicates") or ())
    rank, score = _typed(value["rank"], int), float(_typed(value["score"], int | float))
    share = None if value["share"] is None else float(_typed(value["share"], int | float))
    return read_hit(rank, score, (start, end), share, duplicates, _document(value))


def _document(value: Mapping[str, Any]) -> Document:
    fields = _typed(value["fields"], dict)
    return Document(_typed(value["doc_id"], str), _typed(value["text"], str), fields)


def _typed(value: Any, kind: Any) -> Any:
    """The value, or TypeError if it is of another type."""
    if isinstance(value, bool) or not isinstance(value, kind):
        raise TypeError
    return value
