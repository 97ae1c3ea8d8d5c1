"""Many clients at once, changes from elsewhere, and the end: nothing is lost, nothing is mixed up."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import get_args

import httpx
import pytest

from coil.indexes.opening import create, open_index
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.workers import Job, Workers
from coil.tokens.profile import By
from tests.hash_encoder import HashEncoder
from tests.raw_http import wait_until
from tests.serving import TOKEN, running
from tests.test_service import ONE, WRITE, build, expect_problem
from tests.tiny import WORDS

ADD_ELSEWHERE = """
import sys
from coil.indexes.opening import open_index
from tests.hash_encoder import HashEncoder
index = open_index(sys.argv[1], encoder=HashEncoder())
for line in sys.stdin:
    index.add([{"id": line.strip(), "text": "mountain airport lounge"}])
    print("added", flush=True)
"""


def test_answers_of_64_clients_equal_the_library(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 200)
    rng = random.Random(7)
    asked = [
        {
            "q": " ".join(rng.choices(WORDS, k=rng.randint(1, 6))),
            "k": rng.choice([3, 10]),
            "by": rng.choice(get_args(By)),
            "matches": rng.random() < 0.2,
            **({"filter": f"year >= {rng.randint(2000, 2200)}"} if rng.random() < 0.3 else {}),
        }
        for _ in range(640)
    ]

    async def ask_all(url: str) -> list[dict]:
        answers: list[dict] = [{}] * len(asked)
        limits = httpx.Limits(max_connections=64)
        async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

            async def one_client(mine: range) -> None:
                for i in mine:
                    got = await client.get(f"{ONE}/search", params=asked[i])
                    assert got.status_code == 200, got.text
                    answers[i] = got.json()

            await asyncio.gather(*(one_client(range(c, len(asked), 64)) for c in range(64)))
        return answers

    with running([folder], ServiceOptions(threads=2), HashEncoder()) as server:
        answers = asyncio.run(ask_all(server.url))
        counts = server.client.get("/metrics").text
    with open_index(folder, encoder=HashEncoder()) as index:
        for how, answer in zip(asked, answers, strict=True):
            hits = index.search(how["q"], how["k"], how.get("filter"), how["by"])
            assert answer["query"] == how["q"]
            assert [(hit["doc_id"], hit["score"]) for hit in answer["hits"]] == [
                (hit.doc_id, hit.score) for hit in hits
            ]
    single = float(counts.split('coil_batch_queries_bucket{le="1.0"} ')[1].split()[0])
    every = float(counts.split("coil_batch_queries_count ")[1].split()[0])
    assert single < every, "nothing was ever answered together"


def test_reading_goes_on_while_this_and_another_process_write(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 30)
    options = ServiceOptions(token=TOKEN)
    with running([folder], options, HashEncoder()) as server:
        other = subprocess.Popen(
            [sys.executable, "-c", ADD_ELSEWHERE, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert other.stdin is not None
        assert other.stdout is not None
        stop = threading.Event()
        problems: list[str] = []

        def read() -> None:
            with httpx.Client(base_url=server.url, timeout=30) as client:
                while not stop.is_set():
                    params = {"q": "mountain river", "k": 20, "matches": True}
                    got = client.get(f"{ONE}/search", params=params)
                    if got.status_code != 200:
                        problems.append(got.text)
                        return
                    for hit in got.json()["hits"]:  # explained from the very state that was searched
                        total = sum(m["contribution"] for m in hit["matches"]) + hit["sentence"]
                        if abs(total - hit["score"]) > 1e-3:
                            problems.append(f"{total} is not {hit['score']}")

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        try:
            for i in range(12):
                other.stdin.write(f"elsewhere-{i}\n")
                other.stdin.flush()
                assert other.stdout.readline() == "added\n"
                # What another process has committed is there for the next request.
                assert server.client.get(f"{ONE}/documents/elsewhere-{i}").status_code == 200
                line = json.dumps({"id": f"here-{i}", "text": "mountain pass"})
                got = server.client.post(f"{ONE}/documents", content=line, headers=WRITE)
                assert got.status_code == 200, got.text
                assert got.json()["documents"] == 30 + 2 * (i + 1)
        finally:
            stop.set()
            for reader in readers:
                reader.join()
            other.communicate(timeout=30)
        assert not problems, problems[0]


def test_changes_from_many_clients_are_all_kept(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 2)
    limits = ServiceLimits(writes_waiting=100)
    with running([folder], ServiceOptions(limits=limits, token=TOKEN), HashEncoder()) as server:

        def write(worker: int) -> None:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                for i in range(5):
                    line = json.dumps({"id": f"{worker}-{i}", "text": "river"})
                    got = client.post(f"{ONE}/documents", content=line, headers=WRITE)
                    assert got.status_code == 200, got.text
                    assert client.get(f"{ONE}/documents/{worker}-{i}").status_code == 200
                    done.append(f"{worker}-{i}")

        done: list[str] = []
        threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(done) == 40
    with open_index(folder, encoder=HashEncoder()) as index:
        index.verify()
        assert len(index) == 42
        assert all(index.has(doc_id) for doc_id in done)


def test_too_many_changes_are_sent_away(tmp_path: Path) -> None:
    limits = ServiceLimits(writes_waiting=1)
    options = ServiceOptions(limits=limits, token=TOKEN)
    with running([build(tmp_path / "notes.coil", 2)], options, HashEncoder()) as server:
        more, reached = threading.Event(), threading.Event()

        def slowly():
            reached.set()
            yield b'{"id": "slow", '
            assert more.wait(20)
            yield b'"text": "river"}'

        def upload() -> None:
            got = server.client.post(f"{ONE}/documents", content=slowly(), headers=WRITE)
            assert got.json() == {"added": 1, "empty": [], "documents": 3}

        thread = threading.Thread(target=upload)
        thread.start()
        assert reached.wait(20)
        while not server.service.served["notes"].writes_waiting:
            time.sleep(0.01)
        refused = server.client.post(f"{ONE}/documents", content=b"", headers=WRITE)
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "5"
        more.set()
        thread.join()


def test_a_lone_job_does_not_wait_and_company_is_shared_out() -> None:
    sizes: list[int] = []
    go_on = threading.Event()
    workers = Workers(1, 100, lambda size, _: sizes.append(size))

    def answer(values: list[int], _: float) -> list[int]:
        if 0 in values:
            assert go_on.wait(20)
        if 13 in values:
            raise ValueError("thirteen")
        return [value * 2 for value in values]

    def ask(value: int, kind: str | None = "a"):
        return workers.submit(Job(kind, value, answer, time.monotonic() + 20))

    first = ask(0)
    while workers.waiting:
        time.sleep(0.001)
    assert sizes == [1]
    rest = [ask(1), ask(2, "b"), ask(3), ask(13), ask(4, None), ask(5, None)]
    go_on.set()
    assert first.result(20) == 0
    assert [future.result(20) for future in rest if future is not rest[3]] == [2, 4, 6, 8, 10]
    with pytest.raises(ValueError, match="thirteen"):  # and only that one failed
        rest[3].result(20)
    assert sizes == [1, 3, 1, 1, 1]
    workers.stop()


SERVE = """
import sys
from tests import hash_encoder
import coil.indexes.model as reading
reading.OnnxEncoder = lambda model, **options: hash_encoder.HashEncoder()  # quick to start
from coil.cli.main import main
main(sys.argv[1:])
"""


def start(*arguments: str, first: str = "") -> tuple[subprocess.Popen[str], str]:
    """A server in a process of its own, which runs the code `first` before anything else; and its URL."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{first}\n{SERVE}", "serve", *arguments, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("open "):
            return process, line.split()[1]
    raise AssertionError(process.stderr.read() if process.stderr else "")


