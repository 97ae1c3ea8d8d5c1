"""Measures equal trec_eval's, significance equals scipy's, and `coil evaluate` says what is wrong."""

from __future__ import annotations

import contextlib
import json
import math
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.cli.main import run as coil
from coil.errors import InputError
from coil.metrics.evaluation import DEFAULT_MEASURES, evaluate, parse_measures, split_measures, trec_order
from coil.metrics.significance import compare, randomisation_test, t_test
from coil.texts.judgements import read_judgements
from coil.texts.runs import read_run, write_run

pytrec_eval = pytest.importorskip("pytrec_eval")

DATA = Path(__file__).parent / "data"
QRELS, RUN = str(DATA / "tiny.qrels"), str(DATA / "tiny.run")
TREC_NAMES = {
    "AP": "map",
    "nDCG": "ndcg",
    "nDCG@10": "ndcg_cut_10",
    "nDCG@5": "ndcg_cut_5",
    "P@5": "P_5",
    "P@10": "P_10",
    "R@5": "recall_5",
    "R@100": "recall_100",
    "R@1000": "recall_1000",
    "RR": "recip_rank",
    "AP@100": "map_cut_100",
    "Rprec": "Rprec",
    "Bpref": "bpref",
    "Success@5": "success_5",
}


def by_trec_eval(qrels, run):
    """Query → trec_eval's name → value, from trec_eval's own code; unanswered queries as 0."""
    found = pytrec_eval.RelevanceEvaluator(qrels, set(TREC_NAMES.values())).evaluate(run)
    return {
        query: {name: found.get(query, {}).get(name, 0.0) for name in TREC_NAMES.values()} for query in qrels
    }


def assert_equals_trec_eval(evaluation, expected):
    for measure, trec_name in TREC_NAMES.items():
        for query, values in expected.items():
            assert evaluation.values[measure][query] == pytest.approx(values[trec_name], abs=1e-12), (
                measure,
                query,
            )
        mean = sum(values[trec_name] for values in expected.values()) / len(expected)
        assert evaluation.means[measure] == pytest.approx(mean, abs=1e-12)


def test_tiny_case_equals_the_committed_values_of_trec_eval():
    expected = json.loads((DATA / "tiny.expected.json").read_text())
    evaluation = evaluate(read_judgements(QRELS), read_run(RUN), TREC_NAMES)
    assert_equals_trec_eval(evaluation, expected["per_query"])
    assert {name: evaluation.means[ours] for ours, name in TREC_NAMES.items()} == pytest.approx(
        expected["mean"]
    )
    assert evaluation.unanswered == ("q3",)
    assert len(evaluation.queries) == 6


def test_the_committed_values_are_those_of_the_definitions():
    """q1 by hand. trec_eval's order: d3, then x1, d2, d1 (equal scores: ids descending), d4, x2."""
    expected = json.loads((DATA / "tiny.expected.json").read_text())["per_query"]["q1"]
    gains = [0, 0, 2, 3, 1, 0]  # x1 and x2 are not judged, d5 (1) is not found
    dcg = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
    ideal = sum(gain / math.log2(rank + 1) for rank, gain in enumerate([3, 2, 1, 1], start=1))
    assert expected["ndcg_cut_10"] == pytest.approx(dcg / ideal)
    assert expected["map"] == pytest.approx((1 / 3 + 2 / 4 + 3 / 5) / 4)
    assert expected["recip_rank"] == pytest.approx(1 / 3)
    assert expected["recall_1000"] == pytest.approx(3 / 4)
    assert expected["P_5"] == pytest.approx(3 / 5)
    assert expected["Rprec"] == pytest.approx(2 / 4)
    assert expected["success_5"] == 1


def test_the_default_measures_are_compared():
    """RR@10 is trec_eval's recip_rank where the first relevant document is among ten, else 0."""
    evaluation = evaluate(read_judgements(QRELS), read_run(RUN))
    expected = json.loads((DATA / "tiny.expected.json").read_text())["per_query"]
    assert set(DEFAULT_MEASURES) - {"RR@10"} <= set(TREC_NAMES)
    for query, values in expected.items():
        rank = values["recip_rank"]
        assert evaluation.values["RR@10"][query] == pytest.approx(rank if rank >= 1 / 10 else 0.0)
    deep = {"q": {f"x{n}": 20.0 - n for n in range(10)} | {"d": 1.0}}
    assert evaluate({"q": {"d": 1}}, deep, ["RR@10", "RR"]).means == {"RR@10": 0.0, "RR": 1 / 11}


