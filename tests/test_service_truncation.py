"""A lists file that is truncated while it is open: once that is known, no read may touch it.

The files lose a single byte here. The page that it was on can still be read, so that a read that should not
happen answers, where after a larger loss it would end the process.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from coil.errors import DamagedSegment
from coil.indexes.opening import open_index
from coil.service.limits import ServiceOptions
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from coil.storage import snapshot
from tests.hash_encoder import HashEncoder
from tests.raw_http import wait_until
from tests.serving import Running, running
from tests.test_service import ONE, build

DOCS = [{"id": f"d/{n}", "text": f"river bank {n}"} for n in range(40)]


def build_shards(folder: Path) -> Path:
    create_shards(find_place(folder), 2, encoder=HashEncoder())
    with open_sharded(find_place(folder), HashEncoder()) as index:
        index.add(DOCS)
    return folder


def shorten(folder: Path) -> Path:
    """Take the last byte of the largest lists file."""
    largest = max(folder.rglob("*.lists"), key=lambda file: file.stat().st_size)
    os.truncate(largest, largest.stat().st_size - 1)
    return largest


def search(server: Running) -> int:
    return server.client.get(f"{ONE}/search", params={"q": "river bank", "k": 100}).status_code


def search_batch(server: Running) -> int:
    return server.client.post(f"{ONE}/search_batch", json={"queries": ["river"] * 20}).status_code


def explain(server: Running) -> int:
    return server.client.get(f"{ONE}/explain", params={"q": "river", "doc_id": "d/3"}).status_code


@pytest.fixture(autouse=True)
def never_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are checked once a second anyway; here, only what is known counts."""
    monkeypatch.setattr(snapshot, "_CHECK_SECONDS", 3600.0)


@pytest.mark.parametrize("ask", [search, search_batch, explain])
@pytest.mark.parametrize("make", [build, build_shards])
def test_no_request_reads_an_index_that_is_known_to_be_truncated(
    tmp_path: Path, make: Callable[[Path], Path], ask: Callable[[Running], int]
) -> None:
    folder = make(tmp_path / "notes.coil")
    shutil.copytree(folder, tmp_path / "backup")
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        assert ask(server) == 200
        short = shorten(folder)
        assert server.client.get("/ready").status_code == 503
        for _ in range(3):
            assert ask(server) == 503
        assert server.client.get("/ready").status_code == 503
        shutil.copyfile(tmp_path / "backup" / short.relative_to(folder), short)
        assert server.client.get("/ready").status_code == 200
        assert ask(server) == 200


def test_readers_of_an_earlier_state_learn_of_it(tmp_path: Path) -> None:
    """They share the files with the current state."""
    folder = build(tmp_path / "notes.coil")
    with open_index(folder, HashEncoder()) as index, index.pinned() as before:
        index.add([{"id": "new", "text": "river"}])
        assert before.search("river")
        shorten(folder)
        with pytest.raises(DamagedSegment):
            index.check_sizes()
        for reader in (before, index):
            with pytest.raises(DamagedSegment, match="was truncated while it was open"):
                reader.search("river")


def test_a_commit_that_finds_it_is_no_reason_to_read_the_state_before(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil")
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        assert search(server) == 200
        with open_index(folder, HashEncoder()) as other:
            other.add([{"id": "new", "text": "money"}])
        shorten(folder)
        assert search(server) == 503
        assert server.service.served["notes"].damage == "is damaged"


def test_a_truncated_file_of_documents_hides_no_truncated_lists(tmp_path: Path) -> None:
    """The first file that has a wrong size ends the check."""
    folder = build(tmp_path / "notes.coil")
    with open_index(folder, HashEncoder()) as index:
        index.add([{"id": "new", "text": "river"}])
        assert index.search("river")
        first = min(folder.rglob("*.documents"), key=lambda file: file.name)
        os.truncate(first, first.stat().st_size - 1)
        with pytest.raises(DamagedSegment):
            index.check_sizes()
        last = max(folder.rglob("*.lists"), key=lambda file: file.name)
        os.truncate(last, last.stat().st_size - 1)
        with pytest.raises(DamagedSegment, match="was truncated while it was open"):
            index.search("river")


def test_a_file_that_was_removed_is_still_read(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil")
    with running([folder], ServiceOptions(), HashEncoder()) as server:
        wait_until(lambda: server.client.get("/ready").status_code == 200)
        next(folder.rglob("*.lists")).unlink()
        assert server.client.get("/ready").status_code == 503
        assert search(server) == 200
