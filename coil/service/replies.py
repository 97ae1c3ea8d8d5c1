"""Reply: a JSON response that is written and sent in pieces, so that large responses and slow clients cost
little.

A worker adds a few hits at a time and stops at the limit of bytes or at the deadline. All pending replies
also share a limit of bytes.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coil.errors import SearchTimeout
from coil.service.problems import Problem, busy

PIECE = 1 << 16  # bytes that are kept together
_AT_ONCE = 2 * PIECE  # bytes at most that are given to the transport together
_HITS = 16  # that are written together
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


class UnsentBytes:
    """The bytes of all replies that are written but not yet sent. Replies of one piece are not counted."""

    def __init__(self, most: int) -> None:
        self._most, self._now = most, 0
        self._turn = threading.Lock()

    @property
    def now(self) -> int:
        """The current number of bytes."""
        return self._now

    def take(self, n: int) -> None:
        """Count n more bytes, unless they exceed the limit."""
        with self._turn:
            if self._now + n > self._most:
                raise busy(f"pending responses exceed the limit of {self._most:,} bytes")
            self._now += n

    def give_back(self, n: int) -> None:
        """Release bytes that were sent or are no longer wanted."""
        with self._turn:
            self._now -= n


class Reply:
    """One answer. It is closed when it is sent, cannot be finished, or is no longer referenced."""

    def __init__(self, most: int, unsent: UnsentBytes, deadline: float = math.inf) -> None:
        """`most` bytes, finished before `deadline`, a time of `time.monotonic`."""
        self.pieces: deque[bytes] = deque()
        self.length = 0
        self._most, self._unsent, self._deadline = most, unsent, deadline
        self._taken = 0
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    def add(self, value: Any) -> None:
        """Any JSON value."""
        self._check(0)
        self.add_bytes(_ENCODER.encode(value).encode())

    def add_answer(self, answer: dict[str, Any]) -> None:
        """The answer to a query, a few hits at a time; the bytes are those of the whole object."""
        before = "{"
        for key, value in answer.items():
            self.add_bytes(f"{before}{_ENCODER.encode(key)}: ".encode())
            if key == "hits":
                self._add_hits(value)
            else:
                self.add(value)
            before = ", "
        self.add_bytes(b"}")

    def _add_hits(self, hits: list[dict[str, Any]]) -> None:
        self.add_bytes(b"[")
        begin, count = 0, 1
        while begin < len(hits):
            some = hits[begin : begin + count]
            self._check_texts(some)
            written = _ENCODER.encode(some)[1:-1].encode()
            self.add_bytes(b", " if begin else b"")
            self.add_bytes(written)
            begin += count
            # Nothing else runs while hits are encoded: those with large fields are encoded one by one.
            count = min(_HITS, 2 * count, max(1, PIECE * len(some) // len(written)))
        self.add_bytes(b"]")

    def _check_texts(self, hits: list[dict[str, Any]]) -> None:
        """Whether these hits can fit at all: each character takes a byte or more."""
        self._check(sum(len(hit["text"]) for hit in hits))

    def add_bytes(self, part: bytes) -> None:
        """Bytes that are JSON already."""
        self._check(len(part))
        self.length += len(part)
        self._parts.append(part)
        self._parts_bytes += len(part)
        if self._parts_bytes >= PIECE:
            try:
                self._unsent.take(self._parts_bytes)
            except Problem:
                self.close()
                raise
            self._taken += self._parts_bytes
            self._end_piece()

    def finish(self) -> Reply:
        """End the reply: nothing more is added."""
        self._end_piece()
        return self

    def close(self) -> None:
        """Discard what is not sent."""
        taken, self._taken = self._taken, 0
        self.pieces.clear()
        self._parts.clear()
        if taken:
            self._unsent.give_back(taken)

    def __del__(self) -> None:  # the worker may finish a reply after its client has gone
        self.close()

    def _end_piece(self) -> None:
        self.pieces.append(b"".join(self._parts))
        self._parts.clear()
        self._parts_bytes = 0

    def _check(self, more: int) -> None:
        if self.length + more > self._most:
            self.close()
            raise large_answer(self._most)
        if time.monotonic() > self._deadline:
            self.close()
            raise SearchTimeout("writing the response exceeded the time limit", "request less at a time")


def large_answer(most: int) -> Problem:
    """An answer beyond the limit."""
    return Problem(
        413,
        "large_answer",
        f"the response exceeds the limit of {most:,} bytes",
        "request fewer hits, or send fewer queries at a time",
    )


class ReplyResponse(Response):
    """Sends a reply no faster than the client reads it."""

    media_type = "application/json"

    def __init__(self, reply: Reply) -> None:
        super().__init__(headers={"content-length": str(reply.length)})
        self._reply = reply

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send head and body."""
        reply = self._reply
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            while reply.pieces:
                piece = reply.pieces.popleft()
                for begin in range(0, max(len(piece), 1), _AT_ONCE):
                    part = piece[begin : begin + _AT_ONCE]
                    more = bool(reply.pieces) or begin + _AT_ONCE < len(piece)
                    await send({"type": "http.response.body", "body": part, "more_body": more})
        finally:
            reply.close()
