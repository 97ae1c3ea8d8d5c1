"""Transport: sends requests over persistent connections and translates network errors."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, closing
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from coil.errors import InputError, RemoteProblem, require
from coil.forks import make_lock
from coil.remote.messages import Ask, TooLarge, TooMany, error_of, unreadable
from coil.texts.questions import check_number, show

if TYPE_CHECKING:
    import httpx

# `coil serve` closes idle connections after 5 seconds; a request that is sent at that moment would be lost.
KEPT_SECONDS = 2.0
MOST_SECONDS = 1e6  # maximum timeout, which every system supports
MOST_BYTES = 512 << 20  # of a response, decompressed
_ENCODINGS = ("gzip", "deflate")  # at most 66 MB per piece of 64 KB; others could exceed any memory at once
_MOST_CUT = 50  # requests that were cancelled or timed out, until a new client takes over
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
        headers = {"Accept-Encoding": ", ".join(_ENCODINGS).encode()}
        if token is not None:
            headers["Authorization"] = b"Bearer " + _token_bytes(token)
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
        self._requests: dict[Any, int] = {}  # in progress, of each AsyncClient
        self._cut = 0  # of the current one
        self._closing: set[asyncio.Task[None]] = set()

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

    def begin(self) -> Any:
        """The AsyncClient for a request; `end` must follow."""
        client = self.client
        with self._making:
            self._requests[client] = self._requests.get(client, 0) + 1
        return client

    def end(self, client: Any, is_cut: bool) -> None:
        """A request has ended. About one in a hundred that are cut short leaves a connection of httpx taken
        forever, so that no further request could be sent in the end: a new client takes over before."""
        with self._making:
            self._requests[client] -= 1
            self._cut += is_cut and client is self._client
            if self._cut >= _MOST_CUT and not self._closed:
                self._client, self._cut = self._make(), 0
            if self._requests[client]:
                return
            del self._requests[client]
            if client is self._client:
                return
        task = asyncio.get_running_loop().create_task(client.aclose())
        self._closing.add(task)  # asyncio itself keeps no reference
        task.add_done_callback(self._closing.discard)

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
        given["event_hooks"] = {"response": [_HOOKS[kind]]}
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


def _stay(answer: httpx.Response) -> None:
    """Forget where a redirect leads: httpx would parse it, and fail, although it is not followed."""
    answer.headers.pop("Location", None)


async def _stay_async(answer: httpx.Response) -> None:
    _stay(answer)


_HOOKS: dict[str, Any] = {"Client": _stay, "AsyncClient": _stay_async}


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
            return _exchange(client, ask, end)
        except _closed() as error:
            if link.is_closed:
                raise _closed_link() from error
            if ask.changes:
                raise _open_end(link, error) from error
            return _exchange(client, ask, end)
    except http_library().HTTPError as error:
        raise _failed(link, client, ask, error) from error
    except RuntimeError as error:  # from httpx, if another thread has closed the client
        if link.is_closed:
            raise _closed_link() from error
        raise


async def send_async(link: Link, ask: Ask) -> dict[str, Any]:
    """The async version."""
    client = link.begin()
    end, is_cut = _end(client), False
    try:
        try:
            return await _exchange_async(client, ask, end)
        except _closed() as error:
            if link.is_closed:
                raise _closed_link() from error
            if ask.changes:
                raise _open_end(link, error) from error
            return await _exchange_async(client, ask, end)
    except http_library().HTTPError as error:
        is_cut = isinstance(error, http_library().TimeoutException)
        raise _failed(link, client, ask, error) from error
    except asyncio.CancelledError:
        is_cut = True
        raise
    except RuntimeError as error:  # from httpx, if another thread has closed the client
        if link.is_closed:
            raise _closed_link() from error
        if "different event loop" in str(error):
            raise InputError(
                "the index was connected in another event loop", "connect in each event loop"
            ) from error
        raise
    finally:
        link.end(client, is_cut)


def send_all(link: Link, ask: Ask) -> Iterator[dict[str, Any]]:
    """Send a request, split into parts if it exceeds a limit of the server; yields each response when it
    arrives, so that those before an error are known."""
    try:
        answer = send(link, ask)
    except (TooLarge, TooMany):
        if ask.halves is None:
            raise
        for half in ask.halves():
            yield from send_all(link, half)
    else:
        yield answer


async def send_all_async(link: Link, ask: Ask) -> AsyncIterator[dict[str, Any]]:
    """The async version."""
    try:
        answer = await send_async(link, ask)
    except (TooLarge, TooMany):
        if ask.halves is None:
            raise
        for half in ask.halves():
            async for answer in send_all_async(link, half):
                yield answer
    else:
        yield answer


def _exchange(client: httpx.Client, ask: Ask, end: float) -> dict[str, Any]:
    from coil.remote.deadlines import deadline

    request = _request(client, ask)
    request.extensions["timeout"] = deadline(end)
    answer = client.send(request, stream=True)
    with closing(answer):  # and its connection, unless the response was read to its end
        response = _Response(ask, answer)
        for piece in answer.iter_bytes():
            response.add(piece)
    return response.read()


async def _exchange_async(client: httpx.AsyncClient, ask: Ask, end: float) -> dict[str, Any]:
    left = max(end - time.monotonic(), 0.001)
    try:
        return (await asyncio.wait_for(_receive(client, ask, left), left)).read()
    except asyncio.TimeoutError:
        raise http_library().ReadTimeout("the response is not complete") from None


async def _receive(client: httpx.AsyncClient, ask: Ask, left: float) -> _Response:
    request = _request(client, ask, timeout=left)
    answer = await client.send(request, stream=True)
    async with aclosing(answer):
        response = _Response(ask, answer)
        async for piece in answer.aiter_bytes():
            response.add(piece)
    return response


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


class _Response:
    """A response while it arrives; one that is too large is not read to its end."""

    def __init__(self, ask: Ask, answer: httpx.Response) -> None:
        self._changes, self._answer, self._content = ask.changes, answer, bytearray()
        encoding = answer.headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity", *_ENCODINGS):
            raise unreadable("the server's response cannot be decompressed", ask.changes)

    def add(self, piece: bytes) -> None:
        """Add a decompressed piece."""
        self._content += piece
        if len(self._content) > MOST_BYTES:
            what = f"the server's response exceeds the limit of {MOST_BYTES >> 20} MiB"
            raise unreadable(what, self._changes)

    def read(self) -> dict[str, Any]:
        """The value of the complete response."""
        changes = self._changes
        if not self._answer.is_success:
            raise error_of(self._answer.status_code, self._content, changes)
        try:
            value = json.loads(self._content)
        except (ValueError, RecursionError) as error:
            raise unreadable("the server's response is not JSON", changes) from error
        if not isinstance(value, dict):
            raise unreadable("the server's response is not a JSON object", changes)
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
        return unreadable("the server's response cannot be decompressed", ask.changes)
    return RemoteProblem(f"{link.address} cannot be reached: {error or type(error).__name__}", _REMEDY)


def _open_end(link: Link, error: Exception) -> RemoteProblem:
    what = f"{link.address} closed the connection: {error or type(error).__name__}"
    return RemoteProblem(f"{what}; it is unknown whether the change was made", _UNKNOWN)
