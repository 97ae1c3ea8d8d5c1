"""What the service refuses, and what it never tells."""

from __future__ import annotations

import contextlib
import http.client
import io
import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from coil.cli.main import run
from coil.cli.token_file import read_token
from coil.errors import InputError, SearchTimeout
from coil.hits.searcher import Searcher
from coil.indexes.opening import open_index
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.logs import JsonFormatter
from coil.service.served import name_of, open_all
from coil.storage.lock import writer_lock
from coil.storage.snapshot import Snapshot
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build, expect_problem

SMALL = ServiceLimits(
    query_characters=50,
    filter_characters=40,
    k=20,
    batch_queries=3,
    body_bytes=500,
    upload_bytes=2000,
    body_seconds=1.0,
    upload_seconds=1.0,
)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil")
    with running([folder], ServiceOptions(limits=SMALL, token=TOKEN), HashEncoder()) as found:
        yield found


class Log(io.StringIO):
    """What was logged, as objects."""

    def lines(self) -> list[dict]:
        return [json.loads(line) for line in self.getvalue().splitlines()]


@pytest.fixture
def log() -> Iterator[Log]:
    stream = Log()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("coil.service")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(before)


def test_every_limit(small: Running) -> None:
    client = small.client
    refused = [
        (
            client.get(f"{ONE}/search", params={"q": "a" * 51}),
            422,
            "51 characters, which exceeds the limit of 50",
        ),
        (client.get(f"{ONE}/search", params={"q": "a" * 51, "by": "bm25"}), 422, "51 characters"),
        (client.get(f"{ONE}/explain", params={"q": "a" * 51, "doc_id": "d/1"}), 422, "51 characters"),
        (client.get(f"{ONE}/search", params={"q": "a", "k": 21}), 422, "k=21 exceeds the limit of 20"),
        (client.get(f"{ONE}/search", params={"q": "a", "filter": "b" * 41}), 422, "41 characters"),
        (client.post(f"{ONE}/search_batch", json={"queries": ["a"] * 4}), 422, "4 queries"),
        (client.post(f"{ONE}/search", json={"query": "a" * 600}), 413, "500 bytes"),
        (client.post(f"{ONE}/documents", content=b" " * 2001, headers=WRITE), 413, "2,000 bytes"),
        (client.post(f"{ONE}/documents", content=iter([b" " * 1500] * 2), headers=WRITE), 413, "2,000 bytes"),
        (client.post(f"{ONE}/search", content=iter([b" " * 400] * 2)), 413, "500 bytes"),
    ]
    for got, status, said in refused:
        assert got.status_code == status, got.text
        assert said in got.json()["detail"]
        expect_problem(got)
    encoded = {**WRITE, "Content-Encoding": "gzip"}
    assert client.post(f"{ONE}/documents", content=b"x", headers=encoded).status_code == 415
    assert client.get(f"{ONE}/search", params={"q": "a" * 50, "k": 20}).status_code == 200


def test_a_body_that_never_ends_is_given_up(small: Running) -> None:
    address = urlsplit(small.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        head = f"POST {ONE}/search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
        connection.sendall((head + "Content-Type: application/json\r\n\r\n{").encode())
        began = time.monotonic()
        assert b" 408 " in connection.recv(200)
        assert time.monotonic() - began < 10


def test_writing_is_off_without_a_token(tmp_path: Path) -> None:
    with running([build(tmp_path / "notes.coil")], encoder=HashEncoder()) as server:
        for method, path in (("POST", "documents"), ("DELETE", "documents"), ("DELETE", "documents/d/1")):
            body = {"doc_ids": ["d/1"]}
            got = server.client.request(method, f"{ONE}/{path}", headers=WRITE, json=body)
            assert got.status_code == 403
            assert "--token-file" in got.json()["remedy"]
        assert server.client.get("/v1/indexes").json()["indexes"][0]["documents"] == 40


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "Bearer ä"],
)
def test_only_the_token_writes(small: Running, header: str | None) -> None:
    headers = {"Authorization": header.encode()} if header is not None else {}
    got = small.client.post(f"{ONE}/documents", content=b"", headers=headers)
    assert got.status_code == 401
    assert got.headers["www-authenticate"] == "Bearer"
    expect_problem(got)


