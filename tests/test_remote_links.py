"""The connections of a client: in forked processes, after it is closed, and beside proxies."""

from __future__ import annotations

import asyncio
import os
import pickle
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import coil
from coil.errors import InputError, RemoteProblem
from coil.indexes.opening import create
from coil.service.limits import ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_remote_servers import answering


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("links") / "notes.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river bank"}])
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as started:
        yield started


def _in_a_fork(do: Callable[[], object]) -> int:
    """The exit status of a forked process that does this: 0 if it raised nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads run: that is the point
        process = os.fork()
    if process == 0:
        try:
            do()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_a_forked_process_never_uses_a_connection_of_its_parent() -> None:
    """Both would read from one socket, and each could get the answers to the other."""
    asked: list[tuple[str, int]] = []

    def note(address: str, connection: socket.socket) -> None:
        asked.append((address, connection.getpeername()[1]))

    with answering(note) as url, coil.connect(url) as index:
        index.search("river")
        assert _in_a_fork(lambda: index.search("river")) == 0
        index.search("river")
    assert [address for address, _ in asked] == ["indexes", "search", "search", "search"]
    own, child = {asked[place][1] for place in (0, 1, 3)}, asked[2][1]
    assert len(own) == 1
    assert child not in own


def test_an_async_client_in_a_forked_process_connects_anew() -> None:
    asked: list[int] = []

    def note(_: str, connection: socket.socket) -> None:
        asked.append(connection.getpeername()[1])

    with answering(note) as url:
        entered = coil.connect_async(url)
        loop = asyncio.new_event_loop()
        index = loop.run_until_complete(entered.__aenter__())
        assert _in_a_fork(lambda: asyncio.run(index.search("river"))) == 0
        loop.run_until_complete(index.search("river"))
        loop.run_until_complete(entered.__aexit__(None, None, None))
        loop.close()
    assert asked[0] == asked[2] != asked[1]


def test_a_closed_client_says_so(server: Running) -> None:
    index = coil.connect(server.url)
    index.close()
    index.close()
    for use in (lambda: index.search("river"), lambda: len(index), lambda: index.delete(["a"])):
        with pytest.raises(InputError, match="the index is closed"):
            use()
    assert "notes" in repr(index)

    async def use_after() -> None:
        async with coil.connect_async(server.url) as opened:
            assert len(await opened.search("river")) == 1
        await opened.search("river")

    with pytest.raises(InputError, match="the index is closed"):
        asyncio.run(use_after())


def test_a_client_that_another_thread_closes_says_so() -> None:
    """In the middle of a request, and whatever httpx raises for it."""
    here = threading.Event()

    def wait(address: str, connection: socket.socket) -> None:
        if address == "search":
            here.set()
            connection.settimeout(10)
            connection.recv(1)  # until the client is gone

    with answering(wait) as url:
        index = coil.connect(url, timeout=30)

        def close() -> None:
            here.wait(10)
            index.close()

        thread = threading.Thread(target=close)
        thread.start()
        with pytest.raises(InputError, match="the index is closed"):
            index.search("river")
        thread.join()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HTTP_PROXY", "http://127.0.0.1:9"),
        ("ALL_PROXY", "socks5://127.0.0.1:9"),
        ("HTTP_PROXY", "garbage://x"),
        ("ALL_PROXY", "::::"),
        ("NO_PROXY", "[::1"),
        ("SSL_CERT_FILE", "/nonexistent"),
    ],
)
def test_a_server_on_this_machine_is_reached_whatever_the_environment_says(
    server: Running, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with coil.connect(server.url) as index:
        assert len(index.search("river")) == 1

    async def ask() -> int:
        async with coil.connect_async(server.url) as opened:
            return len(await opened.search("river"))

    assert asyncio.run(ask()) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks6://127.0.0.1:9"),
        ("HTTP_PROXY", "garbage://x"),
        ("ALL_PROXY", "::::"),
        ("SSL_CERT_FILE", "/nonexistent"),
    ],
)
def test_an_environment_that_cannot_be_used_is_told(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RemoteProblem, match="of the environment cannot be used"):
        coil.connect("https://coil.invalid")


def test_a_password_in_an_address_is_not_shown(server: Running, tmp_path: Path) -> None:
    address = server.url.replace("http://", "http://me:hidden@")
    with coil.connect(address) as index:
        assert len(index.search("river")) == 1
        assert "hidden" not in repr(index) + index.url
    with pytest.raises(RemoteProblem) as told:
        coil.connect("http://me:hidden@127.0.0.1:1")
    assert "hidden" not in str(told.value)
    with pytest.raises(InputError, match="only one of them"):  # both are the same header
        coil.connect(address, token=TOKEN)


@pytest.mark.parametrize("token", ["tokà", "tokŅ"])
def test_a_token_may_end_in_any_letter(tmp_path: Path, token: str) -> None:
    """Its last byte may be one that is a space in Latin-1, as which headers are read."""
    create(tmp_path / "letters.coil", encoder=HashEncoder()).close()
    with (
        running([tmp_path / "letters.coil"], ServiceOptions(token=token), HashEncoder()) as started,
        coil.connect(started.url, token=token) as index,
    ):
        assert index.add([{"id": "a", "text": "river"}]) == 1


def test_an_id_that_is_no_text_belongs_to_no_document(server: Running) -> None:
    async def ask(doc_id: Any) -> bool:
        async with coil.connect_async(server.url) as index:
            return await index.has(doc_id)

    local = server.service.served["notes"].index
    with coil.connect(server.url) as index:
        for doc_id in (5, None, b"a"):
            given: Any = doc_id
            assert local.has(given) is index.has(given) is asyncio.run(ask(given)) is False
            assert given not in index


def test_a_client_is_pickled_by_its_address_and_never_with_a_token(server: Running) -> None:
    with coil.connect(server.url, timeout=7) as index:
        with pickle.loads(pickle.dumps(index)) as copy:
            assert copy["a"] == index["a"]
            assert (copy.url, copy._link.timeout) == (index.url, 7)
        host = server.url.removeprefix("http://")
        for secret in (
            coil.connect(server.url, token=TOKEN),
            coil.connect(f"http://user:{TOKEN}@{host}"),
        ):
            with secret, pytest.raises(InputError, match="cannot be pickled") as found:
                pickle.dumps(secret)
            assert TOKEN not in str(found.value)

    async def run() -> None:
        async with coil.connect_async(server.url) as index:
            with pytest.raises(InputError, match="cannot be pickled"):
                pickle.dumps(index)

    asyncio.run(run())
