"""Files that are damaged under a running server: it says so, and recovers when they are restored."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from coil.indexes.opening import open_index
from coil.indexes.reader import IndexReader
from coil.service.limits import ServiceOptions
from coil.service.problems import Problem
from coil.service.served import open_all
from coil.service.service import Service
from coil.storage.disk import Folder
from tests.hash_encoder import HashEncoder
from tests.raw_http import wait_until
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def zero(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(bytes(path.stat().st_size - 4096))


def scramble(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(bytes(range(1, 256)) * (path.stat().st_size // 255))


def search(server: Running) -> httpx.Response:
    return server.client.get(f"{ONE}/search", params={"q": "river", "k": 100})


def search_batch(server: Running) -> httpx.Response:
    return server.client.post(f"{ONE}/search_batch", json={"queries": ["river"] * 20, "k": 100})


def get(server: Running) -> httpx.Response:
    return server.client.get(f"{ONE}/documents/d/399")


def upload(server: Running) -> httpx.Response:
    return server.client.post(f"{ONE}/documents", content=b'{"id": "d/399", "text": "x"}', headers=WRITE)


@pytest.mark.parametrize("ask", [search, search_batch, get, upload])
@pytest.mark.parametrize("harm", [zero, scramble])
def test_a_server_is_not_ready_once_a_request_came_upon_damage(
    tmp_path: Path, harm: Callable[[Path], None], ask: Callable[[Running], httpx.Response]
) -> None:
    folder = build(tmp_path / "notes.coil", 400)
    shutil.copytree(folder, tmp_path / "backup")
    [documents] = (folder / "segments").glob("*.documents")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        harm(documents)
        assert ask(server).status_code == 503
        for _ in range(3):
            unready = server.client.get("/ready")
            assert unready.status_code == 503
            assert unready.json()["detail"] == "the index 'notes' is damaged: queries may fail"
            assert "restore the index from a backup" in unready.json()["remedy"]
            assert str(tmp_path) not in unready.text
        shutil.copyfile(tmp_path / "backup" / "segments" / documents.name, documents)
        assert server.client.get("/ready").status_code == 200
        assert ask(server).status_code == 200
        assert server.client.get("/ready").status_code == 200


@pytest.mark.parametrize("kind", ["documents", "lists"])
def test_a_truncated_file_is_noticed_before_anybody_asks(tmp_path: Path, kind: str) -> None:
    folder = build(tmp_path / "notes.coil", 400)
    shutil.copytree(folder, tmp_path / "backup")
    [file] = (folder / "segments").glob(f"*.{kind}")
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        truncate(file)
        for _ in range(2):
            unready = server.client.get("/ready")
            assert unready.status_code == 503
            assert unready.json()["detail"] == "the index 'notes' is damaged: queries may fail"
        shutil.copyfile(tmp_path / "backup" / "segments" / file.name, file)
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        assert search(server).status_code == 200


@pytest.mark.parametrize("kind", ["documents", "lists"])
@pytest.mark.parametrize("first", ["ready", "change"])
def test_a_missing_file_is_noticed_and_taken_up_when_it_is_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, first: str
) -> None:
    """The server has it open and answers; changes fail, and so would another start."""
    folder = build(tmp_path / "notes.coil", 40)
    [file] = (folder / "segments").glob(f"*.{kind}")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        file.rename(tmp_path / "kept")
        caplog.clear()
        for what in [first, "ready", "change", "ready"]:
            if what == "change":
                refused = upload(server)
                assert refused.status_code == 507
                told = "the index 'notes' cannot be read: changes fail until it is back"
                assert refused.json()["detail"] == told
            else:
                unready = server.client.get("/ready")
                assert unready.status_code == 503
                assert "queries are answered from the last snapshot, changes fail" in unready.text
            assert search(server).status_code == 200
        assert [record.message for record in caplog.records].count("cannot reload") == 1
        (tmp_path / "kept").rename(file)
        assert server.client.get("/ready").status_code == 200
        assert upload(server).status_code == 200


def test_a_merge_by_another_process_is_no_missing_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = build(tmp_path / "notes.coil", 40)
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        served = server.service.served["notes"]
        look, looks = served._look, 0

        def merge_after() -> None:
            nonlocal looks
            look()
            looks += 1
            if looks == 1:
                with open_index(folder, HashEncoder()) as other:
                    other.delete(["d/1"])
                    other.compact()

        served._look = merge_after  # type: ignore[method-assign]
        served.check()
        assert (served.trouble, served.damage) == ("", "")
        assert looks == 2
        assert len(served.index) == 39
    assert "cannot reload" not in caplog.messages


def test_a_commit_does_not_hide_damage(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 400)
    [documents] = (folder / "segments").glob("*.documents")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        assert server.client.post(
            f"{ONE}/documents", content=b'{"id": "new", "text": "money"}', headers=WRITE
        ).is_success
        zero(documents)
        assert search(server).status_code == 503
        deleted = server.client.delete(f"{ONE}/documents/new", headers=WRITE)
        assert deleted.status_code == 507  # what it says about ids may be wrong
        assert "is damaged: changes fail until it is back" in deleted.json()["detail"]
        assert server.client.get("/ready").status_code == 503


def test_a_file_that_was_restored_with_its_time_is_noticed(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 400)
    shutil.copytree(folder, tmp_path / "backup")
    [documents] = (folder / "segments").glob("*.documents")
    before = documents.stat()
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        zero(documents)
        os.utime(documents, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert search(server).status_code == 503
        shutil.copyfile(tmp_path / "backup" / "segments" / documents.name, documents)
        os.utime(documents, ns=(before.st_atime_ns, before.st_mtime_ns))
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        assert search(server).status_code == 200


@pytest.mark.parametrize("harm", [zero, scramble])
def test_a_server_that_started_with_a_damaged_index_recovers(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    folder, other = build(tmp_path / "notes.coil", 400), build(tmp_path / "papers.coil", 5)
    shutil.copytree(folder, tmp_path / "backup")
    [documents] = (folder / "segments").glob("*.documents")
    served = open_all([folder, other], 8, HashEncoder())
    harm(documents)  # between opening and the first query
    service = Service(served, ServiceOptions())
    try:
        service._readiness._first.join(20)
        for _ in range(2):
            with pytest.raises(Problem) as found:
                asyncio.run(service.check_ready())
            assert found.value.detail == "the index 'notes' is damaged: queries may fail"
        assert list(service._readiness._cold) == ["notes"]  # the other one was asked as well
        shutil.copyfile(tmp_path / "backup" / "segments" / documents.name, documents)
        assert asyncio.run(service.check_ready()) == b'{"status": "ready"}'
    finally:
        service.stop()


def test_an_index_that_cannot_answer_for_a_moment_becomes_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(IndexReader, "search", fail)
        service = Service(open_all([build(tmp_path / "notes.coil", 5)], 8, HashEncoder()), ServiceOptions())
        try:
            service._readiness._first.join(20)
            for _ in range(2):
                with pytest.raises(Problem, match="the index 'notes' cannot be searched"):
                    asyncio.run(service.check_ready())
        finally:
            patched.undo()
            assert asyncio.run(service.check_ready()) == b'{"status": "ready"}'
            service.stop()
    assert [record.message for record in caplog.records].count("cannot answer") == 1


def test_a_change_that_the_disk_does_not_confirm_is_told_as_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, sync = build(tmp_path / "notes.coil"), Folder.sync

    def failing(self: Folder, subfolder: str = ".") -> None:
        if subfolder == ".":  # after the manifest was replaced
            raise OSError(errno.EIO, "Input/output error")
        sync(self, subfolder)

    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        with monkeypatch.context() as broken:
            broken.setattr(Folder, "sync", failing)
            answer = upload(server)
        assert (answer.status_code, answer.json()["code"]) == (507, "unconfirmed")
        assert "the change was made" in answer.json()["detail"]
        assert server.client.get(f"{ONE}/documents/d/399").json()["text"] == "x"
