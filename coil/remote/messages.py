"""What a client and a server say to each other: requests as values, answers as hits, documents and errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

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
from coil.indexes.hits import Hits
from coil.texts.given import GivenDocuments, Texts
from coil.texts.questions import check_id, check_ids, check_queries, check_query
from coil.texts.values import Document
from coil.tokens.profile import By

UPLOAD_BYTES = 4 << 20  # of one request, about
BATCH = 200  # queries of one request
_KINDS: dict[int, type[CoilError]] = {
    401: OutputError, 403: OutputError, 409: IndexLocked, 422: InputError, 504: SearchTimeout,
    507: OutputError,
}  # fmt: skip


@dataclass(frozen=True)
class Ask:
    """A request: what to do with which address."""

    method: str
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    changes: bool = False  # the index


class Messages:
    """The requests about one index, and what its answers mean."""

    def __init__(self, name: str) -> None:
        self._path = f"/v1/indexes/{quote(name, safe='')}"

    def describe(self) -> Ask:
        return Ask("GET", self._path)

    def search(self, query: str, options: Mapping[str, Any]) -> Ask:
        return Ask("POST", f"{self._path}/search", json={"query": check_query(query), **_given(options)})

    def search_batch(self, queries: Iterable[str], options: Mapping[str, Any]) -> Iterator[Ask]:
        asked = check_queries(queries)
        for begin in range(0, len(asked), BATCH):
            some = asked[begin : begin + BATCH]
            yield Ask("POST", f"{self._path}/search_batch", json={"queries": some, **_given(options)})

    def explain(self, query: str, doc_id: str, by: By, plain: bool) -> Ask:
        value = {"query": check_query(query), "doc_id": check_id(doc_id), "by": by, "plain": plain}
        return Ask("POST", f"{self._path}/explain", json=value)

    def document(self, doc_id: str) -> Ask:
        return Ask("GET", f"{self._path}/documents", params={"doc_id": check_id(doc_id)})

    def update(self, documents: Texts) -> Iterator[Ask]:
        """Documents in as many requests as it takes; each of them is one change."""
        lines: list[bytes] = []
        size = 0
        for document in GivenDocuments(documents):
            # As it is stored: with other names, the server would look for id and text among its fields.
            line = json.dumps(asdict(document), ensure_ascii=False).encode() + b"\n"
            if lines and size + len(line) > UPLOAD_BYTES:
                yield self._upload(lines)
                lines, size = [], 0
            lines.append(line)
            size += len(line)
        if lines:
            yield self._upload(lines)

    def _upload(self, lines: Sequence[bytes]) -> Ask:
        return Ask(
            "POST", f"{self._path}/documents", params={"exact": "true"}, content=b"".join(lines), changes=True
        )

    def delete(self, doc_ids: Iterable[str]) -> Ask:
        return Ask("DELETE", f"{self._path}/documents", json={"doc_ids": check_ids(doc_ids)}, changes=True)


def read_hits(answer: Mapping[str, Any]) -> Hits:
    """The hits of an answer; their texts came with them."""
    return Hits([_hit(hit) for hit in answer["hits"]], answer["query"])


def read_suggestions(answer: Mapping[str, Any]) -> list[Suggestion]:
    """What may have been meant."""
    return [
        Suggestion(of["word"], (of["span"][0], of["span"][1]), of["suggestion"])
        for of in answer["suggestions"]
    ]


def read_explanation(answer: Mapping[str, Any]) -> Explanation:
    """An explanation as it was made there."""
    return Explanation.from_json(answer)


def read_document(answer: Mapping[str, Any]) -> Document:
    """A document."""
    return Document(answer["doc_id"], answer["text"], dict(answer["fields"]))


def error_of(status: int, content: bytes) -> CoilError:
    """What a server's refusal is in this library."""
    try:
        value = json.loads(content)
        code, detail, remedy = value["code"], str(value["detail"]), str(value.get("remedy") or "")
    except (ValueError, KeyError, TypeError):
        return RemoteProblem(f"the server answered with status {status}", "is it `coil serve`?")
    kind = UnknownId if code == "unknown_document" else _KINDS.get(status, RemoteProblem)
    return kind(detail, remedy)


def split_address(url: str, index: str | None) -> tuple[str, str | None]:
    """The server's address, and the index that it names, if it does."""
    parts = urlsplit(url if "//" in url else f"http://{url}")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise InputError(f"{url[:200]!r} is not the address of a server", "write it as http://127.0.0.1:8080")
    head, found, name = parts.path.partition("/v1/indexes/")
    return f"{parts.scheme}://{parts.netloc}{head.rstrip('/')}", index or (name.strip("/") if found else None)


def choose_index(answer: Mapping[str, Any], url: str) -> str:
    """The default index of a server."""
    names: Sequence[Mapping[str, Any]] = answer.get("indexes", [])
    for found in names:
        if found["default"]:
            return str(found["name"])
    raise InputError(f"{url} serves no index", "start `coil serve` with one")


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _hit(value: Mapping[str, Any]) -> Hit:
    start, end = value["chunk"]
    document = Document(value["doc_id"], value["text"], dict(value["fields"]))
    duplicates = tuple(value.get("duplicates") or ())
    return read_hit(value["rank"], value["score"], (start, end), value["share"], duplicates, document)
