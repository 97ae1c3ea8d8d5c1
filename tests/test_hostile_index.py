"""Indexes that somebody has tampered with, with digests that fit: named errors, and no harm done."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from coil.errors import OutputError
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from tests.hash_encoder import HashEncoder

THESIS = "years of work"


def make(path: Path, count: int = 5) -> Path:
    """A small index."""
    with create(path, encoder=HashEncoder()) as index:
        index.add([{"id": f"d{number}", "text": "river bank", "year": number} for number in range(count)])
    return path


def reopen(path: Path) -> Index:
    return open_index(path, HashEncoder())


# ---- links in the place of what a writer changes


def test_a_writer_leaves_alone_what_segments_links_to(tmp_path: Path) -> None:
    victim, empty = tmp_path / "victim", tmp_path / "a.coil"
    victim.mkdir()
    (victim / "thesis.txt").write_text(THESIS)
    create(empty, encoder=HashEncoder()).close()
    (empty / "segments").symlink_to(victim)
    with reopen(empty) as index:
        for change in (
            lambda: index.delete(["nothing"]),
            lambda: index.add([{"id": 1, "text": "river"}]),
            index.compact,
        ):
            with pytest.raises(OutputError, match="segments is a link"):
                change()
    assert not reopen(empty).discard_if_empty()
    assert [path.read_text() for path in victim.iterdir()] == [THESIS]


def test_indexes_that_share_a_folder_of_segments_do_not_remove_each_others(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one.coil"), make(tmp_path / "other.coil")
    for path in (other / "segments").iterdir():
        path.rename(one / "segments" / path.name)
    (other / "segments").rmdir()
    (other / "segments").symlink_to(one / "segments")
    for change in (lambda index: index.delete(["d1"]), lambda index: index.compact()):
        with reopen(other) as index, pytest.raises(OutputError, match="is a link"):
            change(index)
    for path in (one, other):
        with reopen(path) as index:
            index.verify()
            assert len(index) == 5


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_the_lock_does_not_overwrite_what_it_links_to(tmp_path: Path, kind: str) -> None:
    precious, path = tmp_path / "precious", make(tmp_path / "a.coil")
    precious.write_text(THESIS)
    (path / "writer.lock").unlink()
    with reopen(path) as index:
        if kind == "hard":
            os.link(precious, path / "writer.lock")
            assert index.delete(["d1"]) == 1
        else:
            (path / "writer.lock").symlink_to(precious)
            with pytest.raises(OutputError, match=r"writer\.lock is a link"):
                index.delete(["d1"])
    assert precious.read_text() == THESIS


def test_a_writer_removes_only_files_that_a_writer_has_made(tmp_path: Path) -> None:
    path = make(tmp_path / "a.coil")
    ours = path / "segments" / "0000000099-0123456789abcdef.lists"
    others = [
        path / "segments" / "thesis.txt",
        path / "segments" / "backup.lists",
        path / "manifest-.partial",
    ]
    for file in (ours, *others):
        file.write_text(THESIS)
    with reopen(path) as index:
        index.delete(["d1"])
    assert not ours.exists()
    assert all(file.read_text() == THESIS for file in others)
