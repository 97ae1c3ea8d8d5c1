"""Connections that send too much, too slowly or too many, and requests as no library would send them."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from coil.errors import OutputError
from coil.indexes.opening import create
from coil.service.connections import SPARE, Connection
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.server import fit_to_files
from coil.service.turns import Starts
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, errors, is_closed, read_all, read_answer, wait_until
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build
from tests.test_service_concurrency import start
from tests.test_service_fairness import gated

HOST = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\n" + HOST + b"\r\n"
LIMITS = ServiceLimits(header_seconds=0.4, idle_seconds=2, answer_seconds=1.0, connections=6, pipelined=4)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil")
    with running([folder], ServiceOptions(limits=LIMITS, token=TOKEN), HashEncoder()) as found:
        wait_until(lambda: found.client.get("/ready").status_code == 200)
        yield found
        text = found.client.get("/metrics").text
        assert 'status="500"' not in text


def send_until_refused(connection: socket.socket, part: bytes, most: int) -> int:
    """Send up to `most` bytes; returns how many were sent before the server stopped taking them."""
    sent = 0
    connection.settimeout(2)
    with suppress(OSError):
        while sent < most:
            connection.sendall(part)
            sent += len(part)
    connection.settimeout(20)
    return sent


@pytest.mark.parametrize(
    ("begin", "part"),
    [
        (b"GET /health HTTP/1.1\r\nX: ", b"a" * 4096),
        (b"GET /health HTTP/1.1\r\n", b"X: " + b"a" * 1000 + b"\r\n"),
        (b"GET /health HTTP/1.1\r\n", b"X: 1\r\n"),
        (b"GET /", b"a" * 4096),
        (b"GET /health HTTP/1.1\r\nX", b"a" * 4096),
        (b"", b"\r\n" * 2048),
        (
            b"POST /v1/indexes HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: ",
            b"a" * 4096,
        ),
        (b"POST /v1/indexes HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n1;x=", b"a" * 4096),
    ],
    ids=["value", "fields", "tiny fields", "address", "name", "blank lines", "trailer", "chunk extension"],
)
def test_headers_have_a_size(server: Running, begin: bytes, part: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(begin)
        send_until_refused(connection, part, 300_000)
        answer = read_all(connection)  # 431, or 405 of a request whose trailers never ended: and then the end
    assert answer[9:12] in (b"431", b"405", b""), answer[:300]
    assert b" 200 " not in answer
    assert server.client.get("/health").status_code == 200


def test_the_refusal_names_the_limit(server: Running) -> None:
    for head, limit in ((b"X: " + b"a" * 70_000, "65,536 bytes"), (b"X: 1\r\n" * 101, "100 header fields")):
        with connected(server) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + head)
            answer = read_answer(connection)
            assert answer.status == 431
            assert answer.problem()["detail"] == f"the headers exceed the limit of {limit}"
            assert answer.headers["connection"] == "close"
            assert is_closed(connection)
    with connected(server) as connection:  # and what is within it is read
        connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"a" * 60_000 + b"\r\n\r\n")
        assert read_answer(connection).status == 200


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "second"])
def test_headers_have_a_time(server: Running, before: bytes) -> None:
    """One byte now and then keeps no connection open."""
    with connected(server) as connection:
        if before:
            connection.sendall(before)
            assert read_answer(connection).status == 200
        began = time.monotonic()
        with suppress(OSError):
            for byte in b"GET /health HTTP/1.1\r\nX-Slow: " + b"a" * 100:
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
                if time.monotonic() - began > 1.5:
                    break
        answer = read_answer(connection)
        assert answer.status == 408
        assert answer.problem()["detail"] == "the headers did not arrive within 0.4 seconds"
        assert is_closed(connection)
        assert time.monotonic() - began < 10


def test_a_connection_that_says_nothing_is_closed(server: Running) -> None:
    with connected(server) as connection:
        assert is_closed(connection)  # within header_seconds
    with connected(server) as connection:
        connection.sendall(HEALTH)
        assert read_answer(connection).status == 200
        assert is_closed(connection)  # within idle_seconds


def test_a_slow_request_is_not_taken_for_slow_headers(server: Running) -> None:
    with connected(server) as connection:
        head = b"POST /v1/indexes/notes/search HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 18\r\n\r\n")
        time.sleep(0.6)  # longer than header_seconds
        connection.sendall(b'{"query": "river"}')
        assert read_answer(connection).status == 200


def test_a_body_that_goes_on_after_its_answer_ends_the_connection(server: Running) -> None:
    with connected(server) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 1000000\r\n\r\n")
        assert read_answer(connection).status == 200
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 15:
                connection.sendall(b" " * 100)
                time.sleep(0.05)
        assert time.monotonic() - began < 10


def test_idle_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    limits = ServiceLimits(connections=6)
    with (
        running([build(tmp_path / "notes.coil", 3)], ServiceOptions(limits=limits), HashEncoder()) as server,
        ExitStack() as stack,
    ):
        idle = [stack.enter_context(connected(server)) for _ in range(100)]
        with connected(server) as connection:
            connection.sendall(HEALTH)
            assert read_answer(connection).status == 200
        assert is_closed(idle[0])  # those that waited longest went
        closed = 0
        for connection in idle:
            connection.settimeout(0.001)
            with suppress(TimeoutError):
                closed += is_closed(connection)
        assert 100 - closed <= limits.connections + SPARE
        assert errors(server, "crowded_out") >= 100 - limits.connections - SPARE


def test_requests_on_too_many_connections_are_sent_away(tmp_path: Path) -> None:
    head = f"POST {ONE}/search HTTP/1.1\r\n".encode() + HOST + b"Content-Length: 17\r\n"
    with (
        gated(build(tmp_path / "notes.coil", 3), threads=2, connections=6) as (server, encoder),
        ExitStack() as stack,
    ):
        slow = [stack.enter_context(connected(server)) for _ in range(6)]
        for connection in slow:
            connection.sendall(head + b'Content-Type: application/json\r\n\r\n{"query": "slow"}')
        wait_until(lambda: "coil_requests_in_flight 7.0" in refused_or_metrics(server))
        with connected(server) as connection:
            connection.sendall(b"GET /v1/indexes HTTP/1.1\r\n" + HOST + b"\r\n")
            answer = read_answer(connection)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert "the limit of 6 connections" in answer.problem()["detail"]
            assert is_closed(connection)
        assert server.client.get("/health").status_code == 200
        for _ in range(SPARE):
            connection = stack.enter_context(connected(server))
            connection.sendall(head + b"\r\n")
        encoder.allowed.release(100)
        for connection in slow:
            assert read_answer(connection).status == 200
        wait_until(lambda: server.client.get("/v1/indexes").status_code == 200)


def refused_or_metrics(server: Running) -> str:
    """The metrics; a seventh connection may not have them."""
    return f"coil_requests_in_flight {server.service.meters.in_flight._value.get() + 1}"


def test_a_client_that_never_reads_is_dropped(server: Running) -> None:
    before = errors(server, "slow_reader")
    lines = b"\n".join(b'{"id": "%d", "text": "river", "pad": "%s"}' % (i, b"x" * 10**6) for i in range(8))
    assert server.client.post(f"{ONE}/documents", content=lines, headers=WRITE).status_code == 200
    with connected(server, receive_buffer=4096) as connection:
        connection.sendall(f"GET {ONE}/search?q=river&k=48 HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        wait_until(lambda: errors(server, "slow_reader") == before + 1)
        assert len(read_all(connection)) < 8 * 10**6
    with connected(server) as connection:  # one that reads gets it all
        connection.sendall(f"GET {ONE}/search?q=river&k=48 HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        assert len(read_answer(connection).body) > 8 * 10**6


def test_small_answers_that_are_never_read_do_not_pile_up(server: Running) -> None:
    with connected(server, receive_buffer=4096) as connection:
        ask = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
        sent, end = 0, time.monotonic() + 20
        connection.settimeout(0.5)
        with suppress(OSError):
            while time.monotonic() < end:
                try:
                    connection.sendall(ask)
                    sent += 1
                    time.sleep(0.002)
                except TimeoutError:
                    continue
        assert time.monotonic() < end, "the server kept the connection"


def test_a_body_in_tiny_chunks_lets_others_in_between(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each chunk costs a call: a read of 256 KiB would otherwise keep everyone waiting."""
    body = json.dumps({"query": "river", "k": 3}).encode().ljust(120_000)
    whole = server.client.post(f"{ONE}/search", content=body, headers={"Content-Type": "application/json"})
    assert whole.status_code == 200
    parse, begin, pieces, begun = Connection._parse, Starts.begin, [], []

    def parsing(self: Connection, piece: bytes) -> None:
        if self._in_body:
            pieces.append(len(piece))
        parse(self, piece)

    def beginning(self: Starts, start: Callable[[], object], urgent: bool = False) -> None:
        begun.append(getattr(start, "__name__", ""))
        begin(self, start, urgent)

    monkeypatch.setattr(Connection, "_parse", parsing)
    monkeypatch.setattr(Starts, "begin", beginning)
    with connected(server) as connection:
        connection.sendall(f"POST {ONE}/search HTTP/1.1\r\n".encode() + HOST)
        connection.sendall(b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        answer = read_answer(connection)
        assert answer.status == 200
        assert json.loads(answer.body)["hits"] == whole.json()["hits"]
        connection.sendall(HEALTH)  # what follows on the connection is read as ever
        assert read_answer(connection).status == 200
    assert sum(pieces) == 6 * len(body) + 5
    assert max(pieces) <= 4096
    assert begun.count("_take_held") > 100


def test_a_request_after_a_body_that_nobody_reads_is_answered(server: Running) -> None:
    body = (b"%x\r\n" % 30 + b"a" * 30 + b"\r\n") * 8000 + b"0\r\n\r\n"
    with connected(server) as connection:
        for _ in range(3):
            connection.sendall(f"GET {ONE}/search?q=river HTTP/1.1\r\n".encode() + HOST)
            connection.sendall(b"Transfer-Encoding: chunked\r\n\r\n" + body + HEALTH)
            assert [read_answer(connection).status for _ in range(2)] == [200, 200]


def test_a_body_that_nobody_reads_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest, on_body = [0], Connection.on_body

    def counting(self: Connection, body: bytes) -> None:
        on_body(self, body)
        largest[0] = max(largest[0], len(self.cycle.body))

    monkeypatch.setattr(Connection, "on_body", counting)
    index = build(tmp_path / "notes.coil")
    # With small pieces, a read has several of them, whatever the system's buffers are.
    with gated(index, threads=2, header_bytes=4096) as (server, encoder), connected(server) as client:
        client.sendall(f"GET {ONE}/search?q=slow+river HTTP/1.1\r\n".encode() + HOST)
        client.sendall(b"Transfer-Encoding: chunked\r\n\r\n")
        chunks = (b"%x\r\n" % 30 + b"a" * 30 + b"\r\n") * 10_000
        sent = send_until_refused(client, chunks, 64 << 20)
        assert encoder.reached == 1
        assert sent < 64 << 20  # the rest is in the buffers of the system
        encoder.allowed.release(100)
    assert 65_536 < largest[0] < 600_000  # uvicorn's limit and one read


def test_pipelined_requests_are_answered_in_order_and_have_a_limit(server: Running) -> None:
    with connected(server) as connection:
        paths = [f"{ONE}/search?q=river&k=1", "/health", "/nowhere", f"{ONE}/documents/d/1"]
        connection.sendall(b"".join(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n" for path in paths))
        answers = [read_answer(connection) for _ in paths]
        assert [answer.status for answer in answers] == [200, 200, 404, 200]
        assert b"alive" in answers[1].body
    with connected(server) as connection:
        connection.sendall(HEALTH * 5000)
        received = read_all(connection)
        assert received.count(b"HTTP/1.1 200") <= LIMITS.pipelined + 1
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n\r\n", {421}),
        (b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n", {200}),
        (b"GET http://localhost/health HTTP/1.1\r\n" + HOST + b"\r\n", {200}),
        (b"GET //health HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
        (b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404, 405}),
        (b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404, 405}),
        (b"TRACE / HTTP/1.1\r\n" + HOST + b"\r\n", {405}),
        (b"GET / HTTP/9.9\r\n" + HOST + b"\r\n", {400, 505}),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", {400}),
        (b"GET /hea\x00lth HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
        (b"GET /hea%00lth HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
        (b"GET /\xff\xfe HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404}),
        (b"GET /%ff%fe HTTP/1.1\r\n" + HOST + b"\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X: a\x00b\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"X : a\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: -1\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 1e3\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", {400}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n", {413}),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", {400}),
        (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", {400, 405}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", {200}),
        (b"GET /health HTTP/1.1\r\n" + HOST + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", {200}),
        (b"GET /health?" + b"a" * 50_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {200}),
        (b"GET /" + b"a" * 50_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
        (b"GET /v1/indexes/" + b"a" * 50_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
        (b"GET /v1/indexes/notes/documents/" + b"a" * 50_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {404}),
        (b"GET /v1/indexes/notes/search?q=a&k=" + b"9" * 5000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {422}),
        (b"GET /v1/indexes/notes/search?" + b"a&" * 20_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n", {422}),
    ],
)
def test_odd_requests_are_answered_or_refused(
    server: Running, request_bytes: bytes, expected: set[int]
) -> None:
    with connected(server) as connection:
        connection.sendall(request_bytes)
        answer = read_answer(connection)
        assert answer.status in expected, answer
        if answer.status >= 400:
            assert len(answer.problem()["detail"]) < 500
    assert server.client.get("/health").status_code == 200


def test_trailers_are_not_taken_for_headers(server: Running) -> None:
    with connected(server) as connection:
        head = f"POST {ONE}/search HTTP/1.1\r\n".encode() + HOST + b"Content-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        connection.sendall(
            b'12\r\n{"query": "river"}\r\n0\r\nHost: evil.example\r\nX-Request-Id: forged\r\n\r\n'
        )
        answer = read_answer(connection)
        assert answer.status == 200
        assert answer.headers["x-request-id"] != "forged"
        connection.sendall(HEALTH)  # and the connection is still in step
        assert read_answer(connection).status == 200


def test_expect_100_continue(server: Running) -> None:
    head = f"POST {ONE}/search HTTP/1.1\r\n".encode() + HOST + b"Content-Type: application/json\r\n"
    with connected(server) as connection:
        connection.sendall(head + b"Expect: 100-continue\r\nContent-Length: 18\r\n\r\n")
        assert read_answer(connection).status == 100
        connection.sendall(b'{"query": "river"}')
        assert read_answer(connection).status == 200
    with connected(server) as connection:  # one that is too large is refused before it is sent
        connection.sendall(head + b"Expect: 100-continue\r\nContent-Length: 9999999\r\n\r\n")
        assert read_answer(connection).status == 413


def test_a_body_that_breaks_off_is_no_failure(server: Running) -> None:
    before = errors(server, "failure")
    head = (
        f"POST {ONE}/documents HTTP/1.1\r\n".encode() + HOST + f"Authorization: Bearer {TOKEN}\r\n".encode()
    )
    with connected(server) as connection:
        connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
    with connected(server) as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n12345\r\nnonsense\r\n")
        assert read_answer(connection).status == 400
    threading.Event().wait(0.2)
    assert errors(server, "failure") == before
    assert server.service.served["notes"].writes_waiting == 0


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\n" + "X: y\r\n" * 200, 431),
        ("GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: {}\r\nX: " + "y" * 70_000, 431),
        ("GET / HTTP/1.1\r\nOrigin: {}\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        ("GET / HTTP/1.1\r\nOrigin: {}\r\nX: y\r\nno header at all\r\n\r\n", 400),
        ("GET / HTTP/1.1\r\nOrigin: {}\r\nX: ", 408),
    ],
)
def test_pages_of_allowed_origins_can_read_refusals_of_any_kind(
    tmp_path: Path, head: str, status: int
) -> None:
    origin = "https://page.example"
    options = ServiceOptions(limits=ServiceLimits(header_seconds=0.5), origins=(origin,))
    with running([build(tmp_path / "notes.coil", 2)], options, HashEncoder()) as server:
        for given, seen in ((origin, origin), ("https://other.example", None)):
            with connected(server) as connection:
                connection.sendall(head.format(given).encode())
                answer = read_answer(connection)
            assert answer.status == status
            assert answer.headers.get("access-control-allow-origin") == seen


def limited(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, may_raise: bool = True) -> list[int]:
    """Pretend that this process may have so many open files; returns what the limit was set to."""
    resource = pytest.importorskip("resource")
    now = [soft]

    def change(_: int, limits: tuple[int, int]) -> None:
        if not may_raise:
            raise ValueError("not allowed")
        assert limits[1] == hard
        now.append(limits[0])

    monkeypatch.setattr(resource, "getrlimit", lambda _: (now[-1], hard))
    monkeypatch.setattr(resource, "setrlimit", change)
    return now


@pytest.mark.parametrize(("soft", "hard"), [(-1, -1), (4096, 4096), (64, 4096), (64, -1)])
def test_the_limit_of_open_files_is_raised(monkeypatch: pytest.MonkeyPatch, soft: int, hard: int) -> None:
    now = limited(monkeypatch, soft, hard)
    assert fit_to_files(ServiceLimits()) == ServiceLimits()
    assert now[-1] == soft if soft != 64 else now[-1] > 512 + SPARE


@pytest.mark.parametrize(("hard", "may_raise"), [(300, True), (4096, False)])
def test_few_files_are_few_connections(monkeypatch: pytest.MonkeyPatch, hard: int, may_raise: bool) -> None:
    limited(monkeypatch, 300, hard, may_raise)
    assert 1 < fit_to_files(ServiceLimits()).connections < 300 - SPARE
    limited(monkeypatch, 8, 8)
    with pytest.raises(OutputError, match="may open 8 files"):
        fit_to_files(ServiceLimits())


def test_a_server_with_few_files_answers_beside_idle_connections(tmp_path: Path) -> None:
    create(tmp_path / "notes.coil", encoder=HashEncoder()).close()
    pytest.importorskip("resource")
    few = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (110, 110))"
    process, url = start(str(tmp_path / "notes.coil"), first=few)
    address = urlsplit(url)
    with ExitStack() as stack:
        for _ in range(150):
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=20))
        for _ in range(3):
            assert httpx.get(f"{url}health", timeout=20).status_code == 200
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "warning: the limit on open files allows only" in err