def test_tiny_case_equals_trec_eval_run_now():
    with open(QRELS) as qrels, open(RUN) as run:
        expected = by_trec_eval(pytrec_eval.parse_qrel(qrels), pytrec_eval.parse_run(run))
    assert_equals_trec_eval(evaluate(read_judgements(QRELS), read_run(RUN), TREC_NAMES), expected)


def test_the_comparison_can_fail():
    """Ties in file order instead of trec_eval's, and a mean over answered queries, must both be noticed."""
    expected = json.loads((DATA / "tiny.expected.json").read_text())["per_query"]
    run, judgements = read_run(RUN), read_judgements(QRELS)
    untied = {q: {d: float(-n) for n, d in enumerate(documents)} for q, documents in run.items()}
    with pytest.raises(AssertionError):
        assert_equals_trec_eval(evaluate(judgements, untied, TREC_NAMES), expected)
    answered = {q: judged for q, judged in judgements.items() if q in run}
    with pytest.raises((AssertionError, KeyError)):
        assert_equals_trec_eval(evaluate(answered, run, TREC_NAMES), expected)


ids = st.sampled_from(["a", "A", "b", "é", "e\u0301", "z", "zz", "10", "9", "😀", "\ufffd", "中"])
scores = st.one_of(st.integers(-2, 2).map(float), st.floats(-1e30, 1e30), st.just(1.0 + 1e-9))


# trec_eval's code may hang where all judgements of a query are negative; see the test after this one.
judged = st.dictionaries(ids, st.integers(-2, 4), min_size=1).filter(lambda found: max(found.values()) >= 0)


@settings(max_examples=150, deadline=None)
@given(
    qrels=st.dictionaries(ids, judged, min_size=1, max_size=4),
    run=st.dictionaries(ids, st.dictionaries(ids, scores, min_size=1), min_size=1, max_size=4),
)
def test_any_case_equals_trec_eval(qrels, run):
    evaluation = evaluate(qrels, run, [*TREC_NAMES, "RR@2"])
    expected = by_trec_eval(qrels, run)
    assert_equals_trec_eval(evaluation, expected)
    for query, values in expected.items():  # the cut reciprocal rank sees the same order
        assert evaluation.values["RR@2"][query] == (
            values["recip_rank"] if values["recip_rank"] >= 0.5 else 0
        )


