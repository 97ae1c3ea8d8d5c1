"""An index whose model is no longer where it was: what needs no model works, the rest is told where it is."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import pytest

import coil
from coil.cli.main import run
from coil.errors import MissingModelFile, OptionMismatch
from coil.service.served import open_all
from coil.vectors.model_files import bundled_model

Output = pytest.CaptureFixture[str]


@pytest.fixture
def moved(copy: Path, tmp_path: Path) -> tuple[str, str]:
    """An index, and where its model is now."""
    corpus = tmp_path / "c.jsonl"
    corpus.write_text('{"id": "a", "text": "river bank"}\n{"id": "b", "text": "money loan"}\n')
    index = str(tmp_path / "moved.coil")
    assert run(["index", str(corpus), "--out", index, "--model", str(copy)]) == 0
    return index, str(copy.rename(tmp_path / "elsewhere"))


def test_what_needs_no_model_works_without_it(moved: tuple[str, str], capsys: Output) -> None:
    index, _ = moved
    assert run(["inspect", index]) == 0
    told = capsys.readouterr()
    assert "river 1" in told.out
    assert told.err == ""
    assert run(["verify", index]) == 0
    assert run(["delete", index, "b"]) == 0
    assert run(["compact", index]) == 0
    assert run(["inspect", index, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (facts["documents"], facts["deleted_rows"]) == (1, 0)
    assert sorted(facts["longest_lists"]) == [["bank", 1], ["river", 1]]


def test_what_needs_the_model_is_told_where_it_is(
    moved: tuple[str, str], tmp_path: Path, capsys: Output
) -> None:
    index, model = moved
    (tmp_path / "d.jsonl").write_text('{"id": "d", "text": "river river"}\n')
    (tmp_path / "q.tsv").write_text("q\triver\n")
    (tmp_path / "r.trec").write_text("q Q0 a 1 1.0 x\n")
    files = ["--queries", str(tmp_path / "q.tsv"), "--run", str(tmp_path / "r.trec")]
    verbs = [
        ["search", index, "river"],
        ["explain", index, "river", "a"],
        ["add", index, str(tmp_path / "d.jsonl")],
        ["rerank", "--index", index, *files, "--out", str(tmp_path / "out.trec")],
    ]
    for verb in [*verbs, ["serve", index]]:
        assert run(verb) == 1
        told = capsys.readouterr().err
        assert "was built with a model that is missing" in told
        assert "--model FOLDER" in told
        assert len(told.splitlines()) == 2
    for verb in verbs:
        assert run([*verb, "--model", model]) == 0, verb
    assert run(["inspect", index]) == 0
    assert "river 3" in capsys.readouterr().out
    with coil.open(index, model=model) as opened:
        assert opened.search("river")[0].doc_id in ("a", "d")
    with pytest.raises(MissingModelFile, match="a model that is missing"), coil.open(index) as opened:
        opened.search("river")


def test_another_model_is_refused(moved: tuple[str, str], capsys: Output) -> None:
    index, model = moved
    other = str(bundled_model())
    for verb in (["search", index, "river"], ["explain", index, "river", "a"]):
        assert run([*verb, "--model", other]) == 1
        told = capsys.readouterr().err
        assert "was built with the model" in told
        assert other in told
    with pytest.raises(OptionMismatch, match="none of these indexes uses the model"):
        open_all([Path(index)], 1, models=[model, other])
    [served] = open_all([Path(index)], 1, models=[model]).values()
    assert served.index.search("river")[0].doc_id == "a"
    served.close()


def test_the_working_directory_may_change_before_the_model_is_loaded(
    moved: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, model = moved
    monkeypatch.chdir(tmp_path)
    with coil.open(index, model=Path(model).name) as opened:
        monkeypatch.chdir("/")
        assert opened.search("river")[0].doc_id == "a"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_find, (opened,)) == "a"


def _find(index: coil.Index) -> str:
    return index.search("river")[0].doc_id


def test_the_working_directory_may_change_after_the_model_is_loaded(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with coil.create("a.coil", model=copy.name) as index:
        index.add([{"id": "a", "text": "river bank"}])
        monkeypatch.chdir("/")
        assert index.explain("river", "a").sentence is not None  # reads another file of the model
        child = os.fork()  # as programs do that become a daemon; it loads the model again
        if child == 0:
            try:
                os._exit(0 if _find(index) == "a" else 1)
            finally:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
