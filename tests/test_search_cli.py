"""What `coil search` says about hits: which of them were not sorted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coil.cli.main import run
from coil.indexes.opening import create
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from tests.tiny import WEIGHED, make_model

TEXTS = {"A-123": "river bank", "B 1": "bank money", 'C"1\\': "river bank", "D": "money river"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    model = make_model(folder / "model", ModelConfig(8, 8, "mean", "unit", WEIGHED))
    export_model(model)
    with create(folder / "a.coil", model=str(model)) as index:
        for number, (doc_id, text) in enumerate(TEXTS.items()):
            index.add([{"id": doc_id, "text": text, "year": 2000 + number}])
    return folder / "a.coil"


@pytest.fixture
def said(path: Path, capsys: pytest.CaptureFixture[str]):
    def search(*arguments: str) -> tuple[list[str], str]:
        """The ids of the hits, and the messages."""
        run(["search", str(path), "--json", *arguments])
        told = capsys.readouterr()
        return [json.loads(line)["doc_id"] for line in told.out.splitlines()], told.err

    return search


def test_it_says_that_only_the_best_hits_were_sorted(said, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "sorted by year, not by score" in said("river", "--sort", "year")[1]
    monkeypatch.setattr("coil.hits.paging.SORTED", 3)
    best = said("river", "-k", "3")[0]
    hits, told = said("river", "--sort", "-year")
    assert hits == sorted(best, key=list(TEXTS).index, reverse=True)
    assert told == (
        "coil: sorted only the best 3 hits by year; more documents match: "
        "add a filter, or put + before a word that must be in the text\n"
    )
    assert "sorted only" not in said("+river", "--sort", "-year")[1]
