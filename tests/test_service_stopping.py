"""How a server stops: what it finishes, what it gives up, and what it says."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.requests import ClientDisconnect

from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.lists.rows import encode_spans
from coil.service import service, uploads
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.service.served import open_all
from coil.service.service import Service, _Asking
from coil.service.workers import Job, Workers
from coil.texts.values import Document
from coil.tokens.chunks import chunk_spans
from coil.tokens.contexts import NO_CONTEXT
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder, answers
from tests.raw_http import read_answer, wait_until
from tests.serving import TOKEN, running
from tests.test_service import ONE, WRITE, build
from tests.test_service_concurrency import start


@contextmanager
def with_an_upload(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A server in a process of its own that is receiving documents."""
    folder = tmp_path / "notes.coil"
    create(folder, encoder=HashEncoder()).close()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    process, url = start(str(folder), "--token-file", str(tmp_path / "token"))
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as client:
        client.sendall(
            f"POST {ONE}/documents HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Length: 28\r\n\r\n{{".encode()
        )
        wait_until(lambda: "coil_requests_in_flight 2.0" in httpx.get(f"{url}metrics", timeout=20).text)
        yield process, client


def test_a_second_interruption_gives_up_at_once_and_leaves_no_traceback(tmp_path: Path) -> None:
    with with_an_upload(tmp_path) as (process, client):
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not is_listening(client))
        process.send_signal(signal.SIGINT)
        assert "nothing was changed" in read_answer(client).problem()["detail"]  # its body had not arrived
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    *logged, last = [line for line in err.splitlines() if line]
    assert last == "coil: interrupted"
    assert {json.loads(line)["level"] for line in logged} == {"info"}, err


def is_listening(client: socket.socket) -> bool:
    """Whether the server at the other end of a connection takes further ones."""
    try:
        socket.create_connection(client.getpeername(), timeout=20).close()
    except ConnectionError:
        return False
    return True


def test_a_server_started_with_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does; it is inherited
    try:
        with with_an_upload(tmp_path) as (process, client):
            process.send_signal(signal.SIGHUP)
            assert is_listening(client)
            client.sendall(b'"id": "a", "text": "river"}')
            assert read_answer(client).status == 200
            assert is_listening(client)
            process.terminate()
            process.communicate(timeout=60)
        assert process.returncode == 0
    finally:
        signal.signal(signal.SIGHUP, before)


class Stopping(HashEncoder):
    """Lets the server stop while it encodes the first text of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.stop: Callable[[], object] | None = None
        self.encoded = 0

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        for vectors in super().encode_documents(texts):
            if self.stop is not None:
                self.stop()
                self.encoded += 1
            yield vectors


def test_one_long_document_does_not_hold_up_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CHANGES_MAY_TAKE", 0.0)
    folder, encoder = build(tmp_path / "notes.coil", 3), Stopping()
    text = "river bank " * 40_000
    chunks = len(chunk_spans(encoder.tokenizer, text, encoder.config.profile.document_length))
    with running([folder], ServiceOptions(token=TOKEN), encoder) as server:
        encoder.stop = server.service.begin_to_stop
        line = json.dumps({"id": "long", "text": text})
        answer = server.client.post(f"{ONE}/documents", content=line, headers=WRITE)
        assert answer.status_code == 503
        assert answer.json()["detail"] == "the server is stopping; nothing was changed"
    assert 0 < encoder.encoded < chunks / 4
    with open_index(folder, HashEncoder()) as index:
        assert not index.has("long")


@pytest.mark.parametrize("at", [30, 3_030], ids=["checked", "read"])
def test_lines_without_a_document_do_not_hold_up_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Every line is looked at twice; millions of them take minutes."""
    monkeypatch.setattr(service, "CHANGES_MAY_TAKE", 0.0)
    looked_at = 0

    def look(raw: bytes) -> bool:
        nonlocal looked_at
        looked_at += 1
        if looked_at == at:
            server.service.begin_to_stop()
        return True

    monkeypatch.setattr(uploads, "is_utf8", look)
    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        answer = server.client.post(f"{ONE}/documents", content=b" \n" * 3_000, headers=WRITE)
        assert answer.status_code == 503
        assert answer.json()["detail"] == "the server is stopping; nothing was changed"
    assert looked_at == at


def test_an_upload_that_was_written_in_part_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build(tmp_path / "notes.coil", 3)

    def update(
        index: Index, documents: Iterable[Document], left_out: object, go_on: Callable[[], object]
    ) -> int:
        index.add(list(documents)[:1])
        server.service.begin_to_stop(at_once=True)
        go_on()
        raise AssertionError("it was told to end")

    monkeypatch.setattr(Index, "update", update)
    lines = "".join(json.dumps({"id": f"n{i}", "text": "river"}) + "\n" for i in range(2))
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        answer = server.client.post(f"{ONE}/documents", content=lines, headers=WRITE)
        assert answer.status_code == 503
        assert "some of the documents were written" in answer.json()["detail"]


