"""What `coil search` says about hits: why there are none, and which were not sorted."""

from __future__ import annotations

import json
import shlex
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loan", "--by", "bm25"], "no document contains a word of the query"),
        (
            ["the", "--by", "bm25"],
            "the query has only words that are not indexed, such as 'the'; add another word",
        ),
        (["river +loan"], "no document matches +loan"),
        (["river", "--min-share", "100"], "no document reaches --min-score or --min-share"),
        (["river", "--filter", "year = 9"], "no document matches the filter year = 9; change or omit it"),
        (["river", "--filter", "yr > 1"], "no document has the field 'yr'; check the names in the filter"),
        (
            ["river", "--filter", "year = 2001", "--by", "bm25"],
            "no document among those that match the filter (1) contains a word of the query; "
            "change the filter or the query",
        ),
        (
            ["river +loan", "--filter", "year > 2000", "--min-share", "2"],
            "no document among those that match the filter (3) matches +loan and reaches --min-score or "
            "--min-share; change the filter or the query",
        ),
        (["river", "--offset", "7"], "there are no more than 7 hits to show; lower --offset"),
    ],
)  # fmt: skip
def test_it_says_why_there_are_no_hits(said, arguments: list[str], message: str) -> None:
    assert said(*arguments) == ([], f"coil: no hits: {message}\n")


def test_a_filter_of_all_unknown_fields_may_still_match(said) -> None:
    hits, told = said("loan", "--filter", "not yaer = 1", "--by", "bm25")
    assert (hits, "(4) contains a word of the query" in told) == ([], True)


@pytest.mark.parametrize("doc_id", TEXTS)
def test_a_query_that_is_an_id_is_recognized(said, doc_id: str) -> None:
    """Ids are not searched; the message has a command that finds the document."""
    hits, told = said(doc_id, "--by", "bm25")
    assert doc_id not in hits
    [line] = [line for line in told.splitlines() if "is the id of a document" in line]
    command = shlex.split(line.rpartition("to see it: ")[2])
    assert command[:2] == ["coil", "search"]
    hits, told = said(*command[3:])
    assert (hits, "is the id" in told) == ([doc_id], False)


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
    hits, told = said("river", "--sort", "year", "--offset", "3")
    assert (hits, "no more than 3 hits to show; lower --offset" in told) == ([], True)