@pytest.mark.parametrize(("how", "status"), [(signal.SIGTERM, 0), (signal.SIGHUP, 0), (signal.SIGINT, 130)])
def test_a_stop_finishes_what_was_begun(tmp_path: Path, how: signal.Signals, status: int) -> None:
    folder = tmp_path / "notes.coil"
    create(folder, encoder=HashEncoder()).close()
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    process, url = start(str(folder), "--token-file", str(tmp_path / "token"))
    lines = b"".join(b'{"id": %d, "text": "river bank %d"}\n' % (i, i) for i in range(3000))

    def body():
        yield lines
        wait_until(lambda: "coil_requests_in_flight 2.0" in httpx.get(f"{url}metrics", timeout=20).text)
        os.kill(process.pid, how)  # while the request is on its way
        time.sleep(0.3)
        yield b'{"id": "last", "text": "money"}\n'

    got = httpx.post(f"{url}v1/indexes/notes/documents", content=body(), headers=WRITE, timeout=60)
    assert got.json() == {"added": 3001, "empty": [], "documents": 3001}
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert all(json.loads(line)["level"] == "info" for line in err.splitlines() if line.startswith("{"))
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}health", timeout=5)
    with open_index(folder, encoder=HashEncoder()) as index:
        index.verify()
        assert len(index) == 3001


