"""Transport: sends requests over persistent connections and translates network errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coil.errors import InputError, RemoteProblem, require
from coil.remote.messages import Ask, error_of
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
    headers = {"Content-Type": ask.media_type} if ask.content is not None else {}
    sent = {"params": dict(ask.params) or None, "content": ask.content, "headers": headers}
    return client.build_request(ask.method, ask.path, **sent)


def _read(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise error_of(answer.status_code, answer.content)
    try:
        value = answer.json()
    except ValueError as error:
        raise RemoteProblem("the server's response is not JSON", "check that it is `coil serve`") from error
    return dict(value)


def _unreachable(client: Any, error: Exception) -> RemoteProblem:
    return RemoteProblem(f"{client.base_url} cannot be reached: {error or type(error).__name__}", _REMEDY)


def _open_end(client: Any, error: Exception) -> RemoteProblem:
    what = f"{client.base_url} closed the connection: {error or type(error).__name__}"
    return RemoteProblem(f"{what}; it is unknown whether the change was made", _UNKNOWN)
