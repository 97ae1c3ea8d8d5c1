"""Judgements and runs that are wrong: a named error, or the treatment that docs/comparing.md describes."""

from __future__ import annotations

import json

import pytest

from coil.cli.main import run as coil
from tests.files import put

pytest.importorskip("ir_measures")

QRELS = "q1 0 a 1\nq2 0 b 2\nq2 0 c 1\n"
RUN = "q1 Q0 a 1 3.5 t\nq1 Q0 x 2 1.5 t\nq2 Q0 c 1 9 t\nq2 Q0 b 2 8 t\n"


def evaluated(tmp_path, capsys, qrels=QRELS, run=RUN, measures="nDCG@10 RR@10 R@10"):
    """Status, measures of the run and what was said."""
    paths = [str(put(tmp_path / "qrels", qrels)), str(put(tmp_path / "run", run))]
    status = coil(["evaluate", *paths, "--measures", measures, "--json"])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return status, json.loads(out)["measures"] if out else None, err


def test_good_input(tmp_path, capsys):
    status, found, err = evaluated(tmp_path, capsys)
    assert (status, err) == (0, "")
    assert found["RR@10"] == 1.0


@pytest.mark.parametrize(
    ("qrels", "run", "reason"),
    [
        (QRELS, RUN + "q1 Q0 a 3 1.0 t\n", "line 5: duplicate document 'a' for query 'q1'"),
        (QRELS, RUN.replace("3.5", "nan"), "line 1: the score 'nan' is not a finite number"),
        (QRELS, RUN.replace("3.5", "inf"), "line 1: the score 'inf' is not a finite number"),
        (QRELS, RUN.replace("3.5", "1,5"), "line 1: the score '1,5' is not a finite number"),
        (QRELS, RUN.replace(" t\n", "\n", 1), "line 1: expected six columns"),
        (QRELS, RUN.replace("q2 Q0 c 1 9 t", "q2 Q0 c d 1 9 t"), "line 3: expected six columns"),
        (QRELS + "q1 0 a\n", RUN, "line 4: expected 4 columns"),
        (QRELS + "q1 0 a 1 1\n", RUN, "line 4: expected 4 columns"),
        (QRELS + "q1 0 a high\n", RUN, "line 4: the relevance 'high' is not a whole number"),
        (QRELS + "q1 0 a 0.5\n", RUN, "line 4: the relevance '0.5' is not a whole number"),
        (QRELS + "q1 0 a 0\n", RUN, "'a' is judged 0 for query 'q1', but 1 earlier"),
        ("", RUN, "contains no judgements"),
        (QRELS, RUN.replace("q1", "p1").replace("q2", "p2"), "none of the 2 queries of"),
    ],
)
def test_named_errors(tmp_path, capsys, qrels, run, reason):
    status, found, err = evaluated(tmp_path, capsys, qrels, run)
    assert (status, found) == (1, None)
    assert reason in err


def test_windows_line_ends_change_nothing(tmp_path, capsys):
    plain = evaluated(tmp_path, capsys)
    assert evaluated(tmp_path, capsys, QRELS.replace("\n", "\r\n"), RUN.replace("\n", "\r\n")) == plain
    with_mark = evaluated(tmp_path, capsys, "\ufeff" + QRELS, "\ufeff" + RUN)
    assert with_mark == plain


def test_judged_queries_without_an_answer_count_as_zero_and_are_told(tmp_path, capsys):
    status, found, err = evaluated(tmp_path, capsys, QRELS + "q3 0 d 1\nq4 0 d 1\n")
    assert status == 0
    assert found["RR@10"] == 0.5
    assert "has no results for 2 of 4 judged queries (counted as 0)" in err


def test_answers_without_judgements_are_left_out_and_told(tmp_path, capsys):
    status, found, err = evaluated(tmp_path, capsys, run=RUN + "q9 Q0 a 1 1.0 t\n")
    assert (status, found["RR@10"]) == (0, 1.0)
    assert "has 1 query without judgements (ignored)" in err


def test_negative_scores_are_scores(tmp_path, capsys):
    lower = "".join(
        " ".join([*columns[:4], str(float(columns[4]) - 100), "t"]) + "\n"
        for columns in (line.split() for line in RUN.splitlines())
    )
    assert evaluated(tmp_path, capsys, run=lower) == evaluated(tmp_path, capsys)


def test_negative_judgements_are_not_relevant(tmp_path, capsys):
    _, found, _ = evaluated(tmp_path, capsys, "q1 0 a 1\nq1 0 x -1\nq2 0 c 1\n", RUN)
    assert found["RR@10"] == 1.0
    _, found, _ = evaluated(tmp_path, capsys, "q1 0 a -1\nq1 0 x 1\nq2 0 c 1\n", RUN)
    assert found["RR@10"] == 0.75


def test_a_line_twice_is_one_judgement(tmp_path, capsys):
    assert evaluated(tmp_path, capsys, QRELS + "q2 0 c 1\n") == evaluated(tmp_path, capsys)


def test_the_rank_column_and_the_order_of_lines_do_not_count(tmp_path, capsys):
    shuffled = "\n".join(reversed(RUN.replace(" 1 ", " 7 ").splitlines())) + "\n"
    assert evaluated(tmp_path, capsys, run=shuffled)[:2] == evaluated(tmp_path, capsys)[:2]


def test_equal_scores_are_ordered_by_id_as_trec_eval_does(tmp_path, capsys):
    tied = "q1 Q0 a 1 1.0 t\nq1 Q0 x 2 1.0 t\nq2 Q0 c 1 9 t\n"
    _, found, _ = evaluated(tmp_path, capsys, run=tied)
    assert found["RR@10"] == 0.75  # x comes before a: ids descending