def test_a_port_in_use_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "notes.coil"
    create(folder, encoder=HashEncoder()).close()
    process, url = start(str(folder))
    try:
        port = url.rstrip("/").rsplit(":", maxsplit=1)[1]
        second = subprocess.run(
            [sys.executable, "-c", SERVE, "serve", str(folder), "--port", port],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert second.returncode == 1
        assert f"cannot listen on 127.0.0.1, port {port}" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_the_old_state_stays_open_while_somebody_reads_it(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 5)
    with open_index(folder, encoder=HashEncoder()) as index:
        with index.pinned() as before:
            expected = before.search("river", k=50)
            index.add([{"id": "new", "text": "river"}])
            index.compact()
            assert [hit.doc_id for hit in before.search("river", k=50)] == [hit.doc_id for hit in expected]
            assert not before.has("new")
            assert len(index.search("river", k=50)) == 6
        assert index.has("new")


def test_another_index_in_the_same_place_is_taken_over(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 5)
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:

        def size() -> int:
            return server.client.get("/v1/indexes").json()["indexes"][0]["documents"]

        assert size() == 5
        build(tmp_path / "newer.coil", 7)
        folder.rename(tmp_path / "older.coil")
        assert size() == 5  # nothing is there now, and the old one still serves
        assert server.client.get(f"{ONE}/search", params={"q": "river"}).status_code == 200
        unready = server.client.get("/ready")
        assert unready.status_code == 503
        assert unready.json()["detail"].startswith("the index 'notes' is missing")
        (tmp_path / "newer.coil").rename(folder)
        assert size() == 7
        assert server.client.get("/ready").status_code == 200
        line = b'{"id": "new", "text": "river"}'
        written = server.client.post(f"{ONE}/documents", content=line, headers=WRITE)
        assert written.json() == {"added": 1, "empty": [], "documents": 8}
        # One of another model cannot be searched with ours.
        create(tmp_path / "other.coil", encoder=HashEncoder(n_t=8)).close()
        folder.rename(tmp_path / "older2.coil")
        (tmp_path / "other.coil").rename(folder)
        assert size() == 8
        unready = server.client.get("/ready")
        assert unready.status_code == 503
        assert unready.json()["detail"].startswith("the index 'notes' cannot be read")
    with open_index(tmp_path / "older2.coil", encoder=HashEncoder()) as index:
        assert index.has("new")


def test_an_index_that_is_removed_is_named_and_taken_up_when_it_is_back(tmp_path: Path) -> None:
    place = tmp_path / "hidden-place"
    folders = [build(place / "notes.coil", 5), build(place / "papers.coil", 3)]
    shutil.copytree(folders[0], tmp_path / "backup")
    with running(folders, ServiceOptions(token=TOKEN), HashEncoder()) as server:

        def wait_for(status: int) -> httpx.Response:
            for _ in range(2000):
                got = server.client.get("/ready")
                if got.status_code == status:
                    return got
                time.sleep(0.005)
            raise AssertionError(got.text)

        wait_for(200)
        shutil.rmtree(folders[0])
        got = wait_for(503)
        expect_problem(got)
        assert got.headers["retry-after"] == "1"
        assert got.json()["title"] == "temporarily unavailable"
        assert got.json()["detail"].startswith("the index 'notes' is missing: ")
        assert "restore the folder of the index" in got.json()["remedy"]
        assert "papers" not in got.text
        assert "hidden-place" not in got.text
        assert server.client.get(f"{ONE}/search", params={"q": "river"}).status_code == 200
        for occupy in (lambda: None, folders[0].mkdir):  # an empty folder in its place is no index either
            occupy()
            for method, path, body in (
                ("POST", "documents", b'{"id": "new", "text": "river"}'),
                ("DELETE", "documents/d/1", b""),
            ):
                refused = server.client.request(method, f"{ONE}/{path}", content=body, headers=WRITE)
                assert refused.status_code == 507, refused.text
                expect_problem(refused)
                said = "the index 'notes' is missing: changes fail until it is back"
                assert refused.json()["detail"] == said
                assert "restore the folder of the index" in refused.json()["remedy"]
                assert "hidden-place" not in refused.text
        shutil.rmtree(folders[0])
        shutil.copytree(tmp_path / "backup", folders[0])
        wait_for(200)
        line = b'{"id": "new", "text": "river"}'
        written = server.client.post(f"{ONE}/documents", content=line, headers=WRITE)
        assert written.json()["documents"] == 6
