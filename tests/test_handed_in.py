"""What a program hands in by mistake: each is an error with a name, and nothing is changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from coil.errors import InputError, MissingModelFile
from coil.indexes.building import check_build, open_build
from coil.indexes.opening import create, open_index
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder

NO_PATHS: list[Any] = ["a\0b", "x" * 300, "x/" * 3000, None, 5, b"abc", []]


@pytest.mark.parametrize("path", NO_PATHS)
def test_what_is_no_path_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any) -> None:
    monkeypatch.chdir(tmp_path)
    for take in (
        lambda: open_index(path, HashEncoder()),
        lambda: create(path, encoder=HashEncoder()),
        lambda: open_build(path, encoder=HashEncoder()),
        lambda: check_build(path),
    ):
        with pytest.raises(InputError, match="path"):
            take()
    assert not any(tmp_path.iterdir())


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(tmp_path / "a.coil", encoder=HashEncoder()).close()
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for take in (open_index, create):
        with pytest.raises(InputError, match="working directory no longer exists"):
            take("a.coil", encoder=HashEncoder())
    open_index(tmp_path / "a.coil", HashEncoder()).close()
    os.chdir(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        *({"memory": value} for value in ("1G", float("nan"), float("inf"), -5, 0, True)),
        *({"threads": value} for value in (None, 0, -5, 2**31, 1.5, "2")),
    ],
)
def test_options_that_are_no_numbers_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    create(tmp_path / "a.coil", encoder=HashEncoder()).close()
    with pytest.raises(InputError, match=f"{next(iter(wrong))} is .*; expected a whole number"):
        open_index(tmp_path / "a.coil", HashEncoder(), **wrong)


@pytest.mark.parametrize("commit_every", [None, "5", 0, -1, 1.0])
def test_commits_are_counted_in_whole_numbers(tmp_path: Path, commit_every: Any) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(InputError, match="commit_every"):
            index.add([{"id": 1, "text": "river"}], commit_every=commit_every)
        assert len(index) == 0


@pytest.mark.parametrize("model", ["__main__", "a" * 5000, "a\0b", 5])
def test_what_is_no_model_is_refused(tmp_path: Path, model: Any) -> None:
    with pytest.raises(MissingModelFile, match="neither a folder nor an installed package"):
        create(tmp_path / "a.coil", model=model)
    assert not (tmp_path / "a.coil").exists()


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (Document("", "river"), "the id is empty"),
        ({"id": "a", "text": "river", 5: 1, "5": 2}, "'5' twice"),
        (Document("a", "river", dict.fromkeys(["x\ud800", "x\ud801"], 1)), "twice"),
    ],
)
def test_documents_that_would_lose_something_are_refused(tmp_path: Path, document: Any, reason: str) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(InputError, match=reason):
            index.add([document])
        assert len(index) == 0
