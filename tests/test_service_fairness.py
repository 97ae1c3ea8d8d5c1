"""Plain searches are answered while batches, filters and explanations are slow; batches see one state."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from coil.service.answers import Asked
from coil.service.batches import PinnedIndex, slice_size
from coil.service.connections import Connection
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.service.replies import Reply
from coil.service.served import ServedIndex
from coil.service.service import Gone, Service
from coil.service.turns import Starts, Turn, Turns
from coil.service.workers import Job, Workers
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, errors, read_answer, wait_until
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


def test_a_burst_of_requests_leaves_the_event_loop_to_others() -> None:
    """Requests that never wait would otherwise be answered one after another, as long as there are any."""
    done: list[str] = []

    async def follow(turns: Turns) -> None:
        turn = Turn(turns)
        await turn.take()
        done.append("follower")
        turn.give_back()

    async def connect() -> None:
        for _ in range(10):  # from a connection to its answer
            await asyncio.sleep(0)
        done.append("newcomer")

    async def run() -> None:
        turns = Turns(4, 1000, 20.0)
        burst = [asyncio.create_task(follow(turns)) for _ in range(1000)]
        await asyncio.sleep(0)
        await asyncio.gather(connect(), *burst)

    asyncio.run(run())
    assert len(done) == 1001
    assert done.index("newcomer") < 100


def test_a_turn_comes_back_from_those_that_fail_or_are_given_up() -> None:
    async def follow(turns: Turns, fails: bool) -> None:
        turn = Turn(turns)
        try:
            await turn.take()
            await asyncio.sleep(0.001)
            if fails:
                raise OSError
        finally:
            turn.give_back()

    async def run() -> None:
        turns = Turns(2, 100, 20.0)
        tasks = [asyncio.create_task(follow(turns, number % 3 == 0)) for number in range(60)]
        for task in tasks[::4]:
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        await asyncio.wait_for(follow(turns, False), 20)
        assert turns._free == 2

    asyncio.run(run())


def test_few_requests_that_were_sent_ahead_are_answered_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients, ahead = 20, 10
    most = answering = answered = 0
    search = Service.search

    async def counted(self: Service, name: str, query: str, asked: Asked, gone: Gone) -> Reply:
        nonlocal most, answering, answered
        ahead = query != "first"
        answering += ahead
        most = max(most, answering)
        try:
            await asyncio.sleep(0.005)
            return await search(self, name, query, asked, gone)
        finally:
            answering, answered = answering - ahead, answered + ahead

    monkeypatch.setattr(Service, "search", counted)
    limits = ServiceLimits(pipelined_at_once=3)
    with ExitStack() as stack:
        folder, options = build(tmp_path / "notes.coil"), ServiceOptions(limits=limits)
        server = stack.enter_context(running([folder], options, HashEncoder()))
        connections = [stack.enter_context(connected(server)) for _ in range(clients)]
        for connection in connections:
            queries = ["first", *(f"q{number}" for number in range(ahead))]
            requests = (f"GET {ONE}/search?q={q} HTTP/1.1\r\nHost: localhost\r\n\r\n" for q in queries)
            connection.sendall("".join(requests).encode())
        for connection in connections:
            found = [json.loads(read_answer(connection).body)["query"] for _ in queries]
            assert found == queries
    assert answered == clients * ahead
    assert most == 3


def test_requests_sent_ahead_wait_neither_long_nor_behind_many_nor_for_clients_that_left() -> None:
    async def run() -> None:
        turns = Turns(1, 2, 0.2)
        first, second, third, fourth = (Turn(turns) for _ in range(4))
        await first.take()
        waiting = [asyncio.create_task(turn.take()) for turn in (second, third)]
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="2 pipelined requests are already waiting"):
            await fourth.take()
        third.leave()
        late, left = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(left, ClientDisconnect)
        assert isinstance(late, Problem)
        assert "timed out after 0.2 seconds" in str(late)
        first.give_back()
        first.give_back()  # once is enough
        assert turns._free == 1
        assert not turns._waiting

    asyncio.run(run())


def test_a_body_that_never_arrives_keeps_no_other_client_waiting(tmp_path: Path) -> None:
    """Requests sent ahead of an answer: eight without their bodies, and one whose client is honest."""
    health = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    search = f"POST {ONE}/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    limits = ServiceLimits(pipelined_at_once=2)
    with ExitStack() as stack:
        folder = build(tmp_path / "notes.coil")
        server = stack.enter_context(running([folder], ServiceOptions(limits=limits), HashEncoder()))
        for _ in range(8):
            stack.enter_context(connected(server)).sendall(health + search)
        for _ in range(20):
            with connected(server) as connection:
                connection.sendall(health + search)
                read_answer(connection)
        honest = stack.enter_context(connected(server))
        honest.settimeout(5)
        honest.sendall(health * 3)
        assert [read_answer(honest).status for _ in range(3)] == [200, 200, 200]


def test_few_requests_begin_each_time_the_loop_comes_round() -> None:
    async def run() -> list[list[int]]:
        starts, begun = Starts(4), []
        for number in range(10):
            starts.begin(lambda number=number: begun.append(number))  # type: ignore[misc]
        starts.begin(lambda: begun.append(99), urgent=True)
        seen = []
        while len(begun) < 11:
            await asyncio.sleep(0)
            seen.append(list(begun))
        return seen

    seen = asyncio.run(run())
    assert [len(begun) for begun in seen] == [4, 8, 11]
    assert seen[-1] == [99, *range(10)]


@pytest.mark.parametrize("urgent", [True, False])
def test_no_flood_of_requests_keeps_the_others_from_starting(urgent: bool) -> None:
    """Each request of the flood is followed by another as soon as it has started."""
    flooded, others = 0, []

    async def run() -> None:
        starts = Starts(4)

        def flood() -> None:
            nonlocal flooded
            flooded += 1
            starts.begin(flood, urgent=urgent)

        for _ in range(48):
            starts.begin(flood, urgent=urgent)
        for number in range(12):
            starts.begin(lambda number=number: others.append(number), urgent=not urgent)  # type: ignore[misc]
        for _ in range(40):
            await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(run(), 20))
    assert others == list(range(12))
    assert flooded >= 120  # what the others leave, the flood may use


def test_requests_sent_ahead_are_not_parsed_in_one_stretch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = []
    take = Connection._take

    def noting(self: Connection, data: bytes) -> None:
        before = self._heads
        take(self, data)
        heads.append(self._heads - before)

    monkeypatch.setattr(Connection, "_take", noting)
    address = "/v1/indexes/notes/documents?doc_id="
    asks = [f"GET {address}{n} HTTP/1.1\r\nHost: localhost\r\n\r\n" for n in range(12)]
    with (
        running([build(tmp_path / "notes.coil", 5)], encoder=HashEncoder()) as server,
        connected(server) as connection,
    ):
        connection.sendall("".join(asks).encode())
        for number in range(12):
            assert f"no document has the id '{number}'" in read_answer(connection).body.decode()
    assert sum(heads) >= 12
    assert max(heads) == 1