def test_a_change_that_has_not_begun_is_given_up_with_the_server(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 3)

    async def stop_while_it_waits() -> None:
        served = server.service.served["notes"]
        over = threading.Event()
        first = served.write(lambda index: over.wait(20))
        deleting = asyncio.create_task(server.service.delete("notes", ["d/1"]))
        await asyncio.sleep(0.1)
        deleting.cancel()
        with pytest.raises(Problem, match="nothing was changed"):
            await deleting
        over.set()
        first.result(20)

    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        asyncio.run(stop_while_it_waits())
        assert server.client.get(f"{ONE}/documents/d/1").status_code == 200


@pytest.mark.parametrize("text", ["'" * 60_000, "river bank " * 20_000, "ab " * 30_000])
def test_little_is_encoded_between_two_looks_at_the_time(text: str) -> None:
    """A token may have one character or many."""
    encoder, tokens, most = HashEncoder(), 0, 0
    spans = chunk_spans(encoder.tokenizer, text, encoder.config.profile.document_length)

    def go_on() -> None:
        nonlocal tokens
        tokens = 0

    class Counting(HashEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
            nonlocal tokens, most
            for vectors in super().encode_documents(texts):
                tokens += len(vectors.positions)
                most = max(most, tokens)
                yield vectors

    [(_, rows)] = encode_spans(Counting(), [(1, Document("a", text), spans)], NO_CONTEXT, go_on)
    assert len(rows) == len(spans)
    assert most < 9_000


def test_a_search_that_does_not_end_does_not_hold_up_a_stop() -> None:
    over, runs = threading.Event(), threading.Event()

    def answer(values: list[object], seconds: float) -> list[object]:
        runs.set()
        over.wait(60)
        return values

    workers = Workers(2, 8, lambda size, waited: None)
    future = workers.submit(Job(None, 1, answer, time.monotonic() + 60))
    assert runs.wait(20)
    began = time.monotonic()
    assert workers.stop(0.2) == 1
    assert time.monotonic() - began < 10
    over.set()
    assert future.result(20) == 1


def test_an_explanation_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that makes it is free soon after the 504."""
    build(tmp_path / "notes.coil", 3)
    made = threading.Event()

    def parts(*given: Any) -> tuple[()]:
        go_on = given[-1]
        try:
            while True:
                go_on()
                time.sleep(0.01)
        finally:
            made.set()

    monkeypatch.setattr("coil.explanations.explainer.split_sentence_part", parts)
    options = ServiceOptions(limits=ServiceLimits(seconds=0.5))
    with running([tmp_path / "notes.coil"], options, HashEncoder()) as server:
        answer = server.client.get(f"{ONE}/explain", params={"q": "river", "doc_id": "d/1"})
        assert answer.status_code == 504
        assert made.wait(10)


def test_cutting_a_long_document_can_be_ended() -> None:
    asked = 0

    def go_on() -> None:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise InterruptedError

    encoder = HashEncoder()
    with pytest.raises(InterruptedError):
        chunk_spans(encoder.tokenizer, "river bank " * 100_000, 32, go_on)


def test_vectors_are_the_same_when_they_are_made_in_parts(tmp_path: Path) -> None:
    given = [Document(f"d{i}", "river bank money loan " * (i * i)) for i in range(60)]
    found = []
    for name, go_on in (("a", None), ("b", lambda: None)):
        with create(tmp_path / name, encoder=HashEncoder()) as index:
            assert index.update(given, lambda empty: None, go_on) == 59
            found.append(answers(index))
    assert found[0] == found[1]


def test_a_job_that_fails_after_its_client_is_gone_is_not_reported(tmp_path: Path) -> None:
    """A second Ctrl-C cancels a batch; the slice that a thread is about to answer then has no state."""
    service = Service(open_all([build(tmp_path / "notes.coil", 3)], 1, HashEncoder()), ServiceOptions())
    go_on, told = threading.Event(), list[Any]()

    def answer(_: list[Any], seconds: float) -> list[Any]:
        go_on.wait(seconds)
        raise ClientDisconnect

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        asked = asyncio.create_task(service._ask(answer, None, _Asking()))
        await asyncio.sleep(0.1)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        del asked
        go_on.set()
        await asyncio.sleep(0.2)

    asyncio.run(run())
    service.stop()  # until then, the thread keeps its last job
    gc.collect()
    assert told == []
