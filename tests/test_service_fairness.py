"""Plain searches are answered while batches, filters and explanations are slow; batches see one state."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from coil.service.answers import Asked
from coil.service.batches import PinnedIndex, slice_size
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.service.served import ServedIndex
from coil.service.workers import Job, Workers
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, errors, wait_until
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build


class GatedEncoder(HashEncoder):
    """Reads queries that begin with `slow` only when it is allowed to."""

    def __init__(self) -> None:
        super().__init__()
        self.allowed = threading.Semaphore(0)  # calls
        self.reached = 0

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        texts = list(texts)
        if any(text.startswith("slow") for text in texts):
            self.reached += 1
            assert self.allowed.acquire(timeout=30)
        return super().encode_queries(texts)


@contextmanager
def gated(folder: Path, threads: int, **limits: Any) -> Iterator[tuple[Running, GatedEncoder]]:
    encoder = GatedEncoder()
    options = ServiceOptions(limits=ServiceLimits(**limits), threads=threads, token=TOKEN)
    with running([folder], options, encoder) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        try:
            yield server, encoder
        finally:
            encoder.allowed.release(10_000)  # or the server could not stop


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as found:
        yield found


def batch(server: Running, n: int = 20, **asked: Any) -> httpx.Response:
    body = {"queries": [f"slow river {i}" for i in range(n)], **asked}
    return httpx.post(f"{server.url.rstrip('/')}{ONE}/search_batch", json=body, timeout=60)


def search(server: Running, **asked: Any) -> httpx.Response:
    return server.client.get(f"{ONE}/search", params={"q": "river", **asked})


def test_a_search_is_answered_while_batches_are(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with gated(build(tmp_path / "notes.coil"), threads=2) as (server, encoder):
        batches = [pool.submit(batch, server) for _ in range(4)]
        wait_until(lambda: encoder.reached == 1 and server.service._batch_turns._waiting == 3)
        for _ in range(5):
            assert search(server).status_code == 200
        assert encoder.reached == 1  # one thread is kept free
        encoder.allowed.release(100)
        assert [len(one.result(30).json()["answers"]) for one in batches] == [20] * 4


def test_slices_leave_room_for_others_on_one_thread(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with gated(build(tmp_path / "notes.coil"), threads=1) as (server, encoder):
        two = [pool.submit(batch, server, 20)]
        wait_until(lambda: encoder.reached == 1)
        two.append(pool.submit(batch, server, 8))
        wait_until(lambda: server.service._workers.waiting == 1)
        plain = pool.submit(search, server)
        wait_until(lambda: server.service._workers.waiting == 2)
        encoder.allowed.release(1)  # one slice
        assert plain.result(10).status_code == 200
        assert not any(one.done() for one in two)
        encoder.allowed.release(100)
        assert [one.result(30).status_code for one in two] == [200, 200]
        assert encoder.reached == 4


@pytest.mark.parametrize("asked", [{"filter": "year > 2000"}, {"matches": True}], ids=["filter", "explained"])
def test_slow_searches_leave_a_thread_to_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, asked: dict[str, Any]
) -> None:
    from coil.service import service

    real, began, go_on = service.answer_queries, threading.Semaphore(0), threading.Event()

    def slow(index: Any, queries: Any, how: Asked, seconds: float, *limits: Any) -> Any:
        if how.filter is not None or how.matches:
            began.release()
            assert go_on.wait(30)
        return real(index, queries, how, seconds, *limits)

    with gated(build(tmp_path / "notes.coil"), threads=2) as (server, _):
        monkeypatch.setattr(service, "answer_queries", slow)
        waiting = [pool.submit(search, server, k=k, **asked) for k in (3, 4, 5)]
        try:
            assert began.acquire(timeout=20)
            wait_until(lambda: server.service._workers.waiting == 2)
            assert search(server).status_code == 200
        finally:
            go_on.set()
        assert [one.result(30).status_code for one in waiting] == [200] * 3


def test_a_batch_is_answered_from_one_state(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with gated(build(tmp_path / "notes.coil", 10), threads=2) as (server, encoder):
        running_batch = pool.submit(batch, server, k=50)
        wait_until(lambda: encoder.reached == 1)
        encoder.allowed.release(1)
        wait_until(lambda: encoder.reached == 2)  # the first slice is done
        line = json.dumps({"id": "new", "text": "slow river"})
        assert server.client.post(f"{ONE}/documents", content=line, headers=WRITE).status_code == 200
        assert server.client.delete(f"{ONE}/documents/d/1", headers=WRITE).status_code == 200
        encoder.allowed.release(100)
        for answer in running_batch.result(30).json()["answers"]:
            assert {hit["doc_id"] for hit in answer["hits"]} == {f"d/{i}" for i in range(10)}
        found = {hit["doc_id"] for hit in search(server, k=50).json()["hits"]}
        assert "new" in found
        assert "d/1" not in found


@pytest.mark.parametrize("how", ["answered", "late", "disconnected", "refused"])
def test_the_state_of_a_batch_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor, how: str
) -> None:
    real, pins = ServedIndex.reading, [0]

    @contextmanager
    def counted(self: ServedIndex) -> Iterator[Any]:
        with real(self) as index:
            pins[0] += 1
            try:
                yield index
            finally:
                pins[0] -= 1

    limits = {"seconds": 1.0} if how == "late" else {"answer_bytes": 2000} if how == "refused" else {}
    with gated(build(tmp_path / "notes.coil"), threads=2, **limits) as (server, encoder):
        monkeypatch.setattr(ServedIndex, "reading", counted)
        if how == "disconnected":
            body = json.dumps({"queries": ["slow"] * 20}).encode()
            head = (
                f"POST {ONE}/search_batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            )
            with connected(server) as connection:
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                wait_until(lambda: encoder.reached == 1)
                connection.shutdown(socket.SHUT_RDWR)
            wait_until(lambda: errors(server, "disconnected") == 1)
            assert pins == [1]  # the slice that is running still reads
        else:
            asking = pool.submit(batch, server)
            wait_until(lambda: encoder.reached == 1)
            if how == "late":
                assert asking.result(20).status_code == 504
                assert pins == [1]
        encoder.allowed.release(100)
        if how in ("answered", "refused"):
            assert asking.result(20).status_code == (200 if how == "answered" else 413)
        wait_until(lambda: pins == [0])
        assert encoder.reached < 3 or how == "answered"  # nothing more was searched
        assert server.service._unsent.now == 0


def test_a_pin_is_released_once_and_never_under_a_reader() -> None:
    pins = [0]

    class Served:
        @contextmanager
        def reading(self) -> Iterator[str]:
            pins[0] += 1
            yield "index"
            pins[0] -= 1

    served: Any = Served()
    pinned = PinnedIndex(served)
    with pinned.use() as first:
        pass
    with pinned.use() as second:
        pinned.close()
        pinned.close()
        assert (first, second, pins) == ("index", "index", [1])
    assert pins == [0]
    with pytest.raises(Exception), pinned.use():  # noqa: B017, PT011
        pass
    assert pins == [0]
    PinnedIndex(served).close()  # never used
    assert pins == [0]


def test_the_time_is_over_between_slices(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with gated(build(tmp_path / "notes.coil"), threads=2, seconds=1.0) as (server, encoder):
        asking = pool.submit(batch, server, 80)
        wait_until(lambda: encoder.reached == 1)
        time.sleep(1.1)
        encoder.allowed.release(100)
        got = asking.result(20)
        assert got.status_code == 504, got.text
        assert encoder.reached <= 2


def test_slices_are_small_where_answers_are_large() -> None:
    assert [slice_size(Asked(k=k)) for k in (1, 10, 40, 100, 160, 1000)] == [8, 8, 8, 3, 2, 1]
    assert slice_size(Asked(matches=True)) == 1


def test_slow_jobs_are_answered_in_a_flood_of_quick_ones() -> None:
    workers = Workers(1, 100, lambda *_: None)
    end = time.monotonic() + 30
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            if workers.waiting < 20:
                workers.submit(Job(None, 0, lambda values, _: (time.sleep(0.001), values)[1], end))
            else:
                time.sleep(0.001)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        wait_until(lambda: workers.waiting > 5)
        slow = [workers.submit(Job(None, 1, lambda values, _: values, end, slow=True)) for _ in range(3)]
        assert [one.result(20) for one in slow] == [1, 1, 1]
    finally:
        stop.set()
        thread.join()
        workers.stop()


def test_quick_jobs_come_first_and_find_a_place_in_the_queue() -> None:
    began, go_on, order = threading.Event(), threading.Event(), list[str]()

    def answer(values: list[str], _: float) -> list[str]:
        if values == ["first"]:
            began.set()
            assert go_on.wait(20)
        order.extend(values)
        return values

    workers = Workers(1, 4, lambda *_: None)
    end = time.monotonic() + 30
    futures = [workers.submit(Job(None, "first", answer, end, slow=True))]
    assert began.wait(20)
    futures += [workers.submit(Job(None, f"slow {i}", answer, end, slow=True)) for i in range(3)]
    with pytest.raises(Problem, match="3 requests are already waiting"):
        workers.submit(Job(None, "no place", answer, end, slow=True))
    futures.append(workers.submit(Job(None, "quick", answer, end)))
    with pytest.raises(Problem, match="4 requests are already waiting"):
        workers.submit(Job(None, "no place", answer, end))
    go_on.set()
    for future in futures:
        future.result(20)
    assert order == ["first", "quick", "slow 0", "slow 1", "slow 2"]
    workers.stop()


def test_many_threads_stop_when_slow_jobs_were_left() -> None:
    workers = Workers(8, 100, lambda *_: None)
    end = time.monotonic() + 30

    def answer(values: list[int], _: float) -> list[int]:
        time.sleep(0.005)
        return values

    futures = [workers.submit(Job(None, i, answer, end, slow=True)) for i in range(40)]
    stopping = threading.Thread(target=workers.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    assert [future.result(0) for future in futures] == list(range(40))
