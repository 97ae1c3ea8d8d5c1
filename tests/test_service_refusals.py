"""Requests that are refused: each is told what is wrong with it, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coil.errors import MissingIndex, OutputError
from coil.indexes.opening import open_index
from coil.service.limits import ServiceOptions
from coil.service.problems import problem_of
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build, expect_problem


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("refusals") / "notes.coil", 5)
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        yield server


@pytest.mark.parametrize(
    ("params", "detail"),
    [
        ({"offset": "-1"}, "offset=-1 is below the minimum of 0"),
        ({"k": "0"}, "k=0 is below the minimum of 1"),
        ({"offset": "1000001"}, "offset=1000001 exceeds the limit of 1,000,000"),
    ],
)
def test_numbers_out_of_range_are_named_as_written(
    server: Running, params: dict[str, str], detail: str
) -> None:
    got = server.client.get(f"{ONE}/search", params={"q": "river", **params})
    expect_problem(got)
    assert (got.status_code, got.json()["detail"]) == (422, detail)
    body = {"query": "river", **{name: int(value) for name, value in params.items()}}
    assert server.client.post(f"{ONE}/search", json=body).json()["detail"] == detail


@pytest.mark.parametrize(
    ("method", "path", "body", "detail"),
    [
        ("POST", "search", '{"query": "a", "k": 1, "query": "b"}', "duplicate key 'query'"),
        ("POST", "search_batch", '{"queries": ["a"], "queries": []}', "duplicate key 'queries'"),
        ("POST", "explain", '{"query": "a", "doc_id": "x", "doc_id": "y"}', "duplicate key 'doc_id'"),
        ("DELETE", "documents", '{"doc_ids": ["x"], "doc_ids": ["y"]}', "duplicate key 'doc_ids'"),
        (
            "POST",
            "search",
            '{"query": "a", "k": ' + "9" * 5000 + "}",
            "the body has a number of 5,000 digits",
        ),
    ],
)
def test_keys_that_are_repeated_and_numbers_without_end(
    server: Running, method: str, path: str, body: str, detail: str
) -> None:
    headers = {**WRITE, "Content-Type": "application/json"}
    got = server.client.request(method, f"{ONE}/{path}", content=body, headers=headers)
    expect_problem(got)
    assert got.status_code == 400
    assert detail in got.json()["detail"]


@pytest.mark.parametrize("coding", ["identity", "Identity", "IDENTITY"])
def test_identity_is_no_coding_however_it_is_written(server: Running, coding: str) -> None:
    headers = {**WRITE, "Content-Encoding": coding}
    line = '{"id": "coded", "text": "river"}'
    assert server.client.post(f"{ONE}/documents", content=line, headers=headers).status_code == 200


def test_a_refused_change_leaves_nothing_in_a_foreign_folder(tmp_path: Path) -> None:
    folder = build(tmp_path / "notes.coil", 5)
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        folder.rename(tmp_path / "away.coil")
        folder.mkdir()
        got = server.client.post(f"{ONE}/documents", content='{"id": "a", "text": "b"}', headers=WRITE)
        assert got.status_code == 507
        assert list(folder.iterdir()) == []
        folder.rmdir()
        (tmp_path / "away.coil").rename(folder)
    with open_index(folder, HashEncoder()) as index:
        folder.rename(tmp_path / "away.coil")
        folder.mkdir()
        with pytest.raises(MissingIndex, match="is not an index"):
            index.delete(["a"])
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named(number: int) -> None:
    def told(cause: Any) -> str:
        error = OutputError("/srv/notes.coil/x cannot be written", "free some space")
        error.__cause__ = cause
        return problem_of(error).detail

    assert told(OSError(number, os.strerror(number))).endswith("the server's disk is full")
    assert told(OSError(errno.EIO, os.strerror(errno.EIO))) == "the index cannot be written"
