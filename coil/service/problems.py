"""Problem: an error as a client sees it (RFC 9457), with nothing about the server in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.exceptions import HTTPException

from coil.errors import (
    CoilError,
    IndexLocked,
    IndexProblem,
    InputError,
    ModelError,
    OutputError,
    SearchTimeout,
)
from coil.texts.opening import shorten

MEDIA_TYPE = "application/problem+json"
PUT_BACK = "put it back, and the server takes it up again; its log says more"
TITLES = {
    400: "bad request",
    401: "not authorised",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    408: "the request came too slowly",
    409: "the index is being written elsewhere",
    411: "length required",
    413: "too large",
    415: "wrong kind of content",
    421: "misdirected request",
    422: "a value that cannot be used",
    431: "headers too large",
    500: "the server failed",
    503: "not available at the moment",
    504: "out of time",
    507: "the index cannot be written",
}


class Problem(HTTPException):
    """Why a request was refused or failed. `kind` names it in the metrics."""

    def __init__(
        self, status: int, kind: str, detail: str, remedy: str = "", headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.remedy = kind, remedy

    def to_json(self, request_id: str) -> dict[str, Any]:
        """The problem as a JSON object."""
        value = {
            "type": "about:blank",
            "title": TITLES.get(self.status_code, "error"),
            "status": self.status_code,
            "detail": self.detail,
            "request_id": request_id,
        }
        return {**value, "remedy": self.remedy} if self.remedy else value


def busy(detail: str, seconds: int = 1) -> Problem:
    """The queue is full: come back later."""
    return Problem(503, "busy", detail, "ask again after a moment", {"Retry-After": str(seconds)})


def unwritable(name: str, trouble: str) -> Problem:
    """An index cannot be written because of what became of its folder."""
    return Problem(
        507, "cannot_write", f"the index {name!r} {trouble}: changes fail until it is back", PUT_BACK
    )


def unknown_index(name: str) -> Problem:
    """No index has this name."""
    return Problem(404, "unknown_index", f"there is no index {shorten(name)}", "GET /v1/indexes lists them")


def unknown_document(doc_id: str) -> Problem:
    """No document has this id."""
    detail = f"no document has the id {shorten(doc_id)}"
    return Problem(404, "unknown_document", detail, "ids are case-sensitive; copy one from a result")


def not_json(given: str | None) -> Problem:
    """The body should be JSON, but its header says otherwise, or nothing."""
    found = f"its Content-Type is {given[:100]!r}" if given else "it has no Content-Type"
    return Problem(
        415,
        "not_json",
        f"the body should be a JSON object, but {found}",
        "send JSON with the header `Content-Type: application/json`",
    )


def unreadable_body() -> Problem:
    """The body is called JSON, but cannot be read at all."""
    detail = "the body cannot be read as JSON"
    return Problem(400, "bad_request", detail, "send one JSON object in UTF-8, not nested deeply")


def unknown_parameters(unknown: Sequence[str], known: Sequence[str]) -> Problem:
    """The address carries parameters that nobody knows."""
    several = "s" if len(unknown) > 1 else ""
    shown = ", ".join(repr(name[:40]) for name in unknown[:5])
    remedy = f"this address takes {', '.join(known)}" if known else "this address takes no parameters"
    return Problem(422, "unknown_parameter", f"unknown parameter{several} {shown}", remedy)


def repeated_parameters(repeated: Sequence[str]) -> Problem:
    """The address carries a parameter more than once; whichever we took, it could be the wrong one."""
    shown = ", ".join(repeated)
    return Problem(422, "repeated_parameter", f"{shown} is given more than once", f"give {shown} once")


def problem_of(error: CoilError) -> Problem:
    """What a client may know about an error of the library.

    Messages about what the client sent are passed on. All others may name files of the server: they go to the
    log, and the client gets a sentence of its own.
    """
    if isinstance(error, InputError):
        return Problem(422, "bad_input", str(error), error.remedy)
    if isinstance(error, SearchTimeout):
        return Problem(504, "timeout", str(error), error.remedy)
    if isinstance(error, IndexLocked):
        return Problem(
            409,
            "locked",
            "another process is writing this index",
            "send it again when that is done",
            {"Retry-After": "5"},
        )
    if isinstance(error, OutputError):
        return Problem(507, "cannot_write", "the index cannot be written", "the server's log says why")
    kind = (
        "index" if isinstance(error, IndexProblem) else "model" if isinstance(error, ModelError) else "coil"
    )
    return Problem(503, kind, "the index cannot be used at the moment", "the server's log says why")
