"""A server under attack: its memory stays bounded, and it goes on answering.

The sizes are small here and large in `make soak`.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from coil.indexes.opening import create
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder
from tests.raw_http import wait_until
from tests.test_service import ONE
from tests.test_service_concurrency import start

SOAK = "COIL_CRASH_ROUNDS" in os.environ
MB = 10**6
HEADERS = (144 if SOAK else 48) * MB  # of each of four connections
IDLE = 4000 if SOAK else 700
LAZY = 200 if SOAK else 64
PAD = 100_000  # bytes of fields of each of 40 documents: a batch asks for half a gigabyte
QUERIES = 128
ALLOWED = 150 * MB  # more than at the beginning; --max-answer is 8 MiB


class Attacked:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process, self.url = process, url
        self.client = httpx.Client(base_url=url, timeout=30)
        self.before = self.peak()

    def peak(self) -> int:
        """The most memory that the process ever had, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024

    def connect(self, receive_buffer: int | None = None) -> socket.socket:
        address = urlsplit(self.url)
        connection = socket.socket()
        if receive_buffer is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        connection.settimeout(20)
        connection.connect((address.hostname, address.port))
        return connection

    def searches_and_refusals(self) -> float:
        """How many queries were answered, and how many requests were refused."""
        lines = self.client.get("/metrics").text.splitlines()
        counted = ("coil_queries_total{", "coil_errors_total{")
        return sum(float(line.rsplit(maxsplit=1)[1]) for line in lines if line.startswith(counted))

    def check(self) -> None:
        """It answers, and its memory is bounded."""
        assert self.client.get("/health").status_code == 200
        got = self.client.get(f"{ONE}/search", params={"q": "river", "k": 1})
        assert got.status_code == 200, got.text[:300]
        assert self.peak() - self.before < ALLOWED


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc")
    folder = tmp_path_factory.mktemp("attacked") / "notes.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add(Document(f"d/{i}", f"river {i}", {"pad": "x" * PAD}) for i in range(40))
    process, url = start(str(folder), "--max-answer", "8", "--threads", "2", "--max-seconds", "60")
    log = threading.Thread(target=lambda: process.stderr and process.stderr.read())
    log.start()
    try:
        with httpx.Client(base_url=url, timeout=30) as client:
            wait_until(lambda: client.get("/ready").status_code == 200)
            for _ in range(3):
                client.get(f"{ONE}/search", params={"q": "river", "k": 40})
        attacked = Attacked(process, url)
        with attacked.client:
            yield attacked
    finally:
        process.terminate()
        process.wait(60)
        log.join()
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()
    assert process.returncode == 0


def test_endless_headers(attacked: Attacked) -> None:
    def send(part: bytes) -> None:
        sent = 0
        with attacked.connect() as connection, suppress(OSError):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: ")
            while sent < HEADERS:
                connection.sendall(part)
                sent += len(part)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(send, [b"a" * MB, b"a" * 1000 + b"\r\nX: ", b"a" * MB, b"a: 1\r\n" * 1000]))
    attacked.check()


def test_answers_of_half_a_gigabyte(attacked: Attacked) -> None:
    body = {"queries": ["river"] * QUERIES, "k": 40}

    def ask(_: int) -> int:
        return httpx.post(f"{attacked.url}{ONE[1:]}/search_batch", json=body, timeout=120).status_code

    with ThreadPoolExecutor(6) as pool:
        statuses = list(pool.map(ask, range(6)))
    assert set(statuses) <= {413, 503}
    attacked.check()


def test_clients_that_never_read(attacked: Attacked) -> None:
    before = attacked.searches_and_refusals()
    with ExitStack() as stack:
        for _ in range(LAZY):
            connection = stack.enter_context(attacked.connect(receive_buffer=4096))
            connection.sendall(f"GET {ONE}/search?q=river&k=40 HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        def all_answered() -> bool:
            """Each of them has its answer, of which it read nothing, or was sent away."""
            return attacked.searches_and_refusals() >= before + LAZY

        wait_until(all_answered, 60)
        attacked.check()


def test_idle_connections(attacked: Attacked) -> None:
    with ExitStack() as stack:
        for _ in range(IDLE):
            with suppress(OSError):
                stack.enter_context(attacked.connect())
        attacked.check()


def test_pipelined_requests_without_end(attacked: Attacked) -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with attacked.connect(receive_buffer=4096) as connection, suppress(OSError):
        connection.settimeout(1)
        for _ in range(200):
            connection.sendall(ask)
    attacked.check()
    text = attacked.client.get("/metrics").text
    assert 'status="500"' not in text
    assert json.dumps("failure") not in text
