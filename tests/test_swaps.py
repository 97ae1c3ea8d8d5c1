"""Folders that are swapped, moved and restored at random moments while others write to their path."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from coil.errors import CoilError, MissingIndex, OutputError, ReplacedIndex
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.storage import document_file
from tests.hash_encoder import HashEncoder, answers

ROUNDS = int(os.environ.get("COIL_SWAP_ROUNDS", "8"))  # `make soak` asks for more


def swap(path: Path, other: Path, aside: Path, rng: random.Random) -> None:
    os.rename(path, aside)
    os.rename(other, path)


def swap_twice(path: Path, other: Path, aside: Path, rng: random.Random) -> None:
    swap(path, other, aside, rng)
    time.sleep(rng.uniform(0, 0.02))
    os.rename(path, other)
    os.rename(aside, path)


def move(path: Path, other: Path, aside: Path, rng: random.Random) -> None:
    os.rename(path, aside)


def link(path: Path, other: Path, aside: Path, rng: random.Random) -> None:
    os.rename(path, aside)
    path.symlink_to(other)


def restore(path: Path, other: Path, aside: Path, rng: random.Random) -> None:
    """What was there when the writer began comes back, under the same path."""
    shutil.copytree(other.with_name("backup.coil"), path.with_name("fresh"))
    os.rename(path, aside)
    os.rename(path.with_name("fresh"), path)


KINDS: list[Callable[[Path, Path, Path, random.Random], None]] = [swap, swap_twice, move, link, restore]


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_swap_at_any_moment_loses_nothing(tmp_path: Path, seed: int, soaked: Callable[..., None]) -> None:
    rng = random.Random(seed)
    path, other, aside = (tmp_path / name for name in ("a.coil", "b.coil", "aside.coil"))
    for folder, prefix in ((path, "a"), (other, "b")):
        with create(folder, encoder=HashEncoder()) as made:
            made.add([{"id": f"{prefix}{i}", "text": f"river {prefix} bank"} for i in range(10)])
    shutil.copytree(path, tmp_path / "backup.coil")
    with open_index(other, HashEncoder()) as untouched:
        theirs = answers(untouched)
    promised: list[str] = []
    stopped: list[BaseException] = []
    swapped = threading.Event()

    def write() -> None:
        try:
            with open_index(path, HashEncoder()) as index:
                for number in range(400):
                    ids = [f"n{number}-{i}" for i in range(3)]
                    index.add([{"id": doc_id, "text": "river money"} for doc_id in ids])
                    promised.extend(ids)
                    if number % 5 == 0:
                        index.compact()
                    if swapped.is_set() and number > 5:
                        return
        except (ReplacedIndex, MissingIndex, OutputError) as error:
            stopped.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    time.sleep(rng.uniform(0.0, 0.3))
    kind = KINDS[seed % len(KINDS)]
    kind(path, other, aside, rng)
    swapped.set()
    writer.join(60)
    assert not writer.is_alive()
    ours = next(
        found
        for found in (aside, path)
        if found.is_dir() and not found.is_symlink() and holds(found, promised)
    )
    with open_index(ours, HashEncoder()) as index:
        check(index, [f"a{i}" for i in range(10)] + promised)
    elsewhere = next(
        found for found in (other, path) if found.is_dir() and not found.is_symlink() and holds(found, ["b0"])
    )
    with open_index(elsewhere, HashEncoder()) as index:
        index.verify()
        assert answers(index) == theirs
    soaked("folder swaps", rounds=1, refused=len(stopped), acknowledged=len(promised))


def holds(folder: Path, doc_ids: list[str]) -> bool:
    if folder.is_symlink():
        return False
    try:
        with open_index(folder, HashEncoder()) as index:
            return all(index.has(doc_id) for doc_id in doc_ids) and (bool(doc_ids) or index.has("a0"))
    except CoilError:
        return False


def check(index: Index, doc_ids: list[str]) -> None:
    index.verify()
    assert len({hit.doc_id for hit in index.search("river", k=10**6)}) == len(index)
    assert all(index.has(doc_id) for doc_id in doc_ids)


def test_an_index_opens_while_its_folder_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite looks up where the handle of the folder leads, and then opens that path."""
    folder, aside = tmp_path / "a.coil", tmp_path / "b.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}])
    connect, tried = sqlite3.connect, list[str]()

    def connect_while_it_is_moved(database: str, **how: Any) -> sqlite3.Connection:
        tried.append(database)
        if len(tried) % 3 == 0:
            return connect(database, **how)
        looked_up = Path(os.path.realpath(unquote(database).removeprefix("file:").partition("?")[0]))
        folder.rename(aside)
        try:
            return connect(f"file:{quote(str(looked_up))}?mode=ro", **how)
        finally:
            aside.rename(folder)

    monkeypatch.setattr(document_file.sqlite3, "connect", connect_while_it_is_moved)
    with open_index(folder, HashEncoder()) as index:
        assert [hit.doc_id for hit in index.search("river")] == ["a"]
    assert len(tried) == 6  # two connections
