"""Transport: sends requests over persistent connections and translates network errors."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from coil.errors import InputError, RemoteProblem, require
from coil.forks import make_lock
from coil.remote.messages import ANOTHER, Ask, TooLarge, TooMany, error_of
from coil.texts.questions import check_number, show

if TYPE_CHECKING:
    import httpx

# `coil serve` closes idle connections after 5 seconds; a request that is sent at that moment would be lost.
KEPT_SECONDS = 2.0
MOST_SECONDS = 1e6  # maximum timeout, which every system supports
_REMEDY = "check the address, and that `coil serve` is running there"
_UNKNOWN = "if no other client writes, it is safe to send it again"


def http_library() -> Any:
    """The httpx module; if it is missing, the error says how to install it."""
    return require("httpx", "client")


class Link:
    """The connections to a server, through a Client or an AsyncClient of httpx.

    A forked process opens its own connections: if two processes shared one, each could receive the responses
    to the other.
    """

    def __init__(
        self, kind: Literal["Client", "AsyncClient"], address: str, token: str | None, timeout: float
    ) -> None:
        httpx = http_library()
        headers = {} if token is None else {"Authorization": b"Bearer " + _token_bytes(token)}
        most = check_number("timeout", timeout, "write seconds, such as timeout=60", 0.001, MOST_SECONDS)
        try:
            url = httpx.URL(address)
        except httpx.InvalidURL as error:
            reason = f"{address[:200]!r} is not the address of a server: {error}"
            raise InputError(reason, "use an address such as http://127.0.0.1:8080") from error
        if url.userinfo and token is not None:
            raise InputError(
                "the address contains a user name, and a token was given: only one of them can be sent",
                "omit one of them",
            )
        self.address = str(url.copy_with(userinfo=b"")).rstrip("/")
        """The address without a password, which messages and saved retrievers would reveal."""
        self.has_secret = token is not None or bool(url.userinfo)
        self.timeout = most
        self._make = partial(_make_client, kind, url, headers, most)
        self._making = make_lock()
        self._client, self._process, self._closed = self._make(), os.getpid(), False

    def __reduce__(self) -> tuple[Any, ...]:
        raise InputError("an open connection cannot be pickled", "connect in the other process")

    @property
    def client(self) -> Any:
        """The client of this process."""
        with self._making:
            if self._closed:
                raise _closed_link()
            if self._process != os.getpid():
                self._client, self._process = self._make(), os.getpid()
            return self._client

    def take_client(self) -> Any | None:
        """The client, to be closed; None if another process created it, or if it was taken before."""
        with self._making:
            own = not self._closed and self._process == os.getpid()
            self._closed = True
            return self._client if own else None

    @property
    def is_closed(self) -> bool:
        """Whether the link is closed."""
        return self._closed


def _make_client(kind: str, url: httpx.URL, headers: dict[str, bytes], timeout: float) -> Any:
    httpx = http_library()
    limits = httpx.Limits(max_connections=100, keepalive_expiry=KEPT_SECONDS)
    given: dict[str, Any] = {"verify": url.scheme == "https", "limits": limits}
    try:
        if _is_this_machine(url.host):  # a proxy cannot reach this machine's loopback address
            transport = {"Client": "HTTPTransport", "AsyncClient": "AsyncHTTPTransport"}[kind]
            given = {"transport": getattr(httpx, transport)(**given)}
        client = getattr(httpx, kind)(base_url=url, headers=headers, timeout=timeout, **given)
    except (ImportError, ValueError, OSError, httpx.InvalidURL) as error:
        raise RemoteProblem(
            f"the proxy or the certificates of the environment cannot be used: {error}",
            "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR",
        ) from error
    if kind == "Client":  # a coroutine is stopped at its deadline
        from coil.remote.deadlines import keep_deadlines

        keep_deadlines(client)
    return client


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _closed_link() -> InputError:
    return InputError("the index is closed", "connect again with coil.connect")


def _token_bytes(token: object) -> bytes:
    """The token in UTF-8; a line break in it would end the header."""
    if not isinstance(token, str) or not token or not token.isprintable() or " " in token:
        found = "a string with spaces, line breaks or other invisible characters"
        found = found if isinstance(token, str) and token else "empty" if token == "" else show(token)
        raise InputError(f"the token is {found}; expected one word", "strip() a token read from a file")
    return token.encode()


def send(link: Link, ask: Ask) -> dict[str, Any]:
    """Send a request and return the response."""
    client = link.client
    end = _end(client)
    try:
        try:
            return _read(_exchange(client, ask, end))
        except _closed() as error:
            if link.is_closed:
                raise _closed_link() from error
            if ask.changes:
                raise _open_end(link, error) from error
            return _read(_exchange(client, ask, end))
    except http_library().HTTPError as error:
        raise _failed(link, client, ask, error) from error
    except RuntimeError as error:  # from httpx, if another thread has closed the client
        if link.is_closed:
            raise _closed_link() from error
        raise


async def send_async(link: Link, ask: Ask) -> dict[str, Any]:
    """The async version."""
    client = link.client
    end = _end(client)
    try:
        try:
            return _read(await _exchange_async(client, ask, end))
        except _closed() as error:
            if link.is_closed:
                raise _closed_link() from error
            if ask.changes:
                raise _open_end(link, error) from error
            return _read(await _exchange_async(client, ask, end))
    except http_library().HTTPError as error:
        raise _failed(link, client, ask, error) from error
    except RuntimeError as error:  # from httpx, if another thread has closed the client
        if link.is_closed:
            raise _closed_link() from error
        raise


def send_all(link: Link, ask: Ask) -> list[dict[str, Any]]:
    """Send a request, split into parts if it exceeds a limit of the server, and return the responses."""
    try:
        return [send(link, ask)]
    except (TooLarge, TooMany):
        if ask.halves is None:
            raise
    return [answer for half in ask.halves() for answer in send_all(link, half)]


async def send_all_async(link: Link, ask: Ask) -> list[dict[str, Any]]:
    """The async version."""
    try:
        return [await send_async(link, ask)]
    except (TooLarge, TooMany):
        if ask.halves is None:
            raise
    return [answer for half in ask.halves() for answer in await send_all_async(link, half)]


def _exchange(client: httpx.Client, ask: Ask, end: float) -> httpx.Response:
    from coil.remote.deadlines import deadline

    request = _request(client, ask)
    request.extensions["timeout"] = deadline(end)
    return client.send(request)


async def _exchange_async(client: httpx.AsyncClient, ask: Ask, end: float) -> httpx.Response:
    left = max(end - time.monotonic(), 0.001)
    try:
        return await asyncio.wait_for(client.send(_request(client, ask, timeout=left)), left)
    except asyncio.TimeoutError:
        raise http_library().ReadTimeout("the response is not complete") from None


def _end(client: Any) -> float:
    """The deadline of a request, including a second attempt."""
    return time.monotonic() + float(client.timeout.read)


def _closed() -> tuple[type[Exception], ...]:
    """The exceptions raised if the server closes the connection before its response is complete.

    The server may never have received the request. A request that only reads is sent once more.
    """
    httpx = http_library()
    return (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)


def _request(client: Any, ask: Ask, **more: Any) -> Any:
    headers = {"Content-Type": ask.media_type} if ask.content is not None else {}
    sent = {"params": dict(ask.params) or None, "content": ask.content, "headers": headers}
    return client.build_request(ask.method, ask.path, **sent, **more)


def _read(answer: httpx.Response) -> dict[str, Any]:
    if not answer.is_success:
        raise error_of(answer.status_code, answer.content)
    try:
        value = json.loads(answer.content)
    except (ValueError, RecursionError) as error:
        raise RemoteProblem("the server's response is not JSON", ANOTHER) from error
    if not isinstance(value, dict):
        raise RemoteProblem("the server's response is not a JSON object", ANOTHER)
    return value


def _failed(link: Link, client: Any, ask: Ask, error: Exception) -> RemoteProblem:
    httpx = http_library()
    if isinstance(error, httpx.ReadTimeout | httpx.WriteTimeout):
        what = f"{link.address} did not respond within {client.timeout.read:g} seconds"
        if ask.changes:
            remedy = f"connect with a longer timeout; {_UNKNOWN}"
            return RemoteProblem(f"{what}; it is unknown whether the change was made", remedy)
        return RemoteProblem(what, "ask for less, or connect with a longer timeout")
    if isinstance(error, httpx.DecodingError):
        what = "the server's response cannot be decompressed"
        if ask.changes:
            what += "; it is unknown whether the change was made"
        return RemoteProblem(what, ANOTHER)
    return RemoteProblem(f"{link.address} cannot be reached: {error or type(error).__name__}", _REMEDY)


def _open_end(link: Link, error: Exception) -> RemoteProblem:
    what = f"{link.address} closed the connection: {error or type(error).__name__}"
    return RemoteProblem(f"{what}; it is unknown whether the change was made", _UNKNOWN)