def test_queries_with_nothing_but_negative_judgements():
    """Run apart: trec_eval's code hangs or crashes on some of these, and must never see them."""
    code = """
from coil.metrics.evaluation import evaluate
for n in range(2000):
    qrels = {"q": {str(d): -1 - d % 2 for d in range(n % 7 + 1)}, "p": {"a": 1, "b": -1}}
    found = evaluate(qrels, {"q": {"0": 1.0, "x": 0.5}, "p": {"b": 2.0, "a": 1.0}}, ["nDCG", "AP", "RR@10"])
    assert found.means["RR@10"] == 0.25 and found.values["nDCG"]["q"] == 0, found
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_strange_ids_and_scores():
    odd = "\ud800\0 \n" + "x" * 10_000
    assert evaluate({odd: {odd: 1}}, {odd: {odd: 1.0}}).means == dict.fromkeys(DEFAULT_MEASURES, 1.0)
    assert trec_order("q", {"a": 1e300, "b": 1e301, "c": 0.0}) == ["b", "a", "c"]
    with pytest.raises(InputError, match="finite"):
        evaluate({"q": {"d": 1}}, {"q": {"d": float("nan")}})
    with pytest.raises(InputError, match="no judgements"):
        evaluate({}, {"q": {"d": 1.0}})


def test_runs_without_answers_count_as_zero():
    assert evaluate({"q": {"d": 1}}, {}).means == dict.fromkeys(DEFAULT_MEASURES, 0.0)
    assert evaluate({"q": {"d": 1}}, {"other": {"d": 1.0}, "q": {}}).unanswered == ("q",)


def test_measure_names():
    assert split_measures("nDCG@10, RR@10  AP(rel=2) SetF(rel=1, beta=2.)") == [
        "nDCG@10",
        "RR@10",
        "AP(rel=2)",
        "SetF(rel=1, beta=2.)",
    ]
    assert [str(m) for m in parse_measures(["P@5", "P@5", "AP(rel=2)"])] == ["P@5", "AP(rel=2)"]
    assert evaluate({"q": {"a": 1, "b": 2}}, {"q": {"a": 2.0, "b": 1.0}}, ["AP(rel=2)"]).means == {
        "AP(rel=2)": 0.5
    }


@pytest.mark.parametrize(
    "name",
    [
        "nDGC@10",
        "nDCG@",
        "nDCG@0",
        "nDCG@-1",
        "nDCG@1.5",
        "nDCG@True",
        "P",
        "R(rel=",
        "1+1",
        "nDCG(foo=1)",
        "",
        "\0",
    ],
)
def test_bad_measure_names(name):
    with pytest.raises(InputError) as caught:
        parse_measures([name])
    assert "nDCG@10" in caught.value.remedy


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=20))
def test_any_measure_text_is_parsed_or_refused(text):
    with contextlib.suppress(InputError):
        assert parse_measures(split_measures(text))


@pytest.mark.parametrize("n", [2, 3, 17, 300])
@pytest.mark.parametrize("shift", [0.0, 0.1, 1.0, 5.0])
def test_t_test_equals_scipy(n, shift):
    stats = pytest.importorskip("scipy.stats")
    differences = np.random.default_rng(n).standard_normal(n) + shift
    assert t_test(differences) == pytest.approx(stats.ttest_1samp(differences, 0).pvalue, rel=1e-8, abs=1e-14)


def test_t_test_known_value():
    """Student's table: with 9 degrees of freedom, t = 2.262 leaves 5 % in the two tails."""
    differences = np.arange(10.0) - 4.5
    differences += 2.262157 * differences.std(ddof=1) / np.sqrt(10)
    assert t_test(differences) == pytest.approx(0.05, abs=1e-6)


def test_randomisation_test():
    assert randomisation_test(np.array([1.0, 1.0, 1.0])) == 0.25  # two of eight sign patterns
    assert randomisation_test(np.array([1.0, 2.0, -3.0])) == 1.0
    assert randomisation_test(np.array([1.0, 0.0, 0.0, 1.0, 1.0])) == 0.25  # a 0 has no sign
    assert randomisation_test(np.zeros(5)) == 1.0
    assert randomisation_test(np.ones(300)) == 1 / 10_001
    noise = np.random.default_rng(1).standard_normal(60) + 0.25
    drawn = randomisation_test(noise)
    assert drawn == randomisation_test(noise)
    assert drawn == pytest.approx(t_test(noise), abs=0.02)
    assert randomisation_test(noise[:16]) == pytest.approx(randomisation_test(np.tile(noise[:16], 1), seed=3))


def test_drawn_signs_agree_with_all_signs(monkeypatch):
    differences = np.random.default_rng(2).standard_normal(12) + 0.4
    exact = randomisation_test(differences)
    monkeypatch.setattr("coil.metrics.significance._ALL_SIGNS_UP_TO", 0)
    assert randomisation_test(differences) == pytest.approx(exact, abs=0.02)


def test_degenerate_differences():
    assert t_test(np.array([0.3])) == 1.0
    assert t_test(np.zeros(4)) == 1.0
    assert t_test(np.full(4, 0.5)) == 0.0


def test_compare_wants_the_same_queries():
    first, second = evaluate({"a": {"d": 1}}, {}), evaluate({"b": {"d": 1}}, {})
    with pytest.raises(InputError, match="different queries"):
        compare(first, second, "nDCG@10")


def judged_and_runs(folder: Path) -> list[str]:
    """Twenty queries; the second run is always right, the first puts the answer second."""
    qrels = folder / "qrels.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{n}\td{n}\t1\n" for n in range(20)))
    write_run(folder / "weak.trec", [(f"q{n}", [("x", 2.0), (f"d{n}", 1.0)]) for n in range(20)])
    write_run(folder / "strong.trec", [(f"q{n}", [(f"d{n}", 2.0), ("x", 1.0)]) for n in range(19)])
    return [str(qrels), str(folder / "weak.trec"), str(folder / "strong.trec")]


