"""Requests that are allowed but expensive: others are answered meanwhile."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from coil.indexes.opening import create
from coil.indexes.reader import IndexReader
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.service import _LARGE_DOCUMENT, _LONG_QUERY
from coil.service.workers import MOST_CHARACTERS, Job, Workers
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, is_closed, read_answer, wait_until
from tests.serving import TOKEN, running
from tests.test_service import ONE, build
from tests.test_service_fairness import gated, search


def test_long_queries_leave_a_thread_to_short_ones(tmp_path: Path) -> None:
    long = "slow " + "river " * (_LONG_QUERY // 6 + 1)
    with gated(build(tmp_path / "notes.coil"), threads=2) as (server, encoder), ThreadPoolExecutor(8) as pool:
        url = f"{server.url.rstrip('/')}{ONE}/search"

        def ask() -> Future[httpx.Response]:
            return pool.submit(httpx.get, url, params={"q": long}, timeout=60)

        waiting = [ask()]
        wait_until(lambda: encoder.reached == 1)
        waiting += [ask() for _ in range(5)]
        wait_until(lambda: server.service._workers.waiting == 5)
        for _ in range(3):
            assert search(server).status_code == 200
        assert encoder.reached == 1
        encoder.allowed.release(100)
        assert [one.result(30).status_code for one in waiting] == [200] * 6


def test_queries_are_answered_together_up_to_so_many_characters() -> None:
    sizes: list[int] = []
    go_on = threading.Event()
    workers = Workers(1, 100, lambda size, _: sizes.append(size))

    def answer(values: list[int], _: float) -> list[int]:
        assert go_on.wait(20)
        return values

    def ask(size: int) -> Future[Any]:
        return workers.submit(Job("a", size, answer, time.monotonic() + 20, size=size))

    asked = [ask(1)]
    wait_until(lambda: workers.waiting == 0)
    half = MOST_CHARACTERS // 2
    asked += [ask(size) for size in (half, half, 1, 2, 3 * half, 3)]
    go_on.set()
    assert [one.result(20) for one in asked] == [1, half, half, 1, 2, 3 * half, 3]
    assert sizes == [1, 2, 2, 1, 1]
    workers.stop()


def half_a_body(method: str, path: str, *headers: str, length: int = 100) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n{").encode()


JSON = "Content-Type: application/json"


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_half_bodies_keep_nobody_out(tmp_path: Path, before: bytes) -> None:
    limits = ServiceLimits(connections=6, upload_seconds=30)
    options = ServiceOptions(limits=limits, token=TOKEN)
    token = f"Authorization: Bearer {TOKEN}"
    with (
        running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server,
        ExitStack() as stack,
    ):

        def connect(sent: bytes) -> socket.socket:
            connection = stack.enter_context(connected(server))
            connection.sendall(sent)
            return connection

        upload = connect(half_a_body("POST", f"{ONE}/documents", token, length=28))
        wait_until(lambda: server.service.served["notes"].writes_waiting == 1)
        halves = []
        for _ in range(60):
            halves.append(connect(before + half_a_body("POST", f"{ONE}/search", JSON)))
            assert not before or read_answer(halves[-1]).status == 200  # what is complete is answered
        for _ in range(3):
            assert httpx.get(f"{server.url}ready").status_code == 200
        assert is_closed(halves[0])
        upload.sendall(b'"id": "a", "text": "river"}')
        assert read_answer(upload).status == 200  # whoever has the token is not closed for others


def test_a_small_body_has_less_time_than_documents(tmp_path: Path) -> None:
    options = ServiceOptions(limits=ServiceLimits(body_seconds=0.3), token=TOKEN)
    token = f"Authorization: Bearer {TOKEN}"
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        for request in (
            half_a_body("POST", f"{ONE}/search", JSON),
            half_a_body("DELETE", f"{ONE}/documents", JSON, token),
        ):
            with connected(server) as connection:
                connection.sendall(request)
                assert read_answer(connection).status == 408
        with connected(server) as connection:
            connection.sendall(half_a_body("POST", f"{ONE}/documents", token, length=28))
            time.sleep(1)
            connection.sendall(b'"id": "a", "text": "river"}')
            assert read_answer(connection).status == 200


@pytest.mark.parametrize(("method", "path"), [("DELETE", "documents"), ("POST", "documents")])
def test_the_token_is_checked_before_the_body_is_read(tmp_path: Path, method: str, path: str) -> None:
    options = ServiceOptions(token=TOKEN)
    with (
        running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server,
        connected(server) as connection,
    ):
        connection.settimeout(5)
        connection.sendall(half_a_body(method, f"{ONE}/{path}", JSON))
        assert read_answer(connection).status == 401


def test_large_documents_are_no_quick_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "notes.coil"
    half = "é" * (_LARGE_DOCUMENT // 4)  # two bytes each
    with create(folder, encoder=HashEncoder()) as index:
        index.add(
            [Document("small", "river"), Document("text", half * 3), Document("fields", "a", {"b": half * 3})]
        )
        index.add([Document("below", half)])
        assert index.size_of("small") == len(b"river{}")
        assert index.size_of("fields") == len(b'a{"b": ""}') + 6 * len(half)
        assert index.size_of("none") is None
    with running([folder], encoder=HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        workers, queued = server.service._workers, []
        real = workers.submit
        monkeypatch.setattr(workers, "submit", lambda job, *more: queued.append(job.slow) or real(job, *more))
        for doc_id, slow in (("small", False), ("below", False), ("text", True), ("fields", True)):
            queued.clear()
            assert server.client.get(f"{ONE}/documents/{doc_id}").json()["doc_id"] == doc_id
            assert queued == ([False, True] if slow else [False])
        assert server.client.get(f"{ONE}/documents/none").status_code == 404


def test_the_facts_of_an_index_are_no_quick_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lists are counted, in as much time as any request has."""
    with running([build(tmp_path / "notes.coil")], encoder=HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        queued: list[bool] = []
        workers, given = server.service._workers, list[float]()
        real, inspect = workers.submit, IndexReader.inspect

        def note(index: IndexReader, longest: int = 10, timeout: float | None = None) -> Any:
            assert timeout is not None
            given.append(timeout)
            return inspect(index, longest, timeout)

        monkeypatch.setattr(workers, "submit", lambda job, *more: queued.append(job.slow) or real(job, *more))
        monkeypatch.setattr(IndexReader, "inspect", note)
        assert server.client.get(ONE).json()["name"] == "notes"
        assert queued == [True]
        assert 0 < given[0] <= ServiceLimits().seconds


def test_sizes_are_counted_in_bytes(tmp_path: Path) -> None:
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.add([Document("a", "é"), Document("b", "river", {"c": 1})])
        assert [index.size_of(doc_id) for doc_id in "ab"] == [4, 13]
