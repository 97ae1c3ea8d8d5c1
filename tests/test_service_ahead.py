"""Requests sent ahead of an answer: a few are answered at a time, and other clients come in between."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect

from coil.service.answers import Asked
from coil.service.connections import Connection
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.service.replies import Reply
from coil.service.service import Gone, Service
from coil.service.turns import Starts, Turn, Turns
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, read_answer
from tests.serving import running
from tests.test_service import ONE, build


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


_LENGTH = "Content-Length: "
_CHUNKED = "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "end",
    ["\r\n", f"{_LENGTH}0\r\n\r\n", f"{_LENGTH}00\r\n\r\n", f"{_LENGTH}1\r\n\r\nx", _CHUNKED],
    ids=["none", "empty", "two zeros", "body", "chunked"],
)
def test_few_requests_that_were_sent_ahead_are_answered_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A GET with a body waits as well: nothing reads that body."""
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
            requests = (f"GET {ONE}/search?q={q} HTTP/1.1\r\nHost: localhost\r\n{end}" for q in queries)
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
