"""Connection: limits on what a client sends before its request is complete, and on how slowly it may read.

uvicorn's parser accepts request heads of any size at any speed, and its transport keeps a response until the
client has read it, however long that takes. Here, the head of a request (request line and headers) is limited
in size and time, reading a response in time, and the server in connections.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from coil.service.limits import ServiceOptions
from coil.service.names import let_read
from coil.service.problems import MEDIA_TYPE, Problem, busy
from coil.service.request_ids import make_request_id
from coil.service.turns import Starts, Turn, Turns

if TYPE_CHECKING:
    from uvicorn._types import ASGI3Application

SPARE = 16  # connections beyond the limit, on which only /health is answered
CROWDED = "crowded"  # in the state of a request: more connections than allowed have a request
TURN = "turn"  # in the state of a request that was sent ahead of an answer: what it waits for
GONE = "gone"  # in the state of a request: whether its client is
LATE = "late"  # in the state of a request: it waited for its start longer than a request may take
ADMIT = "admit"  # in the state of a request: counts it from here on, although its body is still arriving
_LINGER = (
    1.0  # seconds to read on after a refusal: closing at once could discard it before the client reads it
)

_STARTS_AT_ONCE = 4
_MANY_CHUNKS = 64  # in a piece of a body; each costs a call
_SMALL_PIECE = 4 << 10  # bytes of a body that arrives in many small chunks
_END_OF_HEAD = b"\r\n\r\n"
_LINE_ENDS = b"\r\n"
_BODY_FIELDS = (b"content-length", b"transfer-encoding")
_UPGRADE = re.compile(rb"(?i)\r\nupgrade(?=[ \t]*:)")


def _without_upgrade(piece: bytes) -> bytes:
    """A head whose Upgrade header is hidden: nothing can be upgraded to, so it is ignored (RFC 9110, 7.8).

    The parser would take what follows the head for another protocol and lose the body.
    """
    head, end, rest = piece.partition(b"\r\n\r\n")
    return _UPGRADE.sub(b"\r\nx-upgrd", head) + end + rest


class Connections:
    """The open connections of one server."""

    def __init__(self, options: ServiceOptions, count_error: Callable[[str], object]) -> None:
        self.limits, self.origins, self.count_error = options.limits, options.origins, count_error
        self.open = 0
        limits = options.limits
        self.turns = Turns(limits.pipelined_at_once, limits.waiting, limits.seconds)
        self.starts = Starts(_STARTS_AT_ONCE)
        # Nothing was asked on these, or not completely; the one that has been so for longest comes first.
        self.without_request: dict[Connection, None] = {}

    @property
    def crowded(self) -> bool:
        """Whether more connections than allowed have a request in progress."""
        return self.open - len(self.without_request) > self.limits.connections

    def make_room(self, newcomer: Connection) -> bool:
        """Whether a new connection can stay; another one that has no request may be closed for it."""
        if self.open <= self.limits.connections + SPARE:
            return True
        oldest = next(iter(self.without_request))
        if oldest is newcomer:
            return False
        self.without_request.pop(oldest)
        oldest.drop("crowded_out")
        return True


class Flow(FlowControl):
    """uvicorn's flow control; nothing is read while bytes are held back, even if the application waits."""

    holding = False

    def resume_reading(self) -> None:
        """Read again."""
        if not self.holding:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """uvicorn's protocol with limits."""

    flow: Flow

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._all, self._limits = connections, connections.limits
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._in_head = True  # or between two requests
        self._began = False  # whether the head has
        self._in_body = False
        self._heads = 0  # complete ones
        self._head_bytes = 0  # of the head that is arriving
        self._framing_bytes = 0  # since the last byte of a body: chunk sizes, extensions, trailers
        self._chunks = 0  # of a body, in the last piece
        self._held = b""  # bytes that are not parsed yet
        self._problem: Problem | None = None  # why a callback stopped the parser
        self._refused = False
        self._answering: RequestResponseCycle | None = None  # whose answer is the next to be sent
        self._ahead: deque[Turn] = deque(maxlen=self._limits.pipelined + 1)  # of the last requests sent ahead

    # ---- callbacks of the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client connects.

        Unlike here, uvicorn asks the system for both addresses: nobody needs them, and while searches run,
        each system call costs a millisecond in which no other client can connect.
        """
        self.connections.add(self)
        self.transport, self.flow, self.scheme = transport, Flow(transport), "http"
        self._all.open += 1
        self._all.without_request[self] = None
        self._arm("head", self._limits.header_seconds, self._head_is_late)
        if not self._all.make_room(self):
            self._refuse(
                busy(f"the server has reached its limit of {self._limits.connections:,} connections"),
                linger=0,
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._all.open -= 1
        self._all.without_request.pop(self, None)
        self._held = b""
        for name in list(self._timers):
            self._disarm(name)
        if self._answering is not None:  # uvicorn only notifies the last pipelined request
            self._answering.disconnected = not self._answering.response_complete
            self._answering.message_event.set()
        self.pipeline.clear()
        for turn in self._ahead:
            turn.leave()
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Bytes arrived."""
        if self._held:
            self._held += data
        else:
            self._take(data)

    def _take(self, data: bytes) -> None:
        """Bytes go to the parser in pieces that cannot be much larger than a head may be.

        What follows an unanswered request waits for its turn among all that start: thousands of pipelined
        requests would otherwise be parsed in one go. So does a body in many small chunks, which are parsed
        slowly.
        """
        self._unset_keepalive_if_required()
        most = self._limits.header_bytes
        while data and not self._refused:
            if self._in_head and not self._began and data[0] in _LINE_ENDS:
                data = self._skip_empty_lines(data)
                continue
            in_chunks = self._in_body and self._chunks > _MANY_CHUNKS
            at_most = most + 1 - self._head_bytes if self._in_head else _SMALL_PIECE if in_chunks else most
            piece = data[:at_most]
            if self._in_head and (end := piece.find(_END_OF_HEAD)) >= 0:
                piece = piece[: end + len(_END_OF_HEAD)]
            data = data[len(piece) :]
            self._parse(piece)
            is_ahead = self._in_head and self.cycle is not None and not self.cycle.response_complete
            in_chunks = self._in_body and self._chunks > _MANY_CHUNKS
            if data and not self._refused and (is_ahead or in_chunks):
                self._held = data
                self.flow.holding = in_chunks
                self.flow.pause_reading()
                self._all.starts.begin(self._take_held)
                return

    def _skip_empty_lines(self, data: bytes) -> bytes:
        """Empty lines before a request are ignored (RFC 9112, 2.2), though as a part of its head.

        Each would otherwise be a piece for the parser.
        """
        rest = data.lstrip(_LINE_ENDS)
        self._head_bytes += len(data) - len(rest)
        self._check_head()
        return rest

    def _take_held(self) -> None:
        held, self._held = self._held, b""
        self.flow.holding = False
        if self.transport.is_closing():
            return
        self._take(held)
        cycle = self.cycle  # the body of a complete response is no longer received
        is_full = not cycle.response_complete and len(cycle.body) > HIGH_WATER_LIMIT if cycle else False
        if not self._held and not self.pipeline and not is_full:
            self.flow.resume_reading()

    def _parse(self, piece: bytes) -> None:
        heads, in_head, self._chunks = self._heads, self._in_head, 0
        try:
            self.parser.feed_data(_without_upgrade(piece) if in_head else piece)
        except httptools.HttpParserUpgrade:  # there is nothing to upgrade to: this request is the last
            self._finish()
            return
        except httptools.HttpParserError:
            problem = Problem(400, "bad_http", "the request is not valid HTTP/1.1", "send a valid request")
            self._refuse(self._problem or problem)
            return
        if self._in_head:
            # Of a head that began inside this piece only what follows is counted.
            self._head_bytes = self._head_bytes + len(piece) if in_head and heads == self._heads else 0
            self._check_head()
        elif self._chunks or heads != self._heads:
            self._framing_bytes = 0
        else:
            self._framing_bytes += len(piece)
            most = self._limits.header_bytes
            if self._framing_bytes > most:
                self._refuse(_large_head(f"{most:,} bytes between two parts of a body"))

    def _check_head(self) -> None:
        """Limit the size and the time of the head that is arriving."""
        most = self._limits.header_bytes
        if self._head_bytes > most:
            self._refuse(_large_head(f"{most:,} bytes"))
        elif (self._began or self._head_bytes) and "head" not in self._timers:
            self._arm("head", self._limits.header_seconds, self._head_is_late)

    def pause_writing(self) -> None:
        """The client reads more slowly than we write; its time starts now."""
        super().pause_writing()
        if "answer" not in self._timers:
            self._arm("answer", self._limits.answer_seconds, lambda: self.drop("slow_reader"))

    def resume_writing(self) -> None:
        """The client has read most of what was written."""
        super().resume_writing()
        if self._answering is None or self._answering.response_complete:
            self._disarm("answer")

    def shutdown(self) -> None:
        """The server stops: requests pipelined behind the current answer are not started."""
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.keep_alive = False
        else:
            super().shutdown()

    def timeout_keep_alive_handler(self) -> None:
        """No further request came."""
        self._close()

    # ---- callbacks of the parser

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._began = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header is complete, or a field after a chunked body, which nothing here reads.

        Nor does anything read cookies, but the framework would parse them, in some versions of Python slowly.
        """
        if not self._in_head or name.lower() == b"cookie":
            return
        most = self._limits.header_fields
        if len(self.headers) >= most:
            self._problem = _large_head(f"{most:,} header fields")
            raise self._problem
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """A request can be answered."""
        self._in_head, self._in_body, self._began = False, True, False
        self._heads += 1
        self._head_bytes = self._framing_bytes = 0
        self._disarm("head")
        if self.parser.should_upgrade() and any(name in _BODY_FIELDS for name, _ in self.headers):
            self._problem = Problem(
                400,
                "upgrade",
                "the request has a body and an Upgrade header; only HTTP/1.1 is supported",
                "send it without the Upgrade header (curl: --http1.1)",
            )
            raise self._problem
        coded = [value.strip().lower() for name, value in self.headers if name == b"transfer-encoding"]
        if coded:
            self._chunks = _MANY_CHUNKS + 1  # assumed of the first piece
        if coded not in ([], [b"chunked"]):  # the parser would take the coded bytes for the body
            self._problem = Problem(
                501,
                "coded",
                "the body has a transfer coding other than chunked",
                "send it without a transfer coding, or chunked",
            )
            raise self._problem
        if len(self.pipeline) >= self._limits.pipelined:
            self._problem = Problem(
                400,
                "pipelined",
                f"more than {self._limits.pipelined:,} requests were pipelined",
                "wait for responses",
            )
            raise self._problem
        self._all.without_request.pop(self, None)
        if self._all.crowded:
            self.scope["state"][CROWDED] = True
        self.scope["state"][ADMIT] = self._admit
        first = self.cycle is None or self.cycle.response_complete
        if not first:
            turn = self.scope["state"][TURN] = Turn(self._all.turns)
            self._ahead.append(turn)
        super().on_headers_complete()
        self.scope["state"][GONE] = partial(_is_gone, self.cycle)
        if first:
            self._answering = self.cycle
            self._all.without_request[self] = None  # until its body has arrived, which may never happen

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        """A request is next on its connection: it starts after earlier ones of other connections.

        /health waits only for other requests for /health, so that a busy server is not taken for a dead one.
        """
        urgent = cycle.scope["path"] == "/health"
        latest = self.loop.time() + self._limits.seconds

        def start() -> None:
            if cycle.disconnected:  # the client has already left: nothing is done for it
                self._all.count_error("disconnected")
                return
            if not urgent and self.loop.time() > latest:
                cycle.scope["state"][LATE] = True
            begin(cycle, app)

        begin = super()._start_asgi_task
        self._all.starts.begin(start, urgent)

    def on_body(self, body: bytes) -> None:
        """A part of a body."""
        self._chunks += 1
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has arrived completely."""
        self._in_head, self._in_body = True, False
        self._disarm("body")
        super().on_message_complete()
        if not self.cycle.response_complete:
            self._all.without_request.pop(self, None)
        else:  # the answer did not wait for the body
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    # ---- callbacks of the application

    def on_response_complete(self) -> None:
        """An answer is written, though perhaps not read."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if not self.flow.write_paused:
            self._disarm("answer")
        if self.transport.is_closing():
            self._close()
        elif self.cycle.response_complete:
            self._all.without_request[self] = None
            if self._in_body:  # the rest is discarded, and cannot go on forever
                self._arm("body", self._limits.idle_seconds, self._close)
        elif self._in_body and self._answering is self.cycle:  # the next in turn, not completely here
            self._all.without_request[self] = None

    def _admit(self) -> None:
        """Do not close this connection for others while the body of its request arrives."""
        self._all.without_request.pop(self, None)

    # ---- refusing and closing

    def drop(self, kind: str) -> None:
        """Close at once, and discard what is not read yet."""
        self._all.count_error(kind)
        self._refused = True
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _head_is_late(self) -> None:
        self._disarm("head")
        if self._heads == 0 and self._head_bytes == 0:  # connected and sent nothing
            self._all.count_error("silent")
            self._close()
            return
        limit = f"{self._limits.header_seconds:g} seconds"
        self._refuse(
            Problem(408, "slow_head", f"the headers did not arrive within {limit}", "send them without delay")
        )

    def _refuse(self, problem: Problem, linger: float = _LINGER) -> None:
        """Answer with a problem and close; an earlier request of this connection is answered first."""
        self._refused = True
        self._disarm("head")
        self._all.count_error(problem.kind)
        self.pipeline.clear()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            if answering.response_started or not (self._in_body and answering is self.cycle):
                self._finish()
                return
            answering.disconnected = True  # its body cannot be read: this is its answer
            answering.message_event.set()
        given = next((value for name, value in self.headers or () if name == b"origin"), b"")
        self.transport.write(_as_bytes(problem, let_read(given.decode("latin-1"), self._all.origins)))
        if linger and self.transport.can_write_eof():
            self.transport.write_eof()
            self._all.without_request[self] = None
            self._arm("end", linger, self.transport.abort)
        else:
            self._close()

    def _finish(self) -> None:
        """Close when the current answer is sent."""
        self._refused = True
        if self._answering is None or self._answering.response_complete:
            self._close()
        else:
            self._answering.keep_alive = False

    def _close(self) -> None:
        """Close when the client has read what was written, or after a timeout."""
        self.transport.close()
        if "end" not in self._timers:
            self._arm("end", self._limits.answer_seconds, self.transport.abort)

    def _arm(self, name: str, seconds: float, then: Callable[[], object]) -> None:
        self._disarm(name)
        self._timers[name] = self.loop.call_later(seconds, then)

    def _disarm(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()


def _is_gone(cycle: RequestResponseCycle) -> bool:
    return cycle.disconnected


def _large_head(limit: str) -> Problem:
    return Problem(
        431, "large_head", f"the headers exceed the limit of {limit}", "send fewer or shorter ones"
    )


def _as_bytes(problem: Problem, more: Mapping[str, str]) -> bytes:
    """A complete HTTP response with additional headers, for requests that never reach the application."""
    request_id = make_request_id()
    body = json.dumps(problem.to_json(request_id)).encode()
    headers = {
        "content-type": MEDIA_TYPE,
        "content-length": str(len(body)),
        "x-content-type-options": "nosniff",
        "x-request-id": request_id,
        **(problem.headers or {}),
        **more,
        "connection": "close",
    }
    lines = b"".join(f"{name}: {value}\r\n".encode("latin-1") for name, value in headers.items())
    return STATUS_LINE[problem.status_code] + lines + b"\r\n" + body
