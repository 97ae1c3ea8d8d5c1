"""Gate: request ids, checks of host and size, security headers, metrics and log lines for every request."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coil.service.connections import ADMIT, CROWDED, LATE, TURN
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.meters import Meters
from coil.service.names import let_read
from coil.service.problems import MEDIA_TYPE, Problem, busy
from coil.service.request_ids import choose_request_id
from coil.service.turns import Turn

_log = logging.getLogger("coil.service")
_LENGTH_DIGITS = 20  # those of the largest number of 64 bits
_MOST_PARAMETERS = 100  # no endpoint has as many
_METHODS_WITH_BODY = ("POST", "DELETE")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:]*)(:\d*)?")

HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Gate:
    """The outermost part of the application."""

    def __init__(self, app: ASGIApp, options: ServiceOptions, meters: Meters) -> None:
        self._app, self._options, self._meters = app, options, meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        method = scope["method"]
        if method == "HEAD":  # the answer to GET without its body; uvicorn's own scope is not changed
            scope = {**scope, "method": "GET"}
        headers = Headers(scope=scope)
        request_id = choose_request_id(headers.get("x-request-id", ""))
        note: dict[str, Any] = {}
        allowed = let_read(headers.get("origin", ""), self._options.origins)
        scope.setdefault("state", {}).update(request_id=request_id, note=note)
        status = 0
        turn: Turn | None = scope["state"].get(TURN)

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                for name, value in HEADERS.items():
                    out.setdefault(name, value)
                for name, value in allowed.items():
                    out.setdefault(name, value)
            elif method == "HEAD":
                message = {**message, "body": b""}
            if turn is not None:  # others need not wait for this client to read its answer
                turn.give_back()
            await send(message)

        self._meters.in_flight.inc()
        try:
            problem = self._refusal(scope, headers)
            if problem is None and turn is not None and not _reads_body(method, headers):
                problem = await _wait_for(turn)
            if problem is not None:
                await send_problem(problem, request_id, answer)
                note["problem"] = problem.kind
            else:
                admit = scope["state"].get(ADMIT)
                body = Body(receive, self._most_bytes(scope), self._options.limits, admit, turn)
                scope["state"]["body"] = body
                await self._app(scope, body, answer)
        except ClientDisconnect:
            note["problem"] = "disconnected"
            status = status or 499  # not sent to anyone, only logged and counted
        except asyncio.CancelledError:  # not passed on: uvicorn would log a traceback
            note["problem"] = "stopped"
            if not status:
                await send_problem(_stopped(scope), request_id, answer)
        except Exception:
            _log.exception("failed", extra={"request_id": request_id})
            note["problem"] = "failure"
            if status:  # too late for an answer; the connection breaks
                raise
            failure = Problem(500, "failure", "internal error; see the server's log for this request id")
            await send_problem(failure, request_id, answer)
        finally:
            if turn is not None:
                turn.give_back()
            self._meters.in_flight.dec()
            self._count(scope, method, request_id, status, time.perf_counter() - began, note)

    def _refusal(self, scope: Scope, headers: Headers) -> Problem | None:
        hosts = self._options.hosts
        if scope["state"].get(CROWDED) and scope["path"] != "/health":
            most = self._options.limits.connections
            return Problem(
                503,
                "busy",
                f"the limit of {most:,} connections with requests is reached",
                "try again later",
                {"Retry-After": "1", "Connection": "close"},
            )
        if scope["state"].get(LATE):
            limit = f"{self._options.limits.seconds:g} seconds"
            return busy(f"the request could not be started within {limit}")
        if len(headers.getlist("host")) > 1:
            return Problem(400, "bad_http", "the request has several Host headers", "send one Host header")
        if hosts:
            # A web page could otherwise make its own host name resolve to this machine and read the answers.
            match = _HOST.fullmatch(headers.get("host", "").strip())
            if match is None or match.group(1).lower() not in hosts:
                return Problem(
                    421,
                    "wrong_host",
                    "this server does not accept requests for that host name",
                    "use the address that it printed at startup, or start it with --allow-host NAME",
                )
        if not _is_utf8(scope):
            return Problem(400, "bad_http", "the address is not UTF-8", "encode it as UTF-8, with %-escapes")
        if scope["query_string"].count(b"&") >= _MOST_PARAMETERS:
            detail = f"the address exceeds the limit of {_MOST_PARAMETERS} parameters"
            return Problem(422, "too_many", detail, "see /docs for the parameters of each endpoint")
        length = headers.get("content-length", "")
        if len(length) > _LENGTH_DIGITS:  # leading zeros: the parser refuses numbers that are so large
            detail = f"the Content-Length has {len(length):,} characters"
            return Problem(400, "bad_http", detail, "send the number of bytes without leading zeros")
        if length.isdecimal() and int(length) > self._most_bytes(scope):
            return too_large(self._most_bytes(scope))
        return None

    def _most_bytes(self, scope: Scope) -> int:
        limits = self._options.limits
        upload = scope["method"] == "POST" and scope["path"].endswith("/documents")
        return limits.upload_bytes if upload else limits.body_bytes

    def _count(
        self,
        scope: Scope,
        method: str,
        request_id: str,
        status: int,
        seconds: float,
        note: dict[str, Any],
    ) -> None:
        # The declared path and its methods: those that were sent would each be a label of their own.
        found = scope.get("route")
        route, methods = getattr(found, "path", "none"), getattr(found, "methods", None) or ()
        self._meters.count_request(method if scope["method"] in methods else "other", route, status, seconds)
        if "problem" in note:
            self._meters.count_error(note["problem"])
        extra = {
            "request_id": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(seconds * 1000, 3),
            **note,
        }
        _log.info("request", extra=extra)


class Body:
    """Stops reading a body that exceeds its size or time limit, whatever its Content-Length."""

    def __init__(
        self,
        receive: Receive,
        most: int,
        limits: ServiceLimits,
        admit: Callable[[], object] | None = None,
        turn: Turn | None = None,
    ) -> None:
        """When the body has arrived, `turn` is awaited, unless it was before."""
        self._receive, self._most, self._bytes = receive, most, 0
        self._limits, self._admit, self._turn = limits, admit, turn
        self._began = time.monotonic()
        self._end = self._began + limits.body_seconds
        self._asked_for = self._complete = False

    @property
    def is_arriving(self) -> bool:
        """Whether the handler has begun to read it and does not have all of it: nothing is done before."""
        return self._asked_for and not self._complete

    def allow_upload(self) -> None:
        """This client may change the index: it has more time, and its connection is not closed for others."""
        self._end = self._began + self._limits.upload_seconds
        if self._admit is not None and not self._complete:
            self._admit()

    async def __call__(self) -> Message:
        if self._complete:  # from here on there is only the disconnect
            return await self._receive()
        self._asked_for = True
        try:
            message = await asyncio.wait_for(self._receive(), max(self._end - time.monotonic(), 0.0))
        except asyncio.TimeoutError:
            raise Problem(
                408, "slow_body", "the body did not arrive in time", "send smaller requests"
            ) from None
        if message["type"] == "http.request":
            self._bytes += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._bytes > self._most:
                raise too_large(self._most)
            if self._complete and self._turn is not None:
                await self._turn.take()
        return message


def _reads_body(method: str, headers: Headers) -> bool:
    """Whether there is a body and the handlers of the method read it: then the turn is awaited at its end."""
    if method not in _METHODS_WITH_BODY:
        return False
    return "transfer-encoding" in headers or bool(headers.get("content-length", "").strip("0"))


async def _wait_for(turn: Turn) -> Problem | None:
    """Wait for the turn of a request that was sent ahead of an answer; why it has none, if so."""
    try:
        await turn.take()
    except Problem as problem:
        return problem
    return None


def _stopped(scope: Scope) -> Problem:
    """The server stops, and no longer waits for this request."""
    body: Body | None = scope["state"].get("body")
    detail, remedy = "the server stopped before it had finished", "send it again later"
    if body is not None and body.is_arriving:
        detail = "the server stopped before the body had arrived; nothing was changed"
    elif "/documents" in scope["path"] and scope["method"] != "GET":
        remedy = "check whether the change was made"
    return Problem(503, "stopped", detail, remedy, {"Retry-After": "5"})


def too_large(most: int) -> Problem:
    """A body beyond the limit."""
    return Problem(
        413, "too_large", f"the body exceeds the limit of {most:,} bytes", "send it in several requests"
    )


async def send_problem(problem: Problem, request_id: str, send: Send) -> None:
    """Answer with a problem."""
    body = json.dumps(problem.to_json(request_id)).encode()
    headers = {"content-type": MEDIA_TYPE, "content-length": str(len(body)), **(problem.headers or {})}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": problem.status_code, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def _is_utf8(scope: Scope) -> bool:
    """Whether path and parameters mean what was sent: other bytes are replaced, and could be another id."""
    try:
        if "\ufffd" in scope["path"]:
            unquote_to_bytes(scope.get("raw_path") or b"").decode()
        unquote_to_bytes(scope["query_string"]).decode()
    except UnicodeDecodeError:
        return False
    return True
