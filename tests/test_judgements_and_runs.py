"""Queries, pairs, judgements and runs are read and written; what is broken is named by its line."""

from __future__ import annotations

import json
import lzma
import math
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.errors import BadLine, DuplicateId, OutputError
from coil.texts.judgements import read_judgements
from coil.texts.pairs import Pair, read_pairs
from coil.texts.queries import read_queries
from coil.texts.runs import read_run, write_run
from coil.texts.values import Query
from tests.files import put

# ---- queries and pairs


def test_queries(tmp_path):
    path = put(
        tmp_path / "q.jsonl", '{"qid": 1, "query": "a"}\n{"query_id": "x", "text": "", "title": "t"}\n'
    )
    assert list(read_queries(path)) == [Query("1", "a"), Query("x", "")]
    assert list(read_queries(put(tmp_path / "q.tsv", "1\twhat is\n"))) == [Query("1", "what is")]
    with pytest.raises(DuplicateId) as caught:
        list(read_queries(put(tmp_path / "d.tsv", "1\ta\n2\tb\n1\tc\n")))
    assert caught.value.first.endswith("line 1")
    assert caught.value.second.endswith("line 3")
    assert "query" in caught.value.remedy
    with pytest.raises(BadLine, match="no text"):
        list(read_queries(put(tmp_path / "n.jsonl", '{"id": "1", "title": "a"}')))


def test_pairs(tmp_path):
    line = json.dumps({"query": "q", "positive": "p", "more": 1}) + "\n"
    path = put(tmp_path / "faq.v2.jsonl.xz", lzma.compress((line + "\n" + line).encode()))
    assert list(read_pairs(path)) == [Pair("q", "p", "faq.v2", 1), Pair("q", "p", "faq.v2", 3)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"query": "q"}', "'positive' is missing"),
        ('{"positive": "q"}', "'query' is missing"),
        ('{"query": "q", "positive": " \\n"}', "'positive' is ''"),
        ('{"query": 3, "positive": "p"}', "'query' is '3'"),
        ('{"query": null, "positive": "p"}', "'query' is 'None'"),
        ('{"query": "q", ', "invalid JSON"),
    ],
)
def test_bad_pairs(tmp_path, line, reason):
    path = put(tmp_path / "p.jsonl", '{"query": "q", "positive": "p"}\n' + line + "\n")
    with pytest.raises(BadLine, match=reason) as caught:
        list(read_pairs(path))
    assert caught.value.line == 2


# ---- judgements


@pytest.mark.parametrize(
    "content",
    [
        "q1 0 d1 2\nq1 0 d2 0\nq2 0 d1 -1\n",
        "q1\t0\td1\t2\r\n\nq1\t0\td2\t0\r\nq2\t0\td1\t-1",
        "query-id\tcorpus-id\tscore\nq1\td1\t2\nq1\td2\t0\nq2\td1\t-1\n",
        "q1\td1\t2\nq1\td2\t0\nq2\td1\t-1\nq2\td1\t-1\n",
    ],
)
def test_judgements(tmp_path, content):
    expected = {"q1": {"d1": 2, "d2": 0}, "q2": {"d1": -1}}
    assert read_judgements(put(tmp_path / "qrels", content)) == expected


def test_judged_ids_may_hold_spaces_between_tabs(tmp_path):
    path = put(tmp_path / "q.tsv", "query-id\tcorpus-id\tscore\nq 1\tmy notes.md\t1\nq\xa02\td\t1\n")
    assert read_judgements(path) == {"q 1": {"my notes.md": 1}, "q\xa02": {"d": 1}}


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("q 0 d 1\nq d 1\n", 2, "4 columns"),
        ("q 0\n", 1, "3 or 4 columns"),
        ("q 0 d x\n", 1, "not a whole number"),
        ("q 0 d 1.5\n", 1, "not a whole number"),
        ("q 0 d 99999999999\n", 1, "not a whole number"),
        ("q 0 d ١\n", 1, "not a whole number"),
        ("q\td\tscore\nq\td\tscore\n", 2, "not a whole number"),
        ("q 0 d 1\nq 0 d 2\n", 2, "but 1 earlier in the file"),
        ("\t0\td\t1\n", 1, "columns"),
    ],
)
def test_bad_judgements(tmp_path, content, line, reason):
    with pytest.raises(BadLine, match=reason) as caught:
        read_judgements(put(tmp_path / "qrels", content))
    assert caught.value.line == line


# ---- runs


def test_run_order(tmp_path):
    path = put(tmp_path / "r", "q Q0 low 1 1.0 t\nq Q0 b 2 5 t\nq Q0 a 3 5.0 t\np Q0 x 1 -1e3 t\n")
    run = read_run(path)
    assert list(run) == ["q", "p"]
    assert list(run["q"].items()) == [("b", 5.0), ("a", 5.0), ("low", 1.0)]  # not by rank, not by id


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("q Q0 d 1 nan t", "not a finite number"),
        ("q Q0 d 1 -inf t", "not a finite number"),
        ("q Q0 d 1 1_0 t", "not a finite number"),
        ("q Q0 d 1 1e999 t", "not a finite number"),
        ("q Q0 d 1 high t", "not a finite number"),
        ("q Q0 d 1 1.0", "six columns"),
        ("q Q0 d 1 1.0 t more", "six columns"),
        ("q Q0 a 1 1.0 t", "duplicate document"),
    ],
)
def test_bad_runs(tmp_path, line, reason):
    with pytest.raises(BadLine, match=reason) as caught:
        read_run(put(tmp_path / "r", f"q Q0 a 1 2.0 t\n\n{line}\n"))
    assert caught.value.line == 3


def test_written_runs_are_six_columns(tmp_path):
    path = tmp_path / "r.trec"
    assert write_run(path, [("q", [("a", 1.0), ("b", 2.5)]), ("empty", []), ("p", [("c d", 0)])], "me") == 3
    assert path.read_text() == "q Q0 b 1 2.5 me\nq Q0 a 2 1.0 me\np\tQ0\tc d\t1\t0.0\tme\n"
    assert oct(path.stat().st_mode & 0o777) == oct(0o666 & ~_umask())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


run_ids = st.text(min_size=1, max_size=8).filter(lambda s: s.isprintable() or s == "\xa0").map(str)
run_scores = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 0.1 + 0.2])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(run_ids, st.dictionaries(run_ids, run_scores, min_size=1), max_size=4))
def test_written_runs_read_back_in_the_same_order(tmp_path, run):
    write_run(tmp_path / "r", ((query, documents.items()) for query, documents in run.items()))
    found = read_run(tmp_path / "r")
    expected = {q: sorted(d.items(), key=lambda pair: pair[1], reverse=True) for q, d in run.items()}
    assert {q: list(d.items()) for q, d in found.items()} == expected


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([("q", [("d", math.nan)])], "score nan"),
        ([("q", [("d", math.inf)])], "score inf"),
        ([("q", [("d", 1.0), ("d", 2.0)])], "has a duplicate document"),
        ([("q", []), ("q", [])], "duplicate query 'q'"),
        ([("q", [("a\tb", 1.0)])], "cannot be written"),
        ([("q\n", [])], "cannot be written"),
        ([("q", [("", 1.0)])], "cannot be written"),
    ],
)
def test_a_failed_run_leaves_what_stood_there(tmp_path, rows, reason):
    path = put(tmp_path / "r", "before")
    with pytest.raises(OutputError, match=reason):
        write_run(path, [("fine", [("d", 1.0)]), *rows])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_runs(tmp_path):
    file = put(tmp_path / "file", "x")
    for path in (tmp_path, tmp_path / "none" / "r", file / "r", tmp_path / ("n" * 300), tmp_path / "r.gz"):
        with pytest.raises(OutputError) as caught:
            write_run(path, [("q", [("d", 1.0)])])
        assert caught.value.remedy
    with pytest.raises(OutputError, match="tag"):
        write_run(tmp_path / "r", [], "two words")
    assert list(tmp_path.iterdir()) == [file]
    assert write_run("/dev/null", [("q", [("d", 1.0)])]) == 1
    assert not Path("/dev/null").is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_the_right_to_write(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="cannot be written"):
        write_run(tmp_path / "r", [])


def test_a_run_behind_a_link(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_run(tmp_path / "link", [("q", [("d", 1.0)])])
    assert (tmp_path / "link").is_symlink()
    assert read_run(tmp_path / "real") == {"q": {"d": 1.0}}
