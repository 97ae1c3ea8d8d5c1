"""A run tells whether the held-out queries are answered better than by the model that it started from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coil.cli.main import run
from coil.training.outcome import Outcome, judge
from coil.training.train import TrainingFiles, train
from tests.training_data import TINY

MANY = replace(TINY, validation_queries=12, validation_passages=64, queries=8)


def _train(pairs: list[Path], base: Path, out: Path, **changes: object) -> list[str]:
    flags = ["train", "--preset", "paper", "--base", str(base), "--out", str(out), "--device", "cpu"]
    options = {**MANY.to_json(), "steps": 80, **changes}
    names = "n_t n_c queries hard_negatives steps lr average query_length document_length".split()
    names += "validation_queries validation_passages validate_every checkpoint_every".split()
    for name in names:
        flags += ["--" + name.replace("_", "-"), str(options[name])]
    return flags + [flag for path in pairs for flag in ("--pairs", str(path))]


def _figures(said: str) -> tuple[float, float]:
    found = re.search(r"MRR@10 of \d+ held-out queries: (\S+) before training, (\S+) after", said)
    assert found is not None, said
    return float(found[1]), float(found[2])


def test_a_run_that_improves_says_how_far(
    base: Path, pairs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_train(pairs, base, tmp_path / "better")) == 0
    said = capsys.readouterr().err
    before, after = _figures(said)
    assert after > before
    assert "NOT improve" not in said
    # The start was measured in the same way: it is what a run that learns nothing ends with.
    assert run(_train(pairs, base, tmp_path / "same", lr=0.0)) == 0
    assert _figures(capsys.readouterr().err) == (before, before)
    lines = [json.loads(line) for line in (tmp_path / "better" / "metrics.jsonl").read_text().splitlines()]
    figures = {line["step"]: line["validation_mrr_at_10"] for line in lines if "validation_mrr_at_10" in line}
    assert figures == {0: pytest.approx(before, abs=1e-4), 80: pytest.approx(after, abs=1e-4)}


def test_a_run_that_does_not_improve_says_so_and_what_to_try(
    base: Path, pairs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_train(pairs, base, tmp_path / "same", lr=0.0)) == 0
    said = capsys.readouterr().err
    assert "training did NOT improve the held-out queries" in said
    for advice in ("coil mine", "--lr", "--average 0.5", "more pairs"):
        assert advice in said


def test_what_is_saved_is_what_is_judged(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    """With all of the starting language model in the mean, only the projections differ from the start."""
    files = TrainingFiles(pairs, str(base), tmp_path / "a")
    trained = train(files, replace(MANY, steps=80), "cpu").outcome
    averaged = train(replace(files, out=tmp_path / "b"), replace(MANY, steps=80, average=1.0), "cpu").outcome
    assert trained is not None
    assert averaged is not None
    np.testing.assert_array_equal(trained.start, averaged.start)
    assert (trained.end != averaged.end).any()


def test_a_finished_run_that_is_resumed_judges_its_end(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    files, options = TrainingFiles(pairs, str(base), tmp_path / "a"), replace(MANY, steps=40)
    options = replace(options, checkpoint_every=20)
    first = train(files, options, "cpu").outcome
    again = train(files, options, "cpu", resume=True).outcome
    assert first is not None
    assert again is not None
    np.testing.assert_array_equal(first.start, again.start)
    np.testing.assert_array_equal(first.end, again.end)
    assert (first.end != first.start).any()


def test_a_run_without_held_out_queries_says_that_it_cannot_tell(
    base: Path, pairs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(_train(pairs, base, tmp_path / "m", steps=2, validation_queries=0)) == 0
    said = capsys.readouterr().err
    assert "it is unknown whether training helped" in said
    assert "MRR@10" not in said


def test_a_small_difference_may_be_chance() -> None:
    start = np.array([1.0, 0.5, 0.5, 0.0] * 10)
    slightly, clearly = start.copy(), np.minimum(1.0, start + 0.5)
    slightly[3] = 0.1
    for end, doubted in ((slightly, True), (clearly, False)):
        for before, after, improved in ((start, end, True), (end, start, False)):
            said = judge(Outcome(before, after), TINY, 5000, negatives=True)
            assert any("may be due to chance" in line for line in said) == doubted
            assert any("NOT improve" in line for line in said) != improved


def test_advice_fits_the_run() -> None:
    worse = Outcome(np.array([1.0, 1.0]), np.array([1.0, 0.5]))
    said = "\n".join(judge(worse, replace(TINY, average=0.5), 5000, negatives=True))
    assert "2 held-out queries: 1.0000 before training, 0.7500 after (0 better, 1 worse" in said
    assert "NOT improve" in said
    assert "coil mine" not in said
    assert "--average" not in said
    assert "fewer steps" in said
