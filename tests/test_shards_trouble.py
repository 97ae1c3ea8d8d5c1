"""A served sharded index under trouble: folders that go, come back or are replaced, and many commits."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coil.errors import MissingIndex
from coil.remote.client import connect
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.service.problems import Problem
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running

DOCS = [{"id": f"d{n}", "text": f"river bank {n}"} for n in range(12)]
NAMES = "/v1/indexes"
MANY = f"{NAMES}/many"
AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "many.shards"
    create_shards(find_place(made), 3, encoder=HashEncoder())
    with open_sharded(find_place(made), HashEncoder()) as index:
        assert index.update(DOCS) == 12
    return made


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    options = ServiceOptions(token=TOKEN, limits=ServiceLimits(seconds=60))
    with running([folder], options, HashEncoder()) as started:
        yield started


def found(server: Running, query: str = "river") -> list[str]:
    answer = server.client.get(f"{MANY}/search", params={"q": query, "k": 50, "by": "bm25"})
    assert answer.status_code == 200, answer.text
    return [hit["doc_id"] for hit in answer.json()["hits"]]


def add(server: Running, *documents: dict[str, Any]) -> tuple[int, Any]:
    body = "\n".join(map(json.dumps, documents))
    answer = server.client.post(f"{MANY}/documents", content=body, headers=AUTHORISED)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("part", ["", "00001.coil"])
def test_a_folder_that_is_missing_and_comes_back(server: Running, folder: Path, part: str) -> None:
    before, gone = found(server), folder.parent / "gone"
    assert len(before) == 12
    (folder / part).rename(gone)
    assert found(server) == before
    told = server.client.get("/ready")
    assert told.status_code == 503
    assert "'many' is missing: queries are answered from the last snapshot" in told.json()["detail"]
    assert server.client.get(NAMES).json()["indexes"][0]["documents"] == 12
    more = [{"id": f"e{n}", "text": "water"} for n in range(9)]  # some for each shard
    status, problem = add(server, *more)
    assert (status, problem["code"]) == (507, "cannot_write")
    gone.rename(folder / part)
    assert found(server) == before
    assert not found(server, "water"), "a shard was changed although another one was missing"
    assert server.client.get("/ready").status_code == 200
    assert add(server, *more) == (200, {"added": 9, "empty": [], "documents": 21})


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "is missing"), (b"{}", "cannot be read"), (b'{"coil_shards": 1, "shards": [', "cannot be read")],
)
def test_a_manifest_that_is_missing_or_damaged_and_comes_back(
    server: Running, folder: Path, content: bytes | None, told: str
) -> None:
    """Without it, the index could not be opened again: nothing more is added to it."""
    manifest, before = folder / "shards.json", found(server)
    kept = manifest.read_bytes()
    manifest.unlink()
    if content is not None:
        manifest.write_bytes(content)
    ready = server.client.get("/ready")
    assert (ready.status_code, found(server)) == (503, before)
    assert f"the index 'many' {told}: queries are answered from the last snapshot" in ready.json()["detail"]
    assert add(server, {"id": "new", "text": "river"})[0] == 507
    assert found(server) == before
    manifest.write_bytes(kept)
    assert server.client.get("/ready").status_code == 200
    assert add(server, {"id": "new", "text": "river"})[0] == 200
    assert set(found(server)) == {*before, "new"}


def test_a_manifest_of_other_shards_is_not_gone_on_from(server: Running, folder: Path) -> None:
    manifest, before = folder / "shards.json", found(server)
    kept = manifest.read_bytes()
    value = json.loads(kept)
    value["shards"] = value["shards"][:2]
    manifest.write_text(json.dumps(value))
    assert server.client.get("/ready").status_code == 503
    assert add(server, {"id": "new", "text": "river"})[0] == 507
    assert found(server) == before
    manifest.write_bytes(kept)
    assert server.client.get("/ready").status_code == 200


def test_another_index_in_its_place(server: Running, folder: Path) -> None:
    other = folder.parent / "other.shards"
    create_shards(find_place(other), 2, encoder=HashEncoder())
    with open_sharded(find_place(other), HashEncoder()) as index:
        index.update([{"id": "o", "text": "river"}])
    folder.rename(folder.parent / "gone")
    other.rename(folder)
    assert found(server) == ["o"]
    assert server.client.get("/ready").status_code == 200
    assert add(server, {"id": "p", "text": "river"})[0] == 200
    assert sorted(found(server)) == ["o", "p"]


def test_who_reads_keeps_the_index_that_is_replaced(folder: Path) -> None:
    with open_sharded(find_place(folder), HashEncoder()) as index, index.pinned() as still:
        index.close()
        assert len(still.search("river", k=50)) == 12
        assert still.document("d3").text == "river bank 3"


def test_a_truncated_file_and_its_copy(server: Running, folder: Path) -> None:
    file = max((folder / "00002.coil" / "segments").iterdir(), key=lambda path: path.stat().st_size)
    copy = folder.parent / "copy"
    shutil.copy(file, copy)
    with file.open("r+b") as opened:
        opened.truncate(file.stat().st_size - 1)
    time.sleep(1.1)  # sizes are looked at once a second
    told = server.client.get("/ready")
    assert told.status_code == 503
    assert "'many' is damaged" in told.json()["detail"]
    listed = server.client.get(NAMES)
    assert listed.json()["indexes"][0]["documents"] == 12, "a damaged index hides all others"
    with connect(server.url, "many") as client:
        assert len(client) == 12
    copy.rename(file)
    assert len(found(server)) == 12
    assert server.client.get("/ready").status_code == 200


def test_a_long_read_outlasts_many_commits(folder: Path) -> None:
    with open_sharded(find_place(folder), HashEncoder()) as index:
        with index.pinned() as still:
            before = [hit.doc_id for hit in still.search("river", k=50)]
            for n in range(6):
                index.update([{"id": f"e{m}", "text": f"river {n}"} for m in range(9)])
            assert [hit.doc_id for hit in still.search("river", k=50)] == before
        index.update([{"id": f"e{m}", "text": "river"} for m in range(9)])
        for n in range(6):
            index.update([{"id": f"e{m}", "text": f"river {n}"} for m in range(9)])
            assert len(index.search("river", k=50)) == 21
        assert all(len(of._kept) <= 3 for of in index._shards), (
            "states that nobody reads keep their files open"
        )


def test_a_change_is_given_up_within_a_shard(folder: Path) -> None:
    """A server that stops does not wait until hundreds of documents are encoded."""
    asked = 0

    def go_on() -> None:
        nonlocal asked
        asked += 1
        if asked > 2:
            raise Problem(503, "busy", "the server is stopping")

    with open_sharded(find_place(folder), HashEncoder()) as index:
        before = index.version
        with pytest.raises(Problem, match="stopping"):
            index.update([{"id": f"e{n}", "text": "river " * 300} for n in range(200)], go_on=go_on)
        assert index.version == before


def test_searches_answer_from_the_last_state_without_the_folder(folder: Path) -> None:
    with open_sharded(find_place(folder), HashEncoder()) as index:
        shutil.rmtree(folder)
        assert len(index.search("river", k=50)) == 12
        with pytest.raises(MissingIndex):
            index.refresh()
        with pytest.raises(MissingIndex):
            index.update(DOCS)


def test_a_second_writer_is_refused_before_the_first_shard_is_changed(server: Running, folder: Path) -> None:
    more = [{"id": f"e{n}", "text": "water"} for n in range(9)]  # some for each shard
    other, code = open_sharded(find_place(folder), HashEncoder()), 0

    def documents() -> Iterator[dict[str, Any]]:
        nonlocal code
        yield {"id": "first", "text": "fish"}
        code = add(server, *more)[0]

    with other:
        assert other.update(documents()) == 1
    assert code == 409
    assert not found(server, "water")
    assert found(server, "fish") == ["first"]
    assert add(server, *more)[0] == 200


def test_replaced_while_many_search(server: Running, folder: Path) -> None:
    stop, wrong = threading.Event(), list[str]()

    def search() -> None:
        while not stop.is_set():
            answer = server.client.get(f"{MANY}/search", params={"q": "river", "k": 50, "matches": True})
            if answer.status_code != 200 or len(answer.json()["hits"]) != 12:
                wrong.append(answer.text)

    threads = [threading.Thread(target=search) for _ in range(3)]
    for thread in threads:
        thread.start()
    for n in range(6):
        newer = folder.parent / f"{n}.shards"
        create_shards(find_place(newer), 1 + n % 3, encoder=HashEncoder())
        with open_sharded(find_place(newer), HashEncoder()) as index:
            index.update(DOCS)
        folder.rename(folder.parent / f"gone{n}")
        newer.rename(folder)
        time.sleep(0.05)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong
