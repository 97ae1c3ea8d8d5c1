"""The verbs that make, change and search an index, with the bundled model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import coil
from coil.cli.main import run
from coil.errors import DuplicateId, how_many
from coil.hits.searcher import Searcher
from coil.indexes import fields
from coil.indexes.opening import create
from coil.storage.lock import writer_lock
from coil.texts.runs import read_run
from coil.texts.values import Document
from coil.tokens.profile import By
from tests.hash_encoder import HashEncoder

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    (folder / "river.txt").write_text("The bank of the river was steep, and kingfishers nested in it.")
    (folder / "money.md").write_text("The bank raised its interest rates.")
    (folder / "otter.txt").write_text("Otters live in holes beside a stream.")
    return folder


@pytest.fixture
def index(notes: Path, tmp_path: Path, capsys: Output) -> str:
    path = str(tmp_path / "notes.coil")
    assert run(["index", str(notes), "--out", path]) == 0
    assert "3 documents added" in capsys.readouterr().err
    return path


def test_search_and_explain(index: str, capsys: Output) -> None:
    assert run(["search", index, "steep river bank", "-k", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "river.txt" in lines[0]
    assert run(["search", index, "steep river bank", "--json", "--by", "tokens"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [hit["doc_id"] for hit in hits] == ["river.txt", "money.md"]
    assert {hit["by"] for hit in hits} == {"tokens"}
    share = hits[0]["share"]
    assert 0.0 < hits[1]["share"] < share < 1.5
    assert run(["search", index, "steep river bank", "--by", "tokens"]) == 0
    assert f" {share:.0%} █" in capsys.readouterr().out.splitlines()[0]
    assert run(["explain", index, "steep river bank", "river.txt"]) == 0
    assert "[bank]" in capsys.readouterr().out
    assert run(["explain", index, "river", "river.txt", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["matches"][0]["query_token"] == "river"


@pytest.mark.parametrize("by", get_args(By))
def test_one_index_answers_as_five_systems(index: str, tmp_path: Path, capsys: Output, by: By) -> None:
    query = "steep river bank"
    with coil.open(index) as opened:
        expected = opened.search(query, by=by)
    assert run(["search", index, query, "--by", by, "--json"]) == 0
    hits = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(hit["doc_id"], hit["score"], hit["share"], hit["by"]) for hit in hits] == [
        (hit.doc_id, hit.score, hit.share, by) for hit in expected
    ]
    assert len(hits) == (2 if by in ("tokens", "bm25") else 3)
    (tmp_path / "q.tsv").write_text(f"q\t{query}\n")
    out = tmp_path / "out.trec"
    assert run(["search", index, "--queries", str(tmp_path / "q.tsv"), "--run", str(out), "--by", by]) == 0
    assert read_run(out) == {"q": {hit.doc_id: pytest.approx(hit.score) for hit in expected}}
    assert run(["explain", index, query, hits[0]["doc_id"], "--by", by, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (told["by"], told["score"]) == (by, pytest.approx(hits[0]["score"], abs=1e-4))


def test_hits_below_a_score_or_share_are_left_out(index: str, tmp_path: Path, capsys: Output) -> None:
    def found(*more: str) -> list[str]:
        assert run(["search", index, "steep river bank", "--json", *more]) == 0
        return [json.loads(line)["doc_id"] for line in capsys.readouterr().out.splitlines()]

    with coil.open(index) as opened:
        first, second, *_ = opened.search("steep river bank")
    assert second.share is not None
    assert found("--min-score", str(first.score - 0.001)) == [first.doc_id]
    assert found("--min-share", str(second.share - 0.001)) == [first.doc_id, second.doc_id]
    assert run(["search", index, "river", "--min-share", "9"]) == 0
    assert "no document reaches --min-score or --min-share" in capsys.readouterr().err
    (tmp_path / "q.tsv").write_text("q\tsteep river bank\n")
    asked = ["search", index, "--queries", str(tmp_path / "q.tsv"), "--run", str(tmp_path / "out.trec")]
    assert run([*asked, "--min-score", str(first.score - 0.001)]) == 0
    assert [*read_run(tmp_path / "out.trec")["q"]] == [first.doc_id]


def test_help_teaches_the_systems(capsys: Output) -> None:
    for verb in ("search", "explain", "rerank"):
        assert run([verb, "--help"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "--by [coil|tokens|bm25|dense|hybrid]" in shown
        assert "dense (the sentence vector alone)" in shown
        assert "--tok-only" not in shown


def test_explain_versus(index: str, capsys: Output) -> None:
    asked = ["explain", index, "steep river bank", "river.txt", "--versus", "money.md"]
    assert run(asked) == 0
    first, *rows = re.sub(r"\n(?! )", " ", capsys.readouterr().out).splitlines()
    assert re.match(r"river.txt scores \d+\.\d\d more than money.md, ", first)
    assert "which money.md does not contain" in first
    assert [word for word in rows[0].split() if word in ("river.txt", "money.md", "difference")]
    named = {row[2:].split("  ")[0].strip() for row in rows[1:]} - {""}
    assert named == {"steep", "river", "bank", "sentence", "score"}
    assert run([*asked, "--json", "--by", "tokens"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["first"]["sentence"] is None
    assert sum(part["value"] for part in found["differences"]) == pytest.approx(found["gap"], abs=1e-4)
    assert found["gap"] == pytest.approx(found["first"]["score"] - found["second"]["score"], abs=1e-4)
    lacking = {part["query_token"] for part in found["differences"] if part["second"] is None}
    assert lacking == {"steep", "river"}


def test_the_terminals_width_and_colour_are_respected(
    index: str, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        for more in ([], ["--all"], ["--mentions", "2"], ["--versus", "money.md"], ["--by", "bm25"]):
            assert run(["explain", index, "steep river bank of a kingfisher", "river.txt", *more]) == 0
            shown = capsys.readouterr().out
            assert "\x1b" not in shown, "not a terminal"
            assert max(len(line) for line in shown.splitlines()) <= width
    monkeypatch.setenv("NO_COLOR", "1")
    for more in ([], ["--versus", "money.md"]):
        assert run(["explain", index, "river bank", "river.txt", "--color", "always", *more]) == 0
        coloured = capsys.readouterr().out
        assert "\x1b[" in coloured, "what is asked for outright is done"
        assert run(["explain", index, "river bank", "river.txt", "--color", "never", *more]) == 0
        assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == capsys.readouterr().out


@pytest.mark.parametrize(
    ("variables", "more", "coloured"),
    [
        ({}, [], True),
        ({"NO_COLOR": "1"}, [], False),
        ({"TERM": "dumb"}, [], False),
        ({}, ["--color", "never"], False),
        ({"NO_COLOR": "1"}, ["--color", "always"], True),
    ],
)
def test_colour_on_a_terminal(index: str, variables: dict[str, str], more: list[str], coloured: bool) -> None:
    import pty

    parent, child = pty.openpty()
    base = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    command = [sys.executable, "-m", "coil.cli.main", "explain", index, "river bank", "river.txt", *more]
    env = {**base, "TERM": "xterm-256color", **variables}
    subprocess.run(command, stdout=child, stderr=subprocess.DEVNULL, env=env, check=True)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to with an error
        while block := os.read(parent, 4096):
            shown += block
    os.close(parent)
    assert b"scores" in shown
    assert (b"\x1b[" in shown) == coloured


def test_a_search_shows_the_field_that_it_sorts_by(tmp_path: Path, capsys: Output) -> None:
    rows = [
        {"id": "a", "text": "river", "price": 9},
        {"id": "b", "text": "river", "price": 4},
        {"id": "c", "text": "river"},
    ]
    rows += [{"id": "d", "text": "river", "price": 30, "seller": {"name": "Otter"}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = str(tmp_path / "a.coil")
    assert run(["index", str(tmp_path / "a.jsonl"), "--out", out]) == 0
    capsys.readouterr()
    assert run(["search", out, "+river", "--sort", "price"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.partition("price: ")[2].split()[0] for line in shown] == ["4", "9", "30", "–"]
    assert run(["search", out, "+river", "--sort", "seller.name", "-k", "1"]) == 0
    assert "d  seller.name: Otter  river" in capsys.readouterr().out
    assert run(["search", out, "+river", "-k", "1"]) == 0
    assert "price" not in capsys.readouterr().out


def test_what_a_search_cannot_tell_by_its_hits(index: str, capsys: Output) -> None:
    assert run(["search", index, " "]) == 0
    assert capsys.readouterr().err == "coil: no hits: the query is empty\n"
    assert run(["search", index, "river", "--filter", "year >= 2020"]) == 0
    assert "no document has the field 'year'" in capsys.readouterr().err
    assert run(["search", index, "river", "--filter", "id = 'nowhere'"]) == 0
    assert "no document matches the filter" in capsys.readouterr().err
    assert run(["search", index, "river word " * 2500, "--stats", "--json"]) == 0
    shown = capsys.readouterr()
    dropped = json.loads(shown.err.splitlines()[-1])["query_dropped"]
    assert dropped > 4000
    assert f"the last {dropped:,} tokens were ignored" in shown.err


def test_the_stats_include_the_time_of_a_filter(index: str, capsys: Output) -> None:
    def stats(*arguments: str) -> str:
        assert run(["search", index, *arguments, "--stats"]) == 0
        [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("time")]
        return line

    assert "filter" not in stats("river")
    assert stats("river", "--filter", "id = 'river.txt'").startswith("time        filter ")
    assert stats("+river").startswith("time        filter ")


def test_runs_can_be_evaluated(index: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "queries.tsv").write_text("q1\tsteep river bank\nq2\tinterest\n")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\triver.txt\t1\nq2\tmoney.md\t1\n")
    out = str(tmp_path / "out.trec")
    assert run(["search", index, "--queries", str(tmp_path / "queries.tsv"), "--run", out]) == 0
    assert run(["evaluate", str(tmp_path / "qrels.tsv"), out, "--json"]) == 0
    assert '"nDCG@10": 1.0' in capsys.readouterr().out


def test_empty_documents_are_counted(tmp_path: Path, capsys: Output) -> None:
    corpus, out = tmp_path / "a.jsonl", str(tmp_path / "a.coil")
    corpus.write_text('{"id": "a", "text": "river"}\n{"id": "b", "text": ""}\n{"id": "c", "text": " "}\n')
    assert run(["index", str(corpus), "--out", out, "--dry-run"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("1 document, about ")
    assert "2 documents without text would be skipped" in told.out
    assert told.err == ""
    assert run(["index", str(corpus), "--out", out]) == 0
    assert "coil: 2 documents are empty and were not indexed: 'b', 'c'" in capsys.readouterr().err
    corpus.write_text('{"id": "a", "text": ""}\n')
    assert run(["add", out, str(corpus), "--on-duplicate", "update"]) == 0
    told = capsys.readouterr()
    assert "coil: 1 document is empty and was not indexed: 'a'" in told.err
    assert "0 documents added; " in told.err
    assert told.err.rstrip().endswith("now has 0")


def test_inspect_counts_what_is_there_and_names_lists_by_their_keys(
    index: str, tmp_path: Path, capsys: Output
) -> None:
    (tmp_path / "b.tsv").write_text("b1\tA bank, banks and banking.\nb2\tEels.\n")
    assert run(["add", index, str(tmp_path / "b.tsv")]) == 0
    assert run(["delete", index, "otter.txt", "b2"]) == 0
    capsys.readouterr()
    assert run(["inspect", index]) == 0
    shown = capsys.readouterr().out
    assert " 3 in 2 segments, and 2 deleted rows (40.0%)" in shown
    assert "longest lists  bank 5" in shown
    assert "word stems" in shown
    assert "BM25 weight" in shown
    assert "stream" not in shown
    assert run(["inspect", index, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["longest_lists"][0] == ["bank", 5]
    assert (facts["rows"], facts["deleted_rows"], facts["documents"]) == (3, 2, 3)
    assert run(["compact", index]) == 0
    capsys.readouterr()
    assert run(["inspect", index, "--json"]) == 0
    compact = json.loads(capsys.readouterr().out)
    for name in ("rows", "mentions", "lists", "longest_lists"):
        assert facts[name] == compact[name], name


def test_inspect_lists_the_fields_for_filters(tmp_path: Path, capsys: Output) -> None:
    corpus, out = tmp_path / "a.jsonl", str(tmp_path / "a.coil")
    records = [
        {"id": i, "text": f"river {i}", "year": 2020 + i, "author": {"name": "Gao" * 40}, "unit price": 1}
        for i in range(3)
    ]
    records += [{"id": "x", "text": "bank", "year": 2001, "tags": ["a", "b"], "note": ""}]
    corpus.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert run(["index", str(corpus), "--out", out]) == 0
    capsys.readouterr()
    assert run(["inspect", out]) == 0
    shown = capsys.readouterr().out
    assert "        fields  year         100.0%  2020\n" in shown
    assert "\n                author.name   75.0%  GaoGao" in shown
    assert "not in filters, because of their names: unit price\n" in shown
    assert "note" not in shown
    assert "sampled" not in shown
    assert max(map(len, shown.splitlines()[:10])) < 110
    assert run(["inspect", out, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["fields_sampled"], facts["fields_left_out"]) == (4, 0)
    assert facts["fields"][0] == {"name": "year", "documents": 4, "example": 2020, "in_filters": True}
    assert len(facts["fields"][1]["example"]) == 80
    for field in facts["fields"]:
        if field["in_filters"]:
            assert run(["search", out, "river", "--filter", f"{field['name']} exists"]) == 0


def test_inspect_lists_fields_as_filters_find_them(tmp_path: Path, capsys: Output) -> None:
    out = tmp_path / "a.coil"
    with create(out) as made:
        made.add(
            [
                {"id": "1", "text": "river", "a.b": 1, "a": {"b": 2}},
                {"id": "2", "text": "river", "a": {"b": 3, "c.d": 4}},
            ]
        )
    assert run(["inspect", str(out), "--json"]) == 0
    [field] = json.loads(capsys.readouterr().out)["fields"]
    assert (field["name"], field["documents"], field["example"]) == ("a.b", 2, 1)


def test_the_fields_of_a_large_index_are_those_of_a_sample(
    tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fields, "PER_SEGMENT", 5)
    monkeypatch.setattr(fields, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(fields, "MOST_NAMES", 30)
    out = tmp_path / "a.coil"
    with create(out) as index:
        index.add([{"id": f"a{i}", "text": "x" * 9_000, "early": i} for i in range(20)])
        index.add([{"id": f"b{i}", "text": "river", **{f"f{n}": n for n in range(40)}} for i in range(10)])
        index.delete(["a0"])
    assert run(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "and 21 more" in shown
    assert "(of the 7 documents that were sampled)" in shown
    assert run(["inspect", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (len(facts["fields"]), facts["fields_left_out"], facts["fields_sampled"]) == (30, 11, 7)


def test_one_of_a_kind_is_told_as_one(tmp_path: Path, capsys: Output) -> None:
    corpus, out = tmp_path / "a.jsonl", str(tmp_path / "a.coil")
    corpus.write_text('{"id": "a", "text": "river"}\n')
    (tmp_path / "q.tsv").write_text("q1\triver\n")
    assert run(["index", str(corpus), "--out", out, "--dry-run"]) == 0
    assert run(["index", str(corpus), "--out", out]) == 0
    assert run(["verify", out]) == 0
    assert run(["inspect", out]) == 0
    assert run(["compact", out]) == 0
    assert run(["search", out, "--queries", str(tmp_path / "q.tsv"), "--run", str(tmp_path / "r")]) == 0
    assert run(["add", out, str(corpus), "--on-duplicate", "update"]) == 0
    assert run(["delete", out, "a"]) == 0
    told = capsys.readouterr()
    for noun in ("documents", "mentions", "segments", "lists", "hits", "queries"):
        assert not re.search(rf"\b1 {noun}\b", told.out + told.err), noun
    assert "1 document added; " in told.err
    assert "0 documents" in how_many(0, "document")
    assert how_many(2_000, "query") == "2,000 queries"


def test_add_update_delete_compact_verify_inspect(index: str, tmp_path: Path, capsys: Output) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text(
        '{"id": "river.txt", "text": "A river.", "year": 2020}\n{"id": "x", "text": "New", "year": 2021}\n'
    )
    assert run(["add", index, str(more)]) == 1
    told = capsys.readouterr().err
    assert "duplicate id 'river.txt' (the index and " in told
    assert "more.jsonl, line 1" in told
    assert run(["add", index, str(more), "--on-duplicate", "update"]) == 0
    assert run(["search", index, "river", "--filter", "year >= 2021", "--json"]) == 0
    assert [json.loads(line)["doc_id"] for line in capsys.readouterr().out.splitlines()] == ["x"]
    assert run(["delete", index, "nobody"]) == 1
    assert run(["delete", index, "x", "otter.txt"]) == 0
    assert run(["compact", index]) == 0
    assert run(["verify", index]) == 0
    assert "is intact: 2 documents" in capsys.readouterr().out
    assert run(["inspect", index, "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["documents"], facts["segments"], facts["deleted_rows"]) == (2, 1, 0)
    assert run(["inspect", index]) == 0
    assert re.search(r"int8, \d+\.\d bytes per mention", capsys.readouterr().out)


def test_a_finished_build_is_left_alone(index: str, notes: Path, capsys: Output) -> None:
    assert run(["index", str(notes), "--out", index, "--resume"]) == 0
    assert "is already finished (3 documents); nothing to resume" in capsys.readouterr().err
    assert run(["index", str(notes), "--out", index]) == 1
    assert "already exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["search", "{tmp}/none.coil", "x"], 1, "there is no index"),
        (["search", "{tmp}", "x"], 1, "is not an index"),
        (["search", "{index}"], 2, "Pass a query"),
        (["search", "{index}", "x", "--filter", "year ="], 1, "filter"),
        (["explain", "{index}", "x", "nobody"], 1, "no document has the id"),
        (["explain", "{index}", "x", "otter.txt", "--versus", "nobody"], 1, "no document has the id"),
        (["explain", "{index}", "x", "otter.txt", "--versus", "money.md", "--all"], 2, "--versus shows"),
        (["explain", "{index}", "x", "otter.txt", "--mentions", "0"], 2, "--mentions"),
        (["search", "{index}", "x", "--by", "splade"], 2, "'coil', 'tokens', 'bm25', 'dense', 'hybrid'"),
        (["explain", "{index}", "x", "otter.txt", "--by", "splade"], 2, "'coil', 'tokens', 'bm25'"),
        (["search", "{index}", "x", "--min-score", "nan"], 1, "min_score is nan; expected a number"),
        (["search", "{index}", "x", "--min-share", "half"], 2, "--min-share"),
        (["search", "{index}", "x", "--min-share", "nan"], 1, "min_share is nan; expected a number"),
        (["search", "{index}", "x", "--min-score", "1e300"], 1, "a number between -1e+09 and 1e+09"),
        (["index", "{tmp}/nothing.jsonl", "--out", "{tmp}/b.coil"], 1, "nothing.jsonl"),
        (["verify", "{tmp}/none.coil"], 1, "there is no index"),
    ],
)
def test_mistakes_are_told_in_one_line(
    index: str, tmp_path: Path, capsys: Output, arguments: list[str], status: int, told: str
) -> None:
    filled = [argument.format(tmp=tmp_path, index=index) for argument in arguments]
    assert run(filled) == status
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not (tmp_path / "b.coil").exists()


def test_a_build_that_another_process_writes_is_left_alone(
    notes: Path, tmp_path: Path, capsys: Output
) -> None:
    out = tmp_path / "a.coil"
    create(out, build_with="error").close()  # begun, nothing committed yet
    with writer_lock(out):
        assert run(["index", str(notes), "--out", str(out), "--resume"]) == 1
    assert "is being written by this process" in capsys.readouterr().err
    assert (out / "manifest.jsonl").is_file()


def test_a_closed_standard_input_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert run(["index", "-", "--out", str(tmp_path / "a.coil")]) == 1
    assert "standard input is closed" in capsys.readouterr().err
    assert not (tmp_path / "a.coil").exists()


@pytest.mark.parametrize("verb", [["search", "a.coil", "river"], ["serve", "a.coil"], ["bench"]])
def test_more_threads_than_there_can_be_are_refused(verb: list[str], capsys: Output) -> None:
    assert run([*verb, "--threads", "3000000000"]) == 2
    assert "<=x<=1024" in capsys.readouterr().err


def test_the_exit_status_tells_what_was_done(tmp_path: Path, capsys: Output) -> None:
    """Results that cannot be written are a failure; a note that cannot be is none."""
    corpus, out = tmp_path / "a.jsonl", tmp_path / "a.coil"
    corpus.write_text(json.dumps({"id": "a", "text": "river bank"}) + "\n")

    def coil(command: str) -> tuple[int, str]:
        line = f"{sys.executable} -m coil.cli.main {command}"
        done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
        return done.returncode, done.stderr

    assert coil(f"index {corpus} --out {out} 2>/dev/full")[0] == 0
    assert coil(f"add {out} {corpus} --on-duplicate update 2>&- >&-")[0] == 0
    assert run(["verify", str(out)]) == 0
    assert coil(f"add {out} {corpus} 2>/dev/full")[0] == 1
    assert coil(f"search {out} river >&-") == (1, "coil: standard output is closed\n")


def test_a_duplicate_id_names_the_argument_or_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = tmp_path / "a.jsonl"
    corpus.write_text('{"id": "a", "text": "river"}\n' * 2)
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(DuplicateId) as caught:
            index.add([{"id": "a", "text": "river"}] * 2)
        assert caught.value.remedy.endswith('or set on_duplicate to "update" or "skip"')
    for how in (["--out", str(tmp_path / "b.coil")], ["--out", str(tmp_path / "b.coil"), "--dry-run"]):
        assert run(["index", str(corpus), *how]) == 1
        assert "or set --on-duplicate to update or skip" in capsys.readouterr().err
    with pytest.raises(DuplicateId) as caught:
        Searcher.build(HashEncoder(), [Document("a", "river")] * 2)
    assert caught.value.remedy == "give each document its own id"


def test_too_little_memory_is_told_in_one_line(tmp_path: Path) -> None:
    """The libraries themselves do not fit: the message says so, without a traceback."""
    corpus, out = tmp_path / "a.jsonl", tmp_path / "a.coil"
    corpus.write_text(json.dumps({"id": "a", "text": "river bank"}) + "\n")
    assert run(["index", str(corpus), "--out", str(out)]) == 0
    for most in (180_000, 200_000, 220_000):
        line = (
            f"ulimit -v {most}; OPENBLAS_NUM_THREADS=1 {sys.executable} -m coil.cli.main search {out} river"
        )
        done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert "cannot be loaded" in done.stderr or "out of memory" in done.stderr
        assert "free some memory" in done.stderr
        assert "Traceback" not in done.stderr
