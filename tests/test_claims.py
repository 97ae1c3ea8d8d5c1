"""The paper's claims, tested query by query on finished comparisons."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coil.comparison.config import read_config
from coil.metrics.significance import randomisation_test, t_test
from experiments.claims import HERE, Folder, Recorded, main

FloatVector = NDArray[np.float64]


def write(folder: Path, name: str, values: dict[str, list[float]]) -> None:
    """What `coil compare` writes about one collection, as far as claims need it."""
    folder.mkdir(parents=True)
    queries = range(len(next(iter(values.values()))))
    rows = [{"measures": {"nDCG@10": {label: of[i] for label, of in values.items()}}} for i in queries]
    (folder / "per_query.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    systems = [
        {
            "label": label,
            "measures": {"nDCG@10": float(np.mean(of))},
            "latency_ms": {"median": 2.0 + place},
            "index_bytes": 10 * (1 + place),
        }
        for place, (label, of) in enumerate(values.items())
    ]
    (folder / "results.json").write_text(json.dumps({"collection": {"name": name}, "systems": systems}))


def ask(tmp_path: Path, claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    given = [str(tmp_path / "out"), "--claims", str(tmp_path / "claims.json")]
    main([*given, "--results", str(tmp_path / "found.json")])
    found: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())["claims"]
    return found


def test_claims_are_answered_with_figures_and_corrected_p_values(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    base = rng.random(60)
    better, same = base + 0.2 + 0.1 * rng.random(60), base + rng.choice([-0.1, 0.1], 60)
    values = {"a": better.tolist(), "b": base.tolist(), "c": same.tolist()}
    write(tmp_path / "out" / "one", "one", values)
    write(tmp_path / "out" / "two", "two", {"a": better.tolist(), "d": base.tolist()})
    found = ask(
        tmp_path,
        [
            {"name": "first", "better": "a", "than": "b", "costs": True},
            {"name": "second", "better": "b", "than": "a"},
            {"name": "third", "better": "c", "than": "b"},
            {"name": "nowhere", "better": "c", "than": "d"},
        ],
    )
    assert [(one["collection"], one["name"], one["answer"]) for one in found] == [
        ("one", "first", "yes"), ("one", "second", "no"), ("one", "third", "no difference shown"),
    ]  # fmt: skip
    first, second, third = found
    assert first["difference"] == pytest.approx(float((better - base).mean())) == -second["difference"]
    assert (first["of_better"], first["of_than"]) == pytest.approx((better.mean(), base.mean()))
    assert (first["latency_ratio"], first["index_ratio"]) == pytest.approx((2 / 3, 1 / 2))
    assert "latency_ratio" not in second
    # The largest of three p-values is not multiplied, but none is below a smaller one.
    largest = max(t_test(same - base), randomisation_test(same - base))
    assert third["p_holm"] == pytest.approx(largest)
    assert third["p_holm"] > 0.05 > first["p_holm"]
    assert all(one["test"] == "pairs" for one in found)
    low, high = first["interval_95"]
    assert low < first["difference"] < high
    assert high - low < 0.03
    assert third["interval_95"][0] < 0 < third["interval_95"][1]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), shared=st.floats(-1, 1), shift=st.floats(-0.2, 0.2), n=st.integers(5, 80))
def test_a_bound_from_recorded_tests_is_never_bolder_than_the_test_of_the_pairs(
    seed: int, shared: float, shift: float, n: int
) -> None:
    rng = np.random.default_rng(seed)
    base, noise = rng.random(n), rng.normal(0, 0.2, n)
    a, b = base + noise + shift, base + shared * noise + rng.normal(0, 0.1, n)
    values = {"base": base, "a": a, "b": b}
    with tempfile.TemporaryDirectory() as name:
        write(Path(name) / "out", "one", {label: of.tolist() for label, of in values.items()})
        folder = Folder(Path(name) / "out")
    recorded = Recorded(
        {
            "collection": {"name": "one", "queries": n},
            "against": "base",
            "systems": [
                {"label": label, "measures": {"nDCG@10": float(of.mean())}, "against": against(of, base)}
                for label, of in values.items()
            ],
        }
    )
    bound, pairs = recorded.test("a", "b"), folder.test("a", "b")
    assert bound.made_on == "bound"
    assert bound.p >= t_test(a - b) - 1e-9
    assert bound.error is None or bound.error >= pairs.error * (1 - 1e-6)
    for first, second in (("a", "base"), ("base", "b")):
        read, tested = recorded.test(first, second), folder.test(first, second)
        assert (read.made_on, read.p) == ("pairs", pytest.approx(tested.p))
        assert read.error is None or read.error == pytest.approx(tested.error, rel=1e-6)


def against(of: FloatVector, base: FloatVector) -> dict[str, dict[str, float]]:
    """The test that `coil compare` records."""
    p_values = {"t_test_p": t_test(of - base), "randomisation_p": randomisation_test(of - base)}
    return {"nDCG@10": {"difference": float((of - base).mean()), **p_values}}


def test_claims_are_tested_on_recorded_results(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    base = rng.random(50)
    values = {
        "base": base,
        "a": base + rng.normal(0.3, 0.1, 50),
        "b": base + rng.normal(0, 0.1, 50),
        "c": base,
    }
    systems = [
        {"label": label, "measures": {"nDCG@10": float(of.mean())}, "against": against(of, base)}
        for label, of in values.items()
    ]
    outcome = {"collection": {"name": "one", "queries": 50}, "against": "base", "systems": systems}
    (tmp_path / "out").write_text(json.dumps({"collections": {"one": outcome}}))
    pairs = [("a", "base"), ("a", "b"), ("b", "a"), ("a", "c")]
    found = ask(tmp_path, [{"name": f"{a} > {b}", "better": a, "than": b} for a, b in pairs])
    assert [(one["test"], one["answer"]) for one in found] == [
        ("pairs", "yes"), ("bound", "yes"), ("bound", "no"), ("bound", "no difference shown"),
    ]  # fmt: skip
    # Nothing is known about the error of a system that equals the one tested against.
    assert found[3]["interval_95"] is None
    assert found[1]["interval_95"][0] > 0


def test_a_comparison_of_a_single_collection_is_read_too(tmp_path: Path) -> None:
    write(tmp_path / "out", "one", {"a": [1.0, 1.0], "b": [0.0, 0.5]})
    [found] = ask(tmp_path, [{"name": "claim", "better": "a", "than": "b"}])
    assert (found["queries"], found["difference"]) == (2, 0.75)


def test_every_claim_is_about_two_systems_of_one_config() -> None:
    labels = [
        {system["name"] for system in read_config(HERE / name, {"lab": "LAB", "data": "DATA"}).systems}
        for name in ("cpu.toml", "cpu_dimensions.toml")
    ]
    claims = json.loads((HERE / "claims.json").read_text(encoding="utf-8"))
    assert len({claim["name"] for claim in claims}) == len(claims)
    for claim in claims:
        assert any({claim["better"], claim["than"]} <= known for known in labels), claim
