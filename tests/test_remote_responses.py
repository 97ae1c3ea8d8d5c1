"""Responses that no `coil serve` gives: redirects, and bodies that are larger than any answer."""

from __future__ import annotations

import asyncio
import gzip
import socket
import threading
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import pytest

import coil
from coil.errors import InputError, RemoteProblem
from coil.remote import transport
from tests.test_remote_servers import LISTED, serving, whole

_UNKNOWN = "it is unknown whether the change was made"


def _ask(url: str, changes: bool) -> None:
    with coil.connect(url, timeout=10) as index:
        index.delete(["x"]) if changes else index.search("river")


def _ask_async(url: str, changes: bool) -> None:
    async def run() -> None:
        async with coil.connect_async(url, timeout=10) as index:
            await (index.delete(["x"]) if changes else index.search("river"))

    asyncio.run(run())


_Ask = Callable[[str, bool], None]
_both = pytest.mark.parametrize("ask", [_ask, _ask_async])


def _after_names(answer: bytes) -> Callable[[str, socket.socket], bool]:
    """A server that has an index, and gives this answer to whatever is asked of it."""

    def answer_one(address: str, connection: socket.socket) -> bool:
        connection.sendall(whole(LISTED) if address == "indexes" else answer)
        return True

    return answer_one


_PLACES = [
    b"mailto:admin@example.org",
    b"about:blank",
    b"urn:x",
    b"tel:1",
    b"http://xn--a/",
    b"/\xff",
    b"/v2",
]


@_both
@pytest.mark.parametrize("place", _PLACES)
def test_a_redirect_to_anywhere_is_a_problem_of_the_server(ask: _Ask, place: bytes) -> None:
    head = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % place
    with serving(_after_names(head)) as url:
        with pytest.raises(RemoteProblem) as found:
            ask(url, False)
        assert found.value.reason == "the server answered with status 302"
        with pytest.raises(RemoteProblem) as found:
            ask(url, True)
        assert found.value.reason == f"the server answered with status 302; {_UNKNOWN}"


@_both
@pytest.mark.parametrize(
    ("body", "told"),
    [(b"x", "the server's response is not JSON"), (b"[]", "the server's response is not a JSON object")],
)
def test_after_an_answer_that_is_no_json_a_change_may_have_been_made(
    ask: _Ask, body: bytes, told: str
) -> None:
    with serving(_after_names(whole(body))) as url:
        for changes in (False, True):
            with pytest.raises(RemoteProblem) as found:
                ask(url, changes)
            assert found.value.reason == (f"{told}; {_UNKNOWN}" if changes else told)


# ---- too large

_MOST = 1 << 20
_EXCEEDS = r"the server's response exceeds the limit of 1 MiB"


def _endless(status: bytes) -> Callable[[str, socket.socket], bool]:
    def answer_one(address: str, connection: socket.socket) -> bool:
        if address == "indexes":
            connection.sendall(whole(LISTED))
            return True
        connection.sendall(b"HTTP/1.1 %s\r\n\r\n" % status)
        for _ in range(200):
            connection.sendall(b" " * _MOST)
        return False

    return answer_one


def _packed(body: bytes, encoding: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: %s\r\nContent-Length: %d\r\n\r\n"
    return head % (encoding, len(body)) + body


_BOMB = _packed(gzip.compress(b'{"a": "' + bytes(200 << 20)), b"gzip")


@_both
@pytest.mark.parametrize("changes", [False, True])
@pytest.mark.parametrize(
    "answer",
    [_endless(b"200 OK"), _endless(b"500 Internal Server Error"), _after_names(_BOMB)],
    ids=["endless", "endless error", "bomb"],
)
def test_no_more_of_a_response_is_read_than_the_limit(
    monkeypatch: pytest.MonkeyPatch, ask: _Ask, answer: Callable[[str, socket.socket], bool], changes: bool
) -> None:
    monkeypatch.setattr(transport, "MOST_BYTES", _MOST)
    asked = []

    def count(address: str, connection: socket.socket) -> bool:
        asked.append(address)
        return answer(address, connection)

    with serving(count) as url:
        with pytest.raises(RemoteProblem, match=_EXCEEDS) as found:
            ask(url, changes)
        assert (_UNKNOWN in found.value.reason) == changes
        assert len(asked) == 2  # asking again would have the same answer


def test_the_limit_is_512_mib() -> None:
    assert transport.MOST_BYTES == 512 << 20


def test_a_response_of_the_size_of_the_limit_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    body = b'{"hits": []}'
    monkeypatch.setattr(transport, "MOST_BYTES", _MOST)
    with serving(_after_names(whole(body.ljust(_MOST)))) as url, coil.connect(url) as index:
        assert index.search("river") == []
    large = _after_names(whole(body.ljust(_MOST + 1)))
    with serving(large) as url, pytest.raises(RemoteProblem, match=_EXCEEDS):
        _ask(url, False)


@_both
@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (gzip.compress(gzip.compress(b"{}")), b"gzip, gzip"),
        (b"(\xb5/\xfd \x02\x11\x00\x00{}", b"zstd"),
        (b"{}", b"x-unknown"),
    ],
    ids=["two", "zstd", "unknown"],
)
def test_an_encoding_that_was_not_asked_for_is_not_decompressed(
    ask: _Ask, body: bytes, encoding: bytes
) -> None:
    """A few of their bytes can be gigabytes, in a single piece: the limit would be too late."""
    with serving(_after_names(_packed(body, encoding))) as url:
        for changes in (False, True):
            with pytest.raises(RemoteProblem) as found:
                ask(url, changes)
            told = "the server's response cannot be decompressed"
            assert found.value.reason == (f"{told}; {_UNKNOWN}" if changes else told)


