"""An index that is removed and built anew in its place while a server answers from it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from coil.indexes.opening import create, open_index
from coil.service.limits import ServiceOptions
from coil.texts.values import Document
from tests.builds import Stop, build, write_corpus
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running

NOTES = "/v1/indexes/notes"
ADD = {"content": b'{"id": "more", "text": "river"}', "headers": {"Authorization": f"Bearer {TOKEN}"}}


def found(server: Running) -> list[str]:
    answer = server.client.get(f"{NOTES}/search", params={"q": "river", "by": "bm25", "k": 100})
    assert answer.status_code == 200, answer.text
    return sorted(hit["doc_id"] for hit in answer.json()["hits"])


def test_an_index_that_is_built_anew_takes_over_when_it_is_complete(tmp_path: Path) -> None:
    folder, encoder = tmp_path / "notes.coil", HashEncoder()
    corpus = write_corpus(tmp_path / "new.jsonl", [Document(f"new{n}", "river") for n in range(20)])
    with create(folder, encoder=encoder) as index:
        index.add([{"id": "old1", "text": "river"}, {"id": "old2", "text": "river bank"}])
    with running([folder], ServiceOptions(token=TOKEN), encoder) as server:
        assert found(server) == ["old1", "old2"]
        shutil.rmtree(folder)
        with pytest.raises(Stop):
            build(folder, corpus, stop_after=12)
        with open_index(folder, encoder) as half:
            assert 0 < len(half) < 20

        assert found(server) == ["old1", "old2"]
        ready = server.client.get("/ready")
        assert ready.status_code == 503
        assert "is being rebuilt: queries are answered from the last snapshot" in ready.json()["detail"]
        assert server.client.post(f"{NOTES}/documents", **ADD).status_code == 507  # type: ignore[arg-type]

        build(folder, corpus, resume=True).close()
        assert found(server) == sorted(f"new{n}" for n in range(20))
        assert server.client.get("/ready").status_code == 200
        assert server.client.post(f"{NOTES}/documents", **ADD).status_code == 200  # type: ignore[arg-type]


def test_an_unfinished_build_is_served_where_nothing_else_was(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "new.jsonl", [Document(f"new{n}", "river") for n in range(20)])
    with pytest.raises(Stop):
        build(tmp_path / "notes.coil", corpus, stop_after=12)
    with running([tmp_path / "notes.coil"], encoder=HashEncoder()) as server:
        half = len(found(server))
        assert 0 < half < 20
        build(tmp_path / "notes.coil", corpus, resume=True).close()
        assert len(found(server)) == 20
