"""/metrics and floods of requests: neither makes the others wait for long."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from coil.service import meters
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.meters import Meters
from tests.hash_encoder import HashEncoder
from tests.raw_http import connected, read_answer
from tests.serving import running
from tests.test_service import ONE, build

ODD = ("PUT", "PATCH", "COPY", "LOCK", "MKCOL", "MOVE", "PROPFIND", "PURGE", "REPORT", "TRACE", "M-SEARCH")
PATHS = ("/", "/health", "/metrics", "/v1/indexes", f"{ONE}/search", f"{ONE}/documents/x")


def test_methods_that_no_route_has_are_one_label(tmp_path: Path) -> None:
    with running([build(tmp_path / "notes.coil", 3)], None, HashEncoder()) as server:
        for path in PATHS:
            for method in ODD:
                assert server.client.request(method, path).status_code == 405
        text = server.client.get("/metrics").text
    assert 'method="other",route="/health",status="405"' in text
    assert not [method for method in ODD if f'"{method}"' in text]


def test_metrics_are_not_written_for_every_client_that_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[None] = []

    def write(_: object) -> bytes:
        written.append(None)
        end = time.thread_time() + 0.01
        while time.thread_time() < end:
            pass
        return b"metrics"

    monkeypatch.setattr(meters, "generate_latest", write)
    all_meters = Meters(lambda: 0.0, lambda: 0.0)
    began = time.monotonic()
    while time.monotonic() < began + 0.5:
        assert all_meters.text() == b"metrics"
    assert 2 <= len(written) <= 4


def test_a_request_that_waited_too_long_for_its_start_is_sent_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(_: object) -> bytes:
        time.sleep(0.25)  # in the event loop
        return b"metrics"

    monkeypatch.setattr(meters, "generate_latest", write)
    monkeypatch.setattr(meters, "_REST", 0.0)
    options = ServiceOptions(limits=ServiceLimits(seconds=0.5))
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server, ExitStack() as stack:
        clients = [stack.enter_context(connected(server)) for _ in range(17)]
        for client in clients:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(client).status == 200
        for client in clients[:-1]:
            client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        time.sleep(0.1)
        clients[-1].sendall(f"GET {ONE}/search?q=river HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        answer = read_answer(clients[-1])
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.problem()["detail"] == "the request could not be started within 0.5 seconds"
        assert server.client.get("/health").status_code == 200
