"""Deadlines of whole requests, for httpx clients that wait in a thread.

The timeouts of httpx are those of one read or write: a server that sends the head of a response byte by byte
would never exceed them. Here, a request carries its deadline in their place, and each read, write and connect
gets the time that is left.
"""

from __future__ import annotations

import time
from typing import Any

import httpcore
import httpx

_PIECE = 16 << 10  # bytes of a request that are written under one timeout


def keep_deadlines(client: httpx.Client) -> None:
    """Let a client treat the timeouts of its requests as deadlines; see `deadline`."""
    # httpcore lets its caller choose a backend, but httpx does not hand it on.
    for transport in (client._transport, *client._mounts.values()):
        if isinstance(transport, httpx.HTTPTransport):
            pool: Any = transport._pool
            pool._network_backend = _Backend(pool._network_backend)


def deadline(end: float) -> dict[str, float]:
    """The timeouts of a request that must have its whole response at `end`, in time.monotonic().

    The wait for a free connection happens before anything is sent, and has a timeout of its own.
    """
    return {"connect": end, "write": end, "read": end, "pool": max(end - time.monotonic(), 0.001)}


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *given: Any, **more: Any
    ) -> httpcore.NetworkStream:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._backend.connect_tcp(host, port, left, *given, **more), timeout)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _Stream(httpcore.NetworkStream):
    """A connection. A call without a deadline, as in greeting a SOCKS proxy, has that of connecting."""

    def __init__(self, stream: httpcore.NetworkStream, connecting: float | None) -> None:
        self._stream, self._connecting = stream, connecting

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        end = self._connecting if timeout is None else timeout
        return self._stream.read(max_bytes, _left(end, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        end = self._connecting if timeout is None else timeout
        whole = memoryview(buffer)
        for begin in range(0, len(whole), _PIECE):
            self._stream.write(bytes(whole[begin : begin + _PIECE]), _left(end, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> Any:
        left = _left(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left), self._connecting)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def _left(end: float | None, late: type[Exception]) -> float | None:
    """The seconds that are left until a deadline; `late` is raised if there are none."""
    if end is None:
        return None
    left = end - time.monotonic()
    if left <= 0:
        raise late("the response is not complete")
    return left
