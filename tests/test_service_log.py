"""The log: requests do not wait for its reader, and no line is lost that somebody reads."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
import warnings
from io import StringIO
from pathlib import Path

import httpx

from coil.indexes.opening import create
from coil.service.logs import LineWriter, log_as_json
from tests.hash_encoder import HashEncoder
from tests.test_service_concurrency import start


def tell(writer: LineWriter, number: int) -> None:
    writer.emit(logging.makeLogRecord({"msg": "request", "levelname": "INFO", "number": number}))


def test_lines_that_nobody_reads_are_dropped_and_counted() -> None:
    reading, writing = os.pipe()
    n, received = 20_000, b""
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", 0) as reader:
        writer = LineWriter(stream, most_waiting=1 << 16)
        began = time.monotonic()
        for number in range(n):
            tell(writer, number)
        assert time.monotonic() - began < 20  # with nobody reading
        while b"dropped" not in received:
            received += reader.read(1 << 16)
        tell(writer, n)
        threading.Thread(target=writer.close).start()
        while b'"number": 20000}' not in received:
            received += reader.read(1 << 16)
    *lines, last = map(json.loads, received.splitlines())
    assert last["number"] == n
    numbers = [line["number"] for line in lines if line["event"] == "request"]
    assert numbers == sorted(set(numbers))  # on a busy machine some are dropped in between as well
    dropped = [line for line in lines if line["event"] != "request"]
    assert {(line["event"], line["level"]) for line in dropped} == {("log lines dropped", "warning")}
    assert len(numbers) + sum(line["lines"] for line in dropped) == n


def test_closing_waits_for_every_line_that_is_read() -> None:
    class Slow(StringIO):
        def write(self, text: str) -> int:
            time.sleep(0.001)
            return super().write(text)

    stream = Slow()
    writer = LineWriter(stream)
    for number in range(500):
        tell(writer, number)
    writer.close()
    assert [json.loads(line)["number"] for line in stream.getvalue().splitlines()] == list(range(500))


def test_closing_does_not_wait_for_a_reader_that_stalls() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", 0) as reader:
        writer = LineWriter(stream)
        for number in range(5_000):
            tell(writer, number)
        began = time.monotonic()
        writer.close()
        writer.close()
        assert time.monotonic() - began < 20
        while b'"number": 4999}' not in reader.read(1 << 16):  # its thread ends before the pipe is closed
            pass


def test_a_pipe_that_does_not_block_loses_no_line() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    n, received = 5_000, b""  # more than a pipe holds
    with os.fdopen(writing, "w") as stream, os.fdopen(reading, "rb", 0) as reader:
        writer = LineWriter(stream)
        for number in range(n):
            tell(writer, number)
        while b'"number": 4999}' not in received:
            received += reader.read(1 << 16)
        writer.close()
    assert [json.loads(line)["number"] for line in received.splitlines()] == list(range(n))


def test_warnings_of_everybody_are_lines_of_the_log() -> None:
    stream = StringIO()
    writer = log_as_json(stream)
    try:
        logging.getLogger("coil.index").warning("a merge failed")
        logging.getLogger("asyncio").error("an exception\nthat nobody looked at")
        logging.getLogger("coil.service").info("request", extra={"status": 200})
        logging.getLogger("other").info("not worth a line")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a file was left open", ResourceWarning, stacklevel=1)
    finally:
        logging.captureWarnings(False)
        writer.close()
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines[:3]] == [
        "a merge failed",
        "an exception\nthat nobody looked at",
        "request",
    ]
    assert "a file was left open" in lines[3]["event"]
    assert len(lines) == 4


def test_a_server_answers_and_stops_while_nobody_reads_its_log(tmp_path: Path) -> None:
    create(tmp_path / "notes.coil", encoder=HashEncoder()).close()
    process, url = start(str(tmp_path / "notes.coil"))
    with httpx.Client(base_url=url, timeout=20) as client:
        for _ in range(600):  # more than a pipe holds
            assert client.get("/health").status_code == 200
    process.terminate()
    assert process.wait(60) == 0
    process.communicate()


def test_a_server_that_stops_has_written_every_line(tmp_path: Path) -> None:
    create(tmp_path / "notes.coil", encoder=HashEncoder()).close()
    process, url = start(str(tmp_path / "notes.coil"))
    with httpx.Client(base_url=url, timeout=20) as client:
        for number in range(50):
            client.get("/health", headers={"X-Request-Id": f"n-{number}"})
    process.terminate()
    _, err = process.communicate(timeout=60)
    asked = [line["request_id"] for line in map(json.loads, err.splitlines())]
    assert asked == [f"n-{number}" for number in range(50)]