def test_a_compressed_response_is_read() -> None:
    for body, encoding in [
        (gzip.compress(b'{"hits": []}'), b"gzip"),
        (gzip.compress(b'{"hits": []}'), b"GZip"),
        (zlib.compress(b'{"hits": []}'), b"deflate"),
        (b'{"hits": []}', b"identity"),
    ]:
        with serving(_after_names(_packed(body, encoding))) as url, coil.connect(url) as index:
            assert index.search("river") == []


# ---- connections


def _search_thrice(url: str) -> None:
    with coil.connect(url) as index:
        for _ in range(3):
            with suppress(RemoteProblem):
                index.search("river")


def _search_thrice_async(url: str) -> None:
    async def run() -> None:
        async with coil.connect_async(url) as index:
            for _ in range(3):
                with suppress(RemoteProblem):
                    await index.search("river")

    asyncio.run(run())


@pytest.mark.parametrize("search", [_search_thrice, _search_thrice_async])
@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (whole({"hits": []}), 1),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 2\r\n\r\n{}", 1),
        (whole(b" " * (3 * _MOST)), 3),
    ],
)
def test_a_connection_is_used_again_unless_its_response_was_not_read(
    monkeypatch: pytest.MonkeyPatch, search: Callable[[str], None], answer: bytes, connections: int
) -> None:
    monkeypatch.setattr(transport, "MOST_BYTES", _MOST)
    used: list[Any] = []
    answer_one = _after_names(answer)

    def note(address: str, connection: socket.socket) -> bool:
        if connection not in used:
            used.append(connection)
        return answer_one(address, connection)

    with serving(note) as url:
        search(url)
    assert len(used) == connections


@_both
@pytest.mark.parametrize("changes", [False, True])
def test_a_response_of_another_form_leaves_a_change_unknown(ask: _Ask, changes: bool) -> None:
    """Such as from a proxy that wants a login."""
    with serving(_after_names(whole(b'{"status": "login required"}'))) as url:
        with pytest.raises(RemoteProblem, match="the server's response has an unexpected form") as caught:
            ask(url, changes)
        assert (_UNKNOWN in caught.value.reason) == changes


def test_requests_that_are_cancelled_do_not_use_up_the_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """About one in a hundred leaves a connection of httpx taken forever."""
    monkeypatch.setattr(transport, "_MOST_CUT", 4)
    asked, slow, over = threading.Semaphore(0), threading.Event(), threading.Event()
    slow.set()

    def answer_one(address: str, connection: socket.socket) -> bool:
        if address == "indexes":
            connection.sendall(whole(LISTED))
            return True
        if slow.is_set():
            asked.release()
            over.wait(60)
            return False
        connection.sendall(whole({"query": "river", "hits": []}))
        return True

    async def cut(index: Any) -> None:
        task = asyncio.create_task(index.search("river"))
        await asyncio.to_thread(asked.acquire)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def run(url: str) -> None:
        async with coil.connect_async(url, timeout=60) as index:
            link, clients = index._link, []
            for _ in range(9):
                clients.append(link.client)
                await cut(index)
            assert [clients.index(client) for client in clients] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
            await asyncio.gather(*link._closing)
            assert [client.is_closed for client in clients] == [True] * 8 + [False]
            assert link._requests == {}

            before = link.client
            waiting = asyncio.create_task(index.search("river"))  # while another client takes over
            await asyncio.to_thread(asked.acquire)
            for _ in range(3):
                await cut(index)
            assert link.client is not before
            assert not before.is_closed
            slow.clear()
            assert list(await index.search("river")) == []
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.gather(*link._closing)
            assert before.is_closed

    with serving(answer_one) as url:
        try:
            asyncio.run(run(url))
        finally:
            over.set()


def test_an_async_index_of_another_event_loop_is_named() -> None:
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()
    with closing(first), closing(second), serving(_after_names(whole({"query": "river", "hits": []}))) as url:
        connected = coil.connect_async(url, timeout=10)
        index = first.run_until_complete(connected.__aenter__())
        first.run_until_complete(index.search("river"))
        with pytest.raises(InputError, match="was connected in another event loop"):
            second.run_until_complete(index.search("river"))
        first.run_until_complete(connected.__aexit__(None, None, None))
