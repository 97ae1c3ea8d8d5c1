"""Transport: requests over connections that are kept, and what goes wrong on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coil.errors import RemoteProblem, require
from coil.remote.messages import Ask, error_of

if TYPE_CHECKING:
    import httpx

# An unused connection is closed by `coil serve` after 5 seconds: a request that is sent just then is lost.
KEPT_SECONDS = 2.0
_REMEDY = "check the address, and that `coil serve` is running there"
_UNKNOWN = "send it again: a document takes the place of the one with its id, and what is deleted stays so"


def http_library() -> Any:
    """httpx, or how to install it."""
    return require("httpx", "client")


def settings(address: str, token: str | None, timeout: float) -> dict[str, Any]:
    """What a client of httpx is made with."""
    headers = {"Authorization": f"Bearer {token}"} if token is not None else {}
    limits = http_library().Limits(max_connections=100, keepalive_expiry=KEPT_SECONDS)
    return {"base_url": address, "headers": headers, "timeout": timeout, "limits": limits}


def send(client: httpx.Client, ask: Ask) -> dict[str, Any]:
    """The answer to a request."""
    try:
        try:
            answer = client.send(_request(client, ask))
        except _closed() as error:
            if ask.changes:
                raise _open_end(client, error) from error
            answer = client.send(_request(client, ask))
    except http_library().HTTPError as error:
        raise _unreachable(client, error) from error
    return _read(answer)


async def send_async(client: httpx.AsyncClient, ask: Ask) -> dict[str, Any]:
    """The same, to be awaited."""
    try:
        try:
            answer = await client.send(_request(client, ask))
        except _closed() as error:
            if ask.changes:
                raise _open_end(client, error) from error
            answer = await client.send(_request(client, ask))
    except http_library().HTTPError as error:
        raise _unreachable(client, error) from error
    return _read(answer)


def _closed() -> tuple[type[Exception], ...]:
    """What is raised if the server closes a connection while a request is sent, or before its answer.

    Then it may be that the server never had the request. One that only reads is sent once more.
    """
    httpx = http_library()
    return (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def _request(client: Any, ask: Ask) -> Any:
    headers = {"Content-Type": "application/x-ndjson"} if ask.content is not None else {}
    sent = {"params": dict(ask.params) or None, "json": ask.json, "content": ask.content, "headers": headers}
    return client.build_request(ask.method, ask.path, **sent)


def _read(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise error_of(answer.status_code, answer.content)
    try:
        value = answer.json()
    except ValueError as error:
        raise RemoteProblem("the server's answer is not JSON", "is it `coil serve`?") from error
    return dict(value)


def _unreachable(client: Any, error: Exception) -> RemoteProblem:
    return RemoteProblem(f"{client.base_url} cannot be reached: {error or type(error).__name__}", _REMEDY)


def _open_end(client: Any, error: Exception) -> RemoteProblem:
    what = f"{client.base_url} closed the connection: {error or type(error).__name__}"
    return RemoteProblem(f"{what}; whether the change was made is not known", _UNKNOWN)
