"""Servers that are slow, gone, or something else than `coil serve`: what clients say about them."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import httpcore
import httpx
import pytest

import coil
from coil.errors import InputError, RemoteProblem
from coil.remote.deadlines import keep_deadlines

LISTED = {"indexes": [{"name": "a", "documents": 1, "default": True}]}
_ANSWERS = {
    "indexes": LISTED,
    "search": {"query": "river", "hits": []},
    "documents": {"added": 1, "empty": [], "deleted": 1, "missing": [], "documents": 1},
}


def whole(value: object) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@contextmanager
def _closing(every: int) -> Iterator[tuple[str, list[str]]]:
    """A server that closes every so manieth request without an answer, and which requests it had."""
    asked: list[str] = []

    def answer(address: str, connection: socket.socket) -> bool:
        asked.append(address)
        if len(asked) % every:
            connection.sendall(whole(_ANSWERS.get(address, {})))
        return len(asked) % every != 0

    with serving(answer) as url:
        yield url, asked


@contextmanager
def answering(note: Callable[[str, socket.socket], object]) -> Iterator[str]:
    """A server that answers every request, and which request came over which connection."""

    def answer(address: str, connection: socket.socket) -> bool:
        note(address, connection)
        connection.sendall(whole(_ANSWERS.get(address, {})))
        return True

    with serving(answer) as url:
        yield url


@contextmanager
def serving(answer_one: Callable[[str, socket.socket], bool]) -> Iterator[str]:
    """A server that answers as it is told: with the last part of an address; False closes the connection."""

    def answer(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as file, suppress(OSError):  # when the client has left
            while line := file.readline():
                length = 0
                while (header := file.readline().strip()) != b"":
                    name, _, value = header.partition(b":")
                    length = int(value) if name.lower() == b"content-length" else length
                file.read(length)
                address = line.split()[1].decode().partition("?")[0]
                if not answer_one(address.rpartition("/")[2], connection):
                    return

    def accept() -> None:
        while True:
            try:
                connection = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=answer, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def test_a_request_that_reads_is_sent_again_once() -> None:
    with _closing(every=3) as (url, asked), coil.connect(url, index="a") as index:
        for _ in range(3):
            assert index.search("river") == []
        assert asked == ["indexes", *["search"] * 4]
    with _closing(every=1) as (url, asked):
        with pytest.raises(RemoteProblem, match="cannot be reached"):
            coil.connect(url, index="a")
        assert len(asked) == 2

    async def run(url: str) -> None:
        async with coil.connect_async(url, index="a") as index:
            for _ in range(3):
                assert await index.search("river") == []

    with _closing(every=3) as (url, asked):
        asyncio.run(run(url))
        assert len(asked) == 5


def test_a_change_is_not_sent_again() -> None:
    with _closing(every=2) as (url, asked), coil.connect(url, index="a") as index:
        for change in (lambda: index.delete(["a"]), lambda: index.update([{"id": "a", "text": "b"}])):
            with pytest.raises(RemoteProblem, match="it is unknown whether the change was made"):
                change()
            index.inspect()
        assert asked == ["indexes", "documents", "a", "documents", "a"]


# ---- what is slow


def _trickle(address: str, connection: socket.socket) -> bool:
    """One byte at a time, each within the timeout, of an answer that takes far longer."""
    if address == "indexes":
        connection.sendall(whole(LISTED))
        return True
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(100):
        connection.sendall(b" ")
        time.sleep(0.1)
    return False


def _drips(begin: bytes, drop: bytes) -> Callable[[str, socket.socket], bool]:
    """A server whose answers go on and on before their first byte of content."""

    def answer(address: str, connection: socket.socket) -> bool:
        if address == "indexes":
            connection.sendall(whole(LISTED))
            return True
        connection.sendall(begin)
        for _ in range(100):
            connection.sendall(drop)
            time.sleep(0.1)
        return False

    return answer


_HEAD = _drips(b"HTTP/1.1 200 OK\r\nX: ", b"x")
_PROCESSING = _drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n")
_CHUNK_SIZE = _drips(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=", b"0")


def _silence(address: str, connection: socket.socket) -> bool:
    if address == "indexes":
        connection.sendall(whole(LISTED))
        return True
    time.sleep(5)
    return False


@pytest.mark.parametrize("answer", [_trickle, _silence, _HEAD, _PROCESSING, _CHUNK_SIZE])
@pytest.mark.parametrize("changes", [False, True])
def test_a_timeout_is_that_of_the_whole_answer(
    answer: Callable[[str, socket.socket], bool], changes: bool
) -> None:
    """A change whose answer did not come may have been made."""
    told = r"did not respond within 0\.5 seconds"
    told += (
        r"; it is unknown whether the change was made\n  try: connect with a longer timeout; if no other"
        if changes
        else r"\n  try: ask for less"
    )

    async def run(url: str) -> None:
        async with coil.connect_async(url, timeout=0.5) as index:
            await (index.delete(["x"]) if changes else index.search("river"))

    def ask(url: str) -> None:
        with coil.connect(url, timeout=0.5) as index:
            index.delete(["x"]) if changes else index.search("river")

    with serving(answer) as url:
        for go in (ask, lambda url: asyncio.run(run(url))):
            began = time.monotonic()
            with pytest.raises(RemoteProblem, match=told):
                go(url)
            assert time.monotonic() - began < 4


def test_a_proxy_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(_HEAD) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
        with coil.connect("http://notes.example", timeout=0.5) as index:
            began = time.monotonic()
            with pytest.raises(RemoteProblem, match="did not respond within"):
                index.search("river")
            assert time.monotonic() - began < 4


def test_a_server_that_reads_slowly_is_not_waited_for() -> None:
    def accept() -> None:
        connection = listening.accept()[0]
        connection.recv(1 << 16)
        connection.sendall(whole(LISTED))
        with suppress(OSError):
            for _ in range(100):
                connection.recv(50_000)
                time.sleep(0.1)
        connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        threading.Thread(target=accept, daemon=True).start()
        with coil.connect(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=0.5) as index:
            began = time.monotonic()
            with pytest.raises(RemoteProblem, match="did not respond within"):
                index.update([{"id": "a", "text": "river " * 4_000_000}])
            assert time.monotonic() - began < 4


# ---- what is no `coil serve`

_ODD = [[], [1, 2], "text", 5, None, b"[" * 100_000, b"1" * 10_000, b"\xff{}", b"", {"indexes": 5}]


@pytest.mark.parametrize("value", [*_ODD, {"indexes": [5]}, {"indexes": [{"name": "a"}]}, {}])
def test_another_server_is_told_when_connecting(value: object) -> None:
    def answer(_: str, connection: socket.socket) -> bool:
        connection.sendall(whole(value))
        return True

    async def run(url: str) -> None:
        async with coil.connect_async(url):
            raise AssertionError("there is none")

    with serving(answer) as url:
        for go in (coil.connect, lambda url: asyncio.run(run(url))):
            with pytest.raises(
                RemoteProblem, match=r"the server's response.*\n  try: check that it is `coil serve`"
            ):
                go(url)


_ASKED: dict[str, Callable[[Any], Any]] = {
    "search": lambda index: index.search("river"),
    "search_batch": lambda index: index.search_many(["river", "bank"]),
    "explain": lambda index: index.explain("river", "a"),
    "suggest": lambda index: index.suggest("river"),
    "document": lambda index: index.document("a"),
    "update": lambda index: index.update([{"id": "a", "text": "river"}]),
    "delete": lambda index: index.delete(["a"]),
}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"hits": None},
        {"hits": [{}]},
        {"answers": []},
        {"suggestions": [5]},
        {"deleted": None},
        {"added": None},
        [],
        "x",
    ],
    ids=repr,
)
@pytest.mark.parametrize("what", _ASKED)
def test_an_answer_of_another_form_is_a_problem_of_the_server(what: str, value: object) -> None:
    def answer(address: str, connection: socket.socket) -> bool:
        connection.sendall(whole(LISTED if address == "indexes" else value))
        return True

    async def run(url: str) -> None:
        async with coil.connect_async(url) as index:
            await _ASKED[what](index)

    with serving(answer) as url:
        with coil.connect(url) as index, pytest.raises(RemoteProblem, match="the server's response"):
            _ASKED[what](index)
        with pytest.raises(RemoteProblem, match="the server's response"):
            asyncio.run(run(url))


def test_an_index_that_a_server_does_not_have_is_told_with_those_it_has() -> None:
    with _closing(every=1000) as (url, asked):
        with pytest.raises(RemoteProblem, match=r"there is no index 'b'\n  try: the server has a"):
            coil.connect(url, index="b")
        with coil.connect(url, index="a") as index:
            assert (index.name, len(index)) == ("a", 1)
        assert set(asked) == {"indexes"}  # a description takes long: all lists are counted for it


@pytest.mark.parametrize("host", ["notes..local", ".local", f"{'a' * 64}.local"])
def test_a_host_name_that_cannot_be_is_no_address(host: str) -> None:
    with pytest.raises(InputError, match="is not the address of a server"):
        coil.connect(f"http://{host}:8080")


def test_a_call_without_a_deadline_has_that_of_connecting() -> None:
    """As in the greeting of a SOCKS proxy."""
    with socket.create_server(("127.0.0.1", 0)) as silent, httpx.Client() as client:
        keep_deadlines(client)
        backend = client._transport._pool._network_backend  # type: ignore[attr-defined]
        stream = backend.connect_tcp(*silent.getsockname(), timeout=time.monotonic() + 0.2)
        with pytest.raises(httpcore.ReadTimeout):
            stream.read(1)
        with pytest.raises(httpcore.WriteTimeout):
            stream.write(b"x")
        stream.close()


@pytest.mark.parametrize(
    "odd",
    [
        {"doc_id": 7}, {"text": None}, {"fields": [["year", 7]]}, {"rank": 1.5}, {"score": "7"},
        {"score": True}, {"share": "7"}, {"chunk": ["0", 5]}, {"duplicates": [7]},
    ],
    ids=repr,
)  # fmt: skip
def test_a_hit_with_values_of_other_types_is_a_problem_of_the_server(odd: dict[str, object]) -> None:
    hit = {
        "rank": 1,
        "doc_id": "a",
        "score": 2,
        "share": None,
        "chunk": [0, 5],
        "text": "river",
        "fields": {},
    }

    def search(**changed: object) -> list[coil.Hit]:
        def answer(address: str, connection: socket.socket) -> bool:
            value = LISTED if address == "indexes" else {"hits": [hit | changed]}
            connection.sendall(whole(value))
            return True

        with serving(answer) as url, coil.connect(url) as index:
            return list(index.search("river"))

    assert [(found.doc_id, found.score, found.text) for found in search()] == [("a", 2.0, "river")]
    with pytest.raises(RemoteProblem, match="the server's response"):
        search(**odd)