def test_table(tmp_path, capsys):
    assert coil(["evaluate", *judged_and_runs(tmp_path), "--measures", "RR@10 P@1"]) == 0
    shown = capsys.readouterr()
    header, weak, strong = shown.out.splitlines()
    assert header.split() == ["run", "queries", "RR@10", "p", "P@1", "p"]
    assert weak.split() == ["weak.trec", "20", "0.5000", "0.0000"]
    assert strong.split()[:3] == ["strong.trec", "20", "0.9500"]
    assert strong.split()[3] == "<.001"
    assert len(header) == len(strong)  # right aligned
    assert "\x1b" not in shown.out
    assert "strong.trec has no results for 1 of 20 judged queries" in shown.err


def test_json(tmp_path, capsys):
    files = judged_and_runs(tmp_path)
    assert coil(["evaluate", *files, "--measures", "RR@10", "--json", "--per-query"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 42
    assert lines[0] == {"run": files[1], "query": "q0", "measures": {"RR@10": 0.5}}
    assert lines[20] == {"run": files[1], "queries": 20, "unanswered": 0, "measures": {"RR@10": 0.5}}
    against = lines[41]["against_first"]["RR@10"]
    assert against["difference"] == pytest.approx(0.45)
    assert against["t_test_p"] < 0.001
    assert against["randomisation_p"] < 0.001


def test_per_query_table(tmp_path, capsys):
    files = judged_and_runs(tmp_path)
    assert coil(["evaluate", *files[:2], "--measures", "RR@10", "--per-query"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["q0", "weak.trec", "0.5000"]
    assert lines[-1].split() == ["weak.trec", "20", "0.5000"]


def test_same_file_names_are_told_apart(tmp_path, capsys):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for folder in "ab":
        write_run(tmp_path / folder / "run.trec", [("q1", [("d1", 1.0)])])
    runs = [str(tmp_path / folder / "run.trec") for folder in "ab"]
    assert coil(["evaluate", QRELS, *runs]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == runs


def test_the_best_is_bold_on_a_terminal(tmp_path):
    files = judged_and_runs(tmp_path)
    master, slave = pty.openpty()
    code = "import sys; from coil.cli.main import main; main()"
    command = [sys.executable, "-c", code, "evaluate", *files, "--measures", "RR@10"]
    with subprocess.Popen(command, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        shown = b""
        try:
            while chunk := os.read(master, 4096):
                shown += chunk
        except OSError:  # how Linux says that the other end was closed
            pass
    os.close(master)
    assert process.returncode == 0
    assert b"\x1b[1m 0.9500" in shown or b"\x1b[1m0.9500" in shown
    assert b"\x1b[1m0.5000" not in shown


def test_standard_input_is_read_once(capsys):
    for arguments in (["-", "-"], ["qrels", "-", "-"]):
        assert coil(["evaluate", *arguments]) == 2
        assert "Standard input (-) can be read only once" in capsys.readouterr().err


def test_help_teaches(capsys):
    assert coil(["evaluate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "coil evaluate scifact/ bm25.trec coil.trec" in shown
    assert "nDCG@10 RR@10 R@100 R@1000" in " ".join(shown.split())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([QRELS, RUN, "--measures", "nDGC@10"], 2, "Success@1"),
        ([QRELS, RUN, "--measures", " "], 2, "no measure"),
        ([QRELS], 2, "RUN"),
        ([QRELS, "missing.trec"], 1, "file not found: missing.trec"),
        (["missing.qrels", RUN], 1, "file not found: missing.qrels"),
        ([QRELS, QRELS], 1, "tiny.qrels, line 1: expected six columns"),
        ([RUN, RUN], 1, "tiny.run, line 1"),
        ([str(DATA), RUN], 1, "contains no qrels/test.tsv"),
    ],
)
def test_bad_input_is_one_line_and_a_remedy(arguments, status, message, capsys):
    assert coil(["evaluate", *arguments]) == status
    shown = capsys.readouterr()
    assert message in shown.err
    assert status == 2 or "\n  try: " in shown.err
    assert "Traceback" not in shown.err
    assert shown.out == ""
