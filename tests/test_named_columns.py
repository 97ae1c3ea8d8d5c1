"""Columns that are named for id, text and title, in every kind of file and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import coil
from coil.cli.main import run
from coil.errors import InputError, OptionMismatch
from coil.indexes.building import open_build
from coil.texts.columns import Columns
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.builds import Output
from tests.files import put
from tests.hash_encoder import HashEncoder

HEADER = ["url", "q", "a", "head", "text"]
ROWS = [["u1", "Why?", "So.", "One", "kept"], ["u2", "", "Then.", "", "too"]]
NAMED: dict[str, Any] = {"id_column": "url", "text_column": ["q", "a"], "title_column": "head"}
EXPECTED = [
    Document("u1", "One\nWhy?\nSo.", {"text": "kept", "title": "One"}),
    Document("u2", "Then.", {"text": "too", "title": ""}),
]


def _csv(path: Path) -> Path:
    return put(path / "t.csv", "\n".join(",".join(row) for row in [HEADER, *ROWS]))


def _tsv(path: Path) -> Path:
    return put(path / "t.tsv", "\n".join("\t".join(row) for row in [HEADER, *ROWS]))


def _json(path: Path) -> Path:
    lines = (json.dumps(dict(zip(HEADER, row, strict=True))) for row in ROWS)
    return put(path / "t.jsonl", "\n".join(lines))


def _parquet(path: Path) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    columns = {name: [row[place] for row in ROWS] for place, name in enumerate(HEADER)}
    parquet.write_table(arrow.table(columns), path / "t.parquet")
    return path / "t.parquet"


KINDS = [_csv, _tsv, _json, _parquet]


@pytest.mark.parametrize("write", KINDS)
def test_named_columns_take_the_place_of_the_usual_ones(
    tmp_path: Path, write: Callable[[Path], Path]
) -> None:
    assert list(read_documents(write(tmp_path), **NAMED)) == EXPECTED


@pytest.mark.parametrize("write", KINDS)
@pytest.mark.parametrize("option", ["id_column", "text_column", "title_column"])
def test_a_missing_column_is_told_with_those_that_are_there(
    tmp_path: Path, write: Callable[[Path], Path], option: str
) -> None:
    wrong = {**NAMED, option: "Q"}
    with pytest.raises(InputError, match=r"t\.") as caught:
        list(read_documents(write(tmp_path), **wrong))
    told = f"{caught.value} {caught.value.remedy}"
    assert "Q" in told
    assert all(name in told for name in HEADER)


def test_each_column_is_named_on_its_own(tmp_path: Path) -> None:
    path = put(tmp_path / "t.csv", "id,title,text,abstract\n1,T,x,y\n")
    [document] = read_documents(path, text_column="abstract")
    assert document == Document("1", "T\ny", {"title": "T", "text": "x"})
    [document] = read_documents(path, text_column=("abstract", "title"))
    assert document == Document("1", "y\nT", {"title": "T", "text": "x"})
    [document] = read_documents(path, id_column="abstract")
    assert document == Document("y", "T\nx", {"id": "1", "title": "T"})
    [document] = read_documents(path, title_column="abstract")
    assert document == Document("1", "y\nx", {"title": "y"})


def test_json_lines_need_not_all_have_a_column(tmp_path: Path) -> None:
    path = put(tmp_path / "t.jsonl", '{"id": 1, "q": "x"}\n{"id": 2, "a": "y"}\n')
    assert [d.text for d in read_documents(path, text_column=["q", "a"])] == ["x", "y"]
    reading = read_documents(path, text_column=["q", "a", "b"])
    assert [next(reading).text, next(reading).text] == ["x", "y"]
    with pytest.raises(InputError, match=r"has no column 'b'; its columns are 'id, q, a'"):
        next(reading)
    with pytest.raises(InputError, match="line 2: no text found"):
        list(read_documents(path, text_column="q"))
    assert list(read_documents(put(tmp_path / "e.jsonl", ""), text_column="q")) == []


def test_columns_are_refused_where_nothing_has_any(tmp_path: Path) -> None:
    note = put(tmp_path / "notes" / "a.txt", "x")
    for source in (note, note.parent):
        with pytest.raises(InputError, match="has no columns, but --text-column q was given"):
            read_documents(source, text_column="q")
    mixed = read_documents(note, put(tmp_path / "t.csv", "id,q\n1,y\n"), text_column="q")
    assert [d.text for d in mixed] == ["x", "y"]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ({"text_column": ""}, "text_column is ''"),
        ({"text_column": 3}, "text_column is 3"),
        ({"text_column": ["q", None]}, "text_column is None"),
        ({"text_column": ["q", "q"]}, "duplicate text column: q, q"),
        ({"id_column": 1}, "id_column is 1"),
        ({"title_column": ""}, "title_column is ''"),
    ],
)
def test_what_is_no_name_of_a_column_is_refused(tmp_path: Path, named: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_documents(_csv(tmp_path), **named)


def test_an_interrupted_build_knows_its_columns(tmp_path: Path) -> None:
    columns = Columns("url", ("q", "a"), "head")
    index, begun = open_build(tmp_path / "a.coil", encoder=HashEncoder(), columns=columns)
    assert begun.columns == columns
    index.close()
    for given in (Columns(), columns):
        index, before = open_build(tmp_path / "a.coil", resume=True, encoder=HashEncoder(), columns=given)
        assert before.columns == columns
        index.close()
    with pytest.raises(
        OptionMismatch, match=r"started with --id-column url .* not --text-column q"
    ) as caught:
        open_build(tmp_path / "a.coil", resume=True, encoder=HashEncoder(), columns=Columns(texts=("q",)))
    assert "or none of them" in caught.value.remedy
    for wrong in (Columns("a"), Columns(title="b")):
        assert Columns.from_json(wrong.to_json()) == wrong


def test_on_the_command_line(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    out, path = str(tmp_path / "a.coil"), str(_csv(tmp_path))
    options = ["--id-column", "url", "--text-column", "q", "--text-column", "a", "--title-column", "head"]
    assert run(["index", path, "--out", out, "--dry-run", *options]) == 0
    assert "2 documents" in capsys.readouterr().out
    assert run(["index", path, "--out", out, "--text-column", "none"]) == 1
    assert "has no column 'none'; its columns are 'url, q, a, head, text'" in capsys.readouterr().err
    assert not Path(out).exists()

    def stop(*_: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:  # the kill comes when the index is begun and nothing is in it
        patched.setattr("coil.indexes.index.Index.build", stop)
        patched.setattr("coil.indexes.index.Index.discard_if_empty", lambda _: False)
        assert run(["index", path, "--out", out, *options]) == 130
    assert run(["index", path, "--out", out, "--resume", "--dry-run"]) == 0
    assert "2 documents" in capsys.readouterr().out
    assert run(["index", path, "--out", out, "--resume", "--text-column", "a"]) == 1
    assert "was started with --id-column url" in capsys.readouterr().err
    assert run(["index", path, "--out", out, "--resume"]) == 0
    more = put(tmp_path / "more.jsonl", '{"url": "u3", "q": "Where?", "year": 2020}')
    assert run(["add", out, str(more), "--id-column", "url", "--text-column", "q"]) == 0
    with coil.open(out) as index:
        found = [index.document(doc_id) for doc_id in ("u1", "u2", "u3")]
    assert found == [*EXPECTED, Document("u3", "Where?", {"year": 2020})]
