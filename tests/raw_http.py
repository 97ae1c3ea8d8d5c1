"""Requests byte by byte, as no HTTP library would send them."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.serving import Running


@dataclass(frozen=True)
class RawAnswer:
    """One answer of a connection."""

    status: int
    headers: dict[str, str]
    body: bytes

    def problem(self) -> dict[str, Any]:
        """The body of an error, which must be a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        value: dict[str, Any] = json.loads(self.body)
        assert value["status"] == self.status
        return value


@contextmanager
def connected(server: Running, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """A plain connection."""
    address = urlsplit(server.url)
    connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    with connection:
        connection.settimeout(20)
        connection.connect((address.hostname, address.port))
        yield connection


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes."""
    received = b""
    with suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            received += part
    return received


def read_answer(connection: socket.socket, method: str = "GET") -> RawAnswer:
    """The next answer; nothing is read beyond it."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        if not byte:
            raise ConnectionError(f"closed after {head!r}")
        head += byte
    lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if line)
    status, body = int(lines[0].split()[1]), b""
    length = 0 if method == "HEAD" or status == 100 else int(headers["content-length"])
    while len(body) < length:
        part = connection.recv(length - len(body))
        if not part:
            raise ConnectionError("closed inside a body")
        body += part
    return RawAnswer(status, headers, body)


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes, having sent nothing more."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def wait_until(holds: Any, seconds: float = 20.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.01)


def errors(server: Running, kind: str) -> int:
    """How many requests or connections were refused for this reason."""
    name = f'coil_errors_total{{kind="{kind}"}} '
    text = server.client.get("/metrics").text
    return int(float(text.split(name)[1].split()[0])) if name in text else 0
