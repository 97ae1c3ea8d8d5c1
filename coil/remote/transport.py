"""Transport: sends requests over persistent connections and translates network errors."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

from coil.errors import InputError, RemoteProblem, require
from coil.remote.messages import ANOTHER, Ask, error_of
from coil.texts.questions import check_number, show

if TYPE_CHECKING:
    import httpx

# An unused connection is closed by `coil serve` after 5 seconds: a request that is sent just then is lost.
KEPT_SECONDS = 2.0
MOST_SECONDS = 1e6  # of a timeout: what every system can wait for
_REMEDY = "check the address, and that `coil serve` is running there"
_UNKNOWN = "if no other client writes, it is safe to send it again"


def http_library() -> Any:
    """httpx, or how to install it."""
    return require("httpx", "client")


def make_client(kind: str, address: str, token: str | None, timeout: float) -> Any:
    """A client of httpx: "Client" or "AsyncClient"."""
    httpx = http_library()
    headers = {} if token is None else {"Authorization": b"Bearer " + _token_bytes(token)}
    most = check_number("timeout", timeout, "write seconds, such as timeout=60", 0.001, MOST_SECONDS)
    limits = httpx.Limits(max_connections=100, keepalive_expiry=KEPT_SECONDS)
    try:
        return getattr(httpx, kind)(base_url=address, headers=headers, timeout=most, limits=limits)
    except httpx.InvalidURL as error:
        reason = f"{address[:200]!r} is not the address of a server: {error}"
        raise InputError(reason, "use an address such as http://127.0.0.1:8080") from error


def _token_bytes(token: object) -> bytes:
    """A token as it is sent, in UTF-8; a line break in it would end the header."""
    if not isinstance(token, str) or not token or not token.isprintable() or " " in token:
        found = "a string with spaces, line breaks or other invisible characters"
        found = found if isinstance(token, str) and token else "empty" if token == "" else show(token)
        raise InputError(f"the token is {found}; expected one word", "strip() a token read from a file")
    return token.encode()


def send(client: httpx.Client, ask: Ask) -> dict[str, Any]:
    """The answer to a request."""
    end = _end(client)
    try:
        try:
            return _read(*_exchange(client, ask, end))
        except _closed() as error:
            if ask.changes:
                raise _open_end(client, error) from error
            return _read(*_exchange(client, ask, end))
    except http_library().HTTPError as error:
        raise _failed(client, ask, error) from error


async def send_async(client: httpx.AsyncClient, ask: Ask) -> dict[str, Any]:
    """The same, to be awaited."""
    end = _end(client)
    try:
        try:
            return _read(*await _exchange_async(client, ask, end))
        except _closed() as error:
            if ask.changes:
                raise _open_end(client, error) from error
            return _read(*await _exchange_async(client, ask, end))
    except http_library().HTTPError as error:
        raise _failed(client, ask, error) from error


def _exchange(client: httpx.Client, ask: Ask, end: float) -> tuple[httpx.Response, bytes]:
    answer = client.send(_request(client, ask, end), stream=True)
    try:
        parts = []
        for part in answer.iter_bytes():
            parts.append(part)
            _check_time(end)
    finally:
        answer.close()
    return answer, b"".join(parts)


async def _exchange_async(client: httpx.AsyncClient, ask: Ask, end: float) -> tuple[httpx.Response, bytes]:
    answer = await client.send(_request(client, ask, end), stream=True)
    try:
        parts = []
        async for part in answer.aiter_bytes():
            parts.append(part)
            _check_time(end)
    finally:
        await answer.aclose()
    return answer, b"".join(parts)


def _end(client: Any) -> float:
    """When the time of a request is over, including a second attempt."""
    return time.monotonic() + float(client.timeout.read)


def _check_time(end: float) -> None:
    """httpx limits the time between two parts of a response, not that of all parts."""
    if time.monotonic() > end:
        raise http_library().ReadTimeout("the response is not complete")


def _closed() -> tuple[type[Exception], ...]:
    """What is raised if the server closes a connection while a request is sent, or before its answer.

    Then it may be that the server never had the request. One that only reads is sent once more.
    """
    httpx = http_library()
    return (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def _request(client: Any, ask: Ask, end: float) -> Any:
    headers = {"Content-Type": ask.media_type} if ask.content is not None else {}
    sent = {"params": dict(ask.params) or None, "content": ask.content, "headers": headers}
    return client.build_request(ask.method, ask.path, timeout=max(end - time.monotonic(), 0.001), **sent)


def _read(answer: httpx.Response, content: bytes) -> dict[str, Any]:
    if not answer.is_success:
        raise error_of(answer.status_code, content)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise RemoteProblem("the server's response is not JSON", ANOTHER) from error
    if not isinstance(value, dict):
        raise RemoteProblem("the server's response is not a JSON object", ANOTHER)
    return value


def _failed(client: Any, ask: Ask, error: Exception) -> RemoteProblem:
    httpx = http_library()
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        what = f"{client.base_url} did not respond within {client.timeout.read:g} seconds"
        if ask.changes:
            return RemoteProblem(f"{what}; it is unknown whether the change was made", _UNKNOWN)
        return RemoteProblem(what, "ask for less, or connect with a longer timeout")
    return RemoteProblem(f"{client.base_url} cannot be reached: {error or type(error).__name__}", _REMEDY)


def _open_end(client: Any, error: Exception) -> RemoteProblem:
    what = f"{client.base_url} closed the connection: {error or type(error).__name__}"
    return RemoteProblem(f"{what}; it is unknown whether the change was made", _UNKNOWN)
