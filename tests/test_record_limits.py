"""Records at the edges: names that become the same, and fields that are nested."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coil.errors import BadLine, InputError
from coil.indexes.opening import create
from coil.texts.columns import check_document, make_document
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.files import put
from tests.hash_encoder import HashEncoder

DEEP = "the fields are nested deeper than 100 levels"


NAMES: list[dict[Any, Any]] = [
    {"id": "a", "text": "river", **dict.fromkeys(["x\ud800", "x\udfff"], 1)},
    {"id": "a", "text": "river", 1: 2, "1": 3},
]


@pytest.mark.parametrize("record", NAMES)
def test_two_fields_that_become_the_same_name_are_an_error(tmp_path: Path, record: dict[Any, Any]) -> None:
    fields = {name: value for name, value in record.items() if name not in ("id", "text")}
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for added in (record, Document("a", "river", fields)):
            with pytest.raises(
                InputError, match=r"the record has the field .* twice, under different keys"
            ) as caught:
                index.add([added])
            assert caught.value.remedy == "give each field a unique name"
        assert len(index) == 0


def test_two_keys_of_a_line_that_become_the_same_name_are_an_error(tmp_path: Path) -> None:
    lines = [json.dumps({"id": "ok", "text": "river", "x\ud800": 1, "y\ud800": 2}), json.dumps(NAMES[0])]
    reading = read_documents(put(tmp_path / "a.jsonl", "\n".join(lines)))
    assert next(reading).fields == {"x\ufffd": 1, "y\ufffd": 2}
    with pytest.raises(BadLine, match="line 2: the record has the field 'x\ufffd' twice"):
        next(reading)


def in_lists(levels: int, value: Any = 1) -> Any:
    for _ in range(levels):
        value = [value]
    return value


def in_objects(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def mixed(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = ({"a": value}, (value,))[level % 2]
    return value


def of_numpy(levels: int) -> Any:
    return in_lists(levels - 20, np.ones([1] * 20))


@pytest.mark.parametrize("make", [in_lists, in_objects, mixed, of_numpy])
def test_fields_have_up_to_100_levels(tmp_path: Path, make: Callable[[int], Any]) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", "f": make(100), "g": [make(99), make(99)]}])
        stored = index.document("a").fields
        assert json.dumps(stored["f"]).count("[") + json.dumps(stored["f"]).count("{") == 100
        for levels in (101, 400):
            with pytest.raises(InputError, match=DEEP) as caught:
                index.add([{"id": "b", "text": "river", "f": make(levels)}])
            assert caught.value.remedy == "flatten them"
        with pytest.raises(InputError, match=DEEP):
            index.add([{"id": "b", "text": "river", "g": [1, make(100)]}])
        assert len(index) == 1


def test_the_levels_of_a_line_do_not_depend_on_the_stack(tmp_path: Path) -> None:
    lines = [json.dumps({"id": str(levels), "text": "river", "f": in_lists(levels)}) for levels in (100, 101)]
    path = put(tmp_path / "a.jsonl", "\n".join(lines))

    def called(deep: int) -> list[str]:
        if deep:
            return called(deep - 1)
        reading = read_documents(path)
        found = [next(reading).doc_id]
        with pytest.raises(BadLine, match=f"line 2: {DEEP}"):
            next(reading)
        return found

    assert called(0) == called(sys.getrecursionlimit() // 3) == ["100"]


def test_a_field_that_contains_itself_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for check in (
        lambda: make_document({"id": "a", "text": "river", "f": loop}),
        lambda: check_document(Document("a", "river", {"f": loop}), "document", 1),
    ):
        with pytest.raises(BadLine, match=DEEP):
            check()
