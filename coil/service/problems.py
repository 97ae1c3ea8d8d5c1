"""Problem: an error as sent to a client (RFC 9457), without any details of the server."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.exceptions import HTTPException

from coil.errors import (
    CoilError,
    IndexLocked,
    IndexProblem,
    InputError,
    MissingShard,
    ModelError,
    OutputError,
    PartlyChanged,
    SearchTimeout,
    StateGone,
    Unconfirmed,
)
from coil.texts.opening import count_separators, shorten
from coil.texts.records import MOST_DIGITS
from coil.texts.values import clean

MOST_VALUES = 10_000  # of a question; they are parsed in the event loop
MEDIA_TYPE = "application/problem+json"
PUT_BACK = "restore the folder of the index; the server then recovers without a restart (see its log)"
RESTORE = "restore the index from a backup; the server then recovers without a restart (see its log)"
TITLES = {
    400: "bad request",
    401: "unauthorized",
    403: "forbidden",
    404: "not found",
    405: "method not allowed",
    408: "request timeout",
    409: "the index is locked by another process",
    411: "length required",
    413: "too large",
    415: "unsupported media type",
    421: "misdirected request",
    422: "invalid value",
    431: "headers too large",
    500: "internal server error",
    501: "not implemented",
    503: "temporarily unavailable",
    504: "time limit exceeded",
    507: "the index cannot be written",
}


class Problem(HTTPException):
    """Why a request was refused or failed. `kind` is its code for programs, and its label in the metrics."""

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
            "code": self.kind,
            "detail": clean(self.detail),  # it may quote what was sent
            "request_id": request_id,
        }
        return {**value, "remedy": clean(self.remedy)} if self.remedy else value


def busy(detail: str, seconds: int = 1) -> Problem:
    """The server is overloaded: try again later."""
    return Problem(503, "busy", detail, "try again later", {"Retry-After": str(seconds)})


def unwritable(name: str, trouble: str) -> Problem:
    """An index cannot be written because its folder is missing or damaged."""
    return Problem(
        507, "cannot_write", f"the index {name!r} {trouble}: changes fail until it is back", PUT_BACK
    )


def unknown_index(name: str) -> Problem:
    """No index has this name."""
    return Problem(
        404,
        "unknown_index",
        f"there is no index {shorten(name)}",
        "GET /v1/indexes lists the available indexes",
    )


def unknown_document(doc_id: str) -> Problem:
    """No document has this id."""
    detail = f"no document has the id {shorten(doc_id)}"
    return Problem(404, "unknown_document", detail, "ids are case-sensitive; copy one from a result")


def not_json(given: str | None) -> Problem:
    """The body should be JSON, but its Content-Type is missing or different."""
    found = f"the Content-Type is {given[:100]!r}" if given else "the body has no Content-Type"
    return Problem(
        415,
        "not_json",
        f"expected a JSON object, but {found}",
        "send JSON with the header `Content-Type: application/json`",
    )


def unreadable_body() -> Problem:
    """The Content-Type is JSON, but the body cannot be parsed."""
    detail = "the body cannot be read as JSON"
    return Problem(400, "bad_request", detail, "send one JSON object in UTF-8 without deep nesting")


def check_encoding(body: bytes) -> None:
    """Refuse JSON in UTF-16 or UTF-32, which Python would parse: in these, `check_values` cannot count."""
    found = json.detect_encoding(body)
    if found not in ("utf-8", "utf-8-sig"):
        detail = f"the body is in {found[:6].upper()}; expected UTF-8"
        raise Problem(400, "bad_request", detail, "send the JSON in UTF-8")


def check_values(body: bytes) -> None:
    """Refuse JSON with more values than a query can have. Brackets and commas within texts do not count."""
    if sum(map(body.count, (b"[", b"{", b","))) <= MOST_VALUES:
        return
    if count_separators(body.decode("latin-1"), "[{,", MOST_VALUES) > MOST_VALUES:
        detail = f"the body exceeds the limit of {MOST_VALUES:,} values"
        raise Problem(422, "too_many", detail, "send them in several requests")


def check_keys(body: bytes) -> None:
    """Refuse JSON that has a key twice, of which one would be ignored, or a number that Python cannot read.

    Invalid JSON is reported later.
    """
    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=_once, parse_int=_check_digits)


def _once(pairs: list[tuple[str, Any]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            shown = shorten(clean(key))
            raise Problem(400, "bad_request", f"duplicate key {shown}", f"pass {shown} only once")
        seen.add(key)


def _check_digits(number: str) -> None:
    if len(number) > MOST_DIGITS:
        detail = f"the body has a number of {len(number):,} digits: {shorten(number)}"
        raise Problem(400, "bad_request", detail, "use a smaller number")


def unknown_parameters(unknown: Sequence[str], known: Sequence[str]) -> Problem:
    """The address has unknown parameters."""
    several = "s" if len(unknown) > 1 else ""
    shown = ", ".join(repr(name[:40]) for name in unknown[:5])
    remedy = f"valid parameters: {', '.join(known)}" if known else "this endpoint takes no parameters"
    return Problem(422, "unknown_parameter", f"unknown parameter{several} {shown}", remedy)


def repeated_parameters(repeated: Sequence[str]) -> Problem:
    """The address has a parameter more than once; which one is meant cannot be known."""
    shown = ", ".join(repeated)
    return Problem(422, "repeated_parameter", f"repeated parameter: {shown}", f"pass {shown} only once")


def problem_of(error: CoilError) -> Problem:
    """An error of the library as a client may see it.

    Messages about the client's input are passed on. All others may contain paths of the server: they are
    logged, and the client gets a general message.
    """
    if isinstance(error, InputError):
        return Problem(422, "bad_input", error.reason, error.remedy)
    if isinstance(error, SearchTimeout):
        return Problem(504, "timeout", error.reason, error.remedy)
    if isinstance(error, IndexLocked):
        return Problem(
            409,
            "locked",
            "another process is writing this index",
            "try again when it has finished",
            {"Retry-After": "5"},
        )
    if isinstance(error, PartlyChanged):
        detail = "the change was made only in part: some shards of the index cannot be written"
        return Problem(507, "cannot_write", detail, "see the server's log, then send the request again")
    if isinstance(error, Unconfirmed):
        detail = "the change was made, but the server's disk did not confirm it"
        return Problem(507, "unconfirmed", detail, "see the server's log; sending it again is safe")
    if isinstance(error, OutputError) and _is_full(error):
        detail = "the index cannot be written: the server's disk is full"
        return Problem(507, "cannot_write", detail, "free some disk space there, then send the request again")
    if isinstance(error, OutputError):
        return Problem(507, "cannot_write", "the index cannot be written", "see the server's log")
    if isinstance(error, MissingShard | StateGone):  # these come and go while a cluster heals itself
        detail = "a part of the index cannot be reached at the moment"
        return Problem(503, "shard_missing", detail, "try again later", {"Retry-After": "1"})
    kind = (
        "index" if isinstance(error, IndexProblem) else "model" if isinstance(error, ModelError) else "coil"
    )
    return Problem(503, kind, "the index is temporarily unavailable", "see the server's log")


def _is_full(error: BaseException | None) -> bool:
    """Whether an error comes from a disk, or a share of it, that has no room."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if "disk is full" in str(error):  # SQLite's message
            return True
        error = error.__cause__
    return False