def test_token_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "token"
    for content in ("", " \n", "two words"):
        path.write_text(content)
        with pytest.raises(InputError, match="expected one token"):
            read_token(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_token(tmp_path / "nothing")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a text file"):
        read_token(path)
    path.write_text("secret\n")
    path.chmod(0o644)
    assert read_token(path) == "secret"
    assert "chmod 600" in capsys.readouterr().err
    path.chmod(0o600)
    assert read_token(path) == "secret"
    assert capsys.readouterr().err == ""


def test_only_expected_hosts(small: Running) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "[::1", "a b"):
        got = small.client.get("/v1/indexes", headers={"Host": host})
        assert got.status_code in (400, 421), host
    for host in ("localhost", "LOCALHOST:1234", "127.0.0.1", "[::1]:80"):
        assert small.client.get("/v1/indexes", headers={"Host": host}).status_code == 200, host


def test_other_origins_are_only_let_in_by_name(tmp_path: Path, small: Running) -> None:
    asked = {"Origin": "https://page.example"}
    closed = small.client.get("/v1/indexes", headers=asked)
    assert "access-control-allow-origin" not in closed.headers
    options = ServiceOptions(origins=("https://page.example",))
    with running([build(tmp_path / "notes.coil", 2)], options, HashEncoder()) as server:
        let_in = server.client.get("/v1/indexes", headers=asked)
        assert let_in.headers["access-control-allow-origin"] == "https://page.example"
        other = server.client.get("/v1/indexes", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        preflight = {**asked, "Access-Control-Request-Method": "POST"}
        assert server.client.options(f"{ONE}/search", headers=preflight).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/page/../app.py",
        "/page/..%2fapp.py",
        "/page/%2e%2e/app.py",
        "/page/....//app.py",
        "/page//etc/passwd",
        "/page/%2fetc%2fpasswd",
        "/page/index.html%00.js",
        "/page/..\\app.py",
        "/page/",
        "/../../etc/passwd",
        "/v1/indexes/..%2f..%2fetc/search?q=a",
        "/v1/indexes/notes.coil/search?q=a",
        f"{ONE}/documents/../../../../etc/passwd",
    ],
)
def test_no_way_out_of_the_page_and_the_indexes(small: Running, path: str) -> None:
    address = urlsplit(small.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("GET", path)  # httpx would tidy the path up
        got = connection.getresponse()
        body = got.read()
    assert got.status == 404, body
    assert b"root:" not in body
    assert b"import" not in body


def test_no_answer_tells_where_anything_is(tmp_path: Path, log: Log) -> None:
    folder = build(tmp_path / "hidden-place" / "notes.coil")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        client = server.client
        answers = [
            client.get("/"),
            client.get("/v1/indexes"),
            client.get(ONE),
            client.get(f"{ONE}/search", params={"q": "river", "matches": True}),
            client.get(f"{ONE}/search", params={"q": "river", "filter": "("}),
            client.get(f"{ONE}/search", params={"q": "river", "by": "bm25"}),
            client.get(f"{ONE}/explain", params={"q": "river", "doc_id": "d/1"}),
            client.get(f"{ONE}/explain", params={"q": "river", "doc_id": "x"}),
            client.get(f"{ONE}/documents/x"),
            client.post(f"{ONE}/documents", content="{", headers=WRITE),
            client.get("/metrics"),
            client.get("/openapi.json"),
            client.get("/docs"),
            client.get("/ready"),
        ]
        with writer_lock(folder):
            locked = client.post(f"{ONE}/documents", content='{"id": "a", "text": "b"}', headers=WRITE)
        assert locked.status_code == 409
        assert locked.headers["retry-after"]
        (folder / "segments").rename(folder / "gone")
        lost = client.post(f"{ONE}/documents", content='{"id": "a", "text": "b"}', headers=WRITE)
        assert lost.status_code in (503, 507), lost.text
        for got in (*answers, locked, lost):
            for place in ("hidden-place", str(tmp_path), str(Path.cwd()), sys.prefix, "site-packages"):
                assert place not in got.text, got.text
                assert place not in str(got.headers)
    told = [line for line in log.lines() if line["event"] == "refused"]
    assert any("hidden-place" in line["reason"] for line in told)  # the log does say it


def test_the_log_has_ids_but_no_queries_and_never_the_token(tmp_path: Path, log: Log) -> None:
    folder = build(tmp_path / "notes.coil", 3)
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        got = server.client.get(f"{ONE}/search", params={"q": "sesame", "filter": 'kind = "poppy"'})
        server.client.post(f"{ONE}/search", json={"query": "sesame", "k": -1})
        server.client.post(f"{ONE}/search_batch", json={"queries": ["sesame"]})
        server.client.get(f"{ONE}/explain", params={"q": "sesame", "doc_id": "d/0"})
        server.client.post(f"{ONE}/documents", content="", headers=WRITE)
        server.client.post(f"{ONE}/documents", content="", headers={"Authorization": "Bearer sesame"})
    text = log.getvalue()
    assert "sesame" not in text
    assert "poppy" not in text
    assert TOKEN not in text
    first = next(line for line in log.lines() if line["event"] == "request")
    assert first["request_id"] == got.headers["x-request-id"]
    assert (first["status"], first["route"], first["index"]) == (200, "/v1/indexes/{name}/search", "notes")
    with running([folder], ServiceOptions(log_queries=True), HashEncoder()) as server:
        server.client.get(f"{ONE}/search", params={"q": "sesame"})
        most = server.service.options.limits.query_characters
        long = "sesame " * most
        assert server.client.post(f"{ONE}/search", json={"query": long}).status_code == 422
        queries = [str(number) for number in range(1000)]
        assert server.client.post(f"{ONE}/search_batch", json={"queries": queries}).status_code == 422
    told = [line["queries"] for line in log.lines() if "queries" in line]
    assert told == [["sesame"], [long[:most] + "…"], queries[:256]]


def test_a_failure_of_ours_is_a_problem_with_an_id(
    small: Running, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("at /secret/place")

    monkeypatch.setattr("coil.service.service.answer_queries", fail)
    got = small.client.get(f"{ONE}/search", params={"q": "river"})
    assert got.status_code == 500
    expect_problem(got)
    assert "/secret/place" not in got.text
    told = next(line for line in log.lines() if line["event"] == "failed")
    assert told["request_id"] == got.headers["x-request-id"]
    assert "/secret/place" in told["traceback"]


def test_names_of_indexes(tmp_path: Path) -> None:
    assert name_of(Path("/a/notes.coil")) == "notes"
    assert name_of(Path("/a/my notes/")) == "my-notes"
    assert name_of(Path("/a/ä")) == "index"
    (tmp_path / "current.coil").symlink_to(tmp_path / "notes-17.coil")
    assert name_of(tmp_path / "current.coil") == "current"
    assert name_of(tmp_path / "current.coil" / ".." / "other.coil") == "other"
    one, two = build(tmp_path / "a" / "n.coil", 1), build(tmp_path / "b" / "n.coil", 1)
    with pytest.raises(InputError, match="both have the name 'n'"):
        open_all([one, two], 1, HashEncoder())


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serve"]) == 2
    assert run(["serve", str(tmp_path / "nothing.coil")]) == 1
    assert "there is no index" in capsys.readouterr().err
    (tmp_path / "token").write_text("")
    assert run(["serve", str(tmp_path), "--token-file", str(tmp_path / "token")]) == 1
    assert "openssl rand" in capsys.readouterr().err


def test_a_missing_extra_is_told_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    for arguments in (["serve", "nothing.coil"], ["demo", "--serve"]):
        assert run(arguments) == 1
        assert "pip install 'coil-ir[serve]'" in capsys.readouterr().err


def test_many_at_once_are_sent_away_when_the_queue_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    from coil.service import service

    real = service.answer_queries

    def slow(*arguments: object) -> object:
        began.set()
        assert go_on.wait(20)
        return real(*arguments)  # type: ignore[arg-type]

    options = ServiceOptions(limits=ServiceLimits(waiting=2), threads=1)
    with running([build(tmp_path / "notes.coil", 3)], options, HashEncoder()) as server:
        while server.client.get("/ready").status_code != 200:
            time.sleep(0.01)
        monkeypatch.setattr(service, "answer_queries", slow)
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(server.client.get(f"{ONE}/search", params={"q": "river"}).status_code)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        threads[0].start()
        assert began.wait(20)  # one is being answered, two wait
        for thread in threads[1:]:
            thread.start()
        while server.service._workers.waiting < 2:
            time.sleep(0.01)
        refused = server.client.get(f"{ONE}/search", params={"q": "river"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        expect_problem(refused)
        assert server.client.get("/health").status_code == 200  # the event loop is free
        assert "coil_queue_length 2.0" in server.client.get("/metrics").text
        go_on.set()
        for thread in threads:
            thread.join()
        assert statuses == [200, 200, 200]


def test_a_search_that_is_out_of_time_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coil.service import service

    left: list[float] = []
    real = service.answer_queries

    def late(index: object, queries: object, asked: object, seconds: float, *_: object) -> object:
        left.append(seconds)
        time.sleep(seconds + 0.05)
        return real(index, queries, asked, -0.05)  # type: ignore[arg-type] # the library looks at the clock

    options = ServiceOptions(limits=ServiceLimits(seconds=0.3), threads=1)
    with running([build(tmp_path / "notes.coil", 5)], options, HashEncoder()) as server:
        while server.client.get("/ready").status_code != 200:
            time.sleep(0.01)
        monkeypatch.setattr(service, "answer_queries", late)
        statuses: list[int] = []

        def ask() -> None:
            got = server.client.get(f"{ONE}/search", params={"q": "river"})
            expect_problem(got)
            statuses.append(got.status_code)

        threads = [threading.Thread(target=ask) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [504] * 5
        assert all(0 < seconds <= 0.3 for seconds in left)
        # Those that waited behind the first were out of time before their turn: nobody searched for them.
        assert len(left) < 5
        monkeypatch.undo()
        assert server.client.get(f"{ONE}/search", params={"q": "river"}).status_code == 200


def test_nobody_searches_for_a_client_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coil.service import service

    searched: list[str] = []
    began, go_on = threading.Event(), threading.Event()
    real = service.answer_queries

    def slow(index: object, queries: list[str], *rest: object) -> object:
        searched.extend(queries)
        began.set()
        assert go_on.wait(20)
        return real(index, queries, *rest)  # type: ignore[arg-type]

    with running([build(tmp_path / "notes.coil", 3)], ServiceOptions(threads=1), HashEncoder()) as server:
        while server.client.get("/ready").status_code != 200:
            time.sleep(0.01)
        monkeypatch.setattr(service, "answer_queries", slow)
        first = threading.Thread(
            target=lambda: server.client.get(f"{ONE}/search", params={"q": "river", "k": 1})
        )
        first.start()
        assert began.wait(20)
        address = urlsplit(server.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=20)
        connection.request("GET", f"{ONE}/search?q=money")
        while not server.service._workers.waiting:
            time.sleep(0.01)
        connection.close()  # the page has the next letter
        text = ""
        while 'coil_errors_total{kind="disconnected"} 1.0' not in text:
            text = server.client.get("/metrics").text
            time.sleep(0.01)
        go_on.set()
        first.join()
        assert server.client.get(f"{ONE}/search", params={"q": "loan"}).status_code == 200
    assert searched == ["river", "loan"]


class SlowEncoder(HashEncoder):
    """Takes its time over queries when it is told to, and counts what it is asked to do after that."""

    seconds = 0.0
    documents = 0

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        time.sleep(self.seconds)
        return super().encode_queries(texts)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        self.documents += 1
        return super().encode_documents(texts)


def test_explaining_and_bm25_stop_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = SlowEncoder()
    options = ServiceOptions(limits=ServiceLimits(seconds=0.3), threads=1)
    with running([build(tmp_path / "notes.coil", 5)], options, encoder) as server:
        while server.client.get("/ready").status_code != 200:
            time.sleep(0.01)
        asked = {"q": "river", "doc_id": "d/1", "versus": "d/2"}
        assert server.client.get(f"{ONE}/explain", params=asked).status_code == 200
        encoder.seconds, encoder.documents = 0.4, 0
        late = server.client.get(f"{ONE}/explain", params=asked)
        assert late.status_code == 504, late.text
        expect_problem(late)
        assert encoder.documents == 0  # nothing of the explanation was begun
        late = server.client.get(f"{ONE}/search", params={"q": "river", "matches": True})
        assert (late.status_code, encoder.documents) == (504, 0)

        rank, fetched = Searcher.rank_prepared, []

        def slow(*arguments: Any) -> Any:
            time.sleep(0.4)
            return rank(*arguments)

        monkeypatch.setattr(Searcher, "rank_prepared", slow)
        monkeypatch.setattr(Snapshot, "fetch", lambda *_, **__: fetched.append(1))
        late = server.client.get(f"{ONE}/search", params={"q": "river", "by": "bm25"})
        assert (late.status_code, fetched) == (504, [])
        monkeypatch.undo()
        encoder.seconds = 60.0  # BM25 needs no language model
        found = server.client.get(f"{ONE}/search", params={"q": "river", "by": "bm25", "matches": True})
        assert found.status_code == 200
    with open_index(tmp_path / "notes.coil", encoder) as index, pytest.raises(SearchTimeout):
        index.answer_many(["river"], by="bm25", timeout=-0.01)
