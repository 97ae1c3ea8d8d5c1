"""Errors survive pickling, so that one raised in a worker process reaches the process that waits for it."""

from __future__ import annotations

import copy
import json
import pickle
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from coil import errors
from coil.errors import BadLine, CoilError, DuplicateId, MissingExtra, MissingShard, NotText, UnknownId
from coil.texts.corpora import read_documents

GIVEN: dict[type[CoilError], tuple[Any, ...]] = {
    BadLine: ("a.jsonl", 7, "no id", "add one"),
    NotText: ("a.bin", "a program"),
    DuplicateId: ("a", "line 1", "line 2", "skip it"),
    MissingExtra: ("bm25s", "eval"),
}


def kinds(kind: type[CoilError] = CoilError) -> list[type[CoilError]]:
    """All classes of errors of the module."""
    return [kind, *(below for one in kind.__subclasses__() for below in kinds(one))]


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind.__module__ == errors.__name__])
def test_every_error_is_the_same_after_pickling(kind: type[CoilError]) -> None:
    error = kind(*GIVEN.get(kind, ("what was found", "what to do")))
    error.remedy += ", changed later"
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is kind
        assert str(again) == str(error)
        assert (again.args, vars(again)) == (error.args, vars(error))


def test_errors_with_more_values_keep_them() -> None:
    assert pickle.loads(pickle.dumps(MissingShard("gone", "wait", [2, 3]))).numbers == (2, 3)
    with pytest.raises(KeyError):
        raise pickle.loads(pickle.dumps(UnknownId("no document has the id 'a'")))


def test_a_pool_of_processes_raises_the_error_of_its_worker(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "a", "text": "river"}) + "\n{broken\n")
    with get_context("spawn").Pool(1) as pool, pytest.raises(BadLine) as caught:
        pool.apply_async(_read, [str(path)]).get(timeout=60)
    assert (caught.value.path, caught.value.line) == (str(path), 2)


def _read(path: str) -> int:
    return len(list(read_documents(path)))
