"""Tests the paper's claims on finished comparisons, query by query.

    python -m experiments.claims COMPARED... [--claims experiments/claims.json]

COMPARED are folders that `coil compare --out` wrote, or result files that experiments.record wrote. A claim
compares the nDCG@10 of two systems on every collection that has both. Folders contain the values of every
query: the t-test and the randomisation test are made on the pairs, and the larger p-value counts. A result
file contains only the tests of every system against a single one, S. Claims about S are read from it. For
the others, the standard error of a difference is bounded from above, SE(A − B) ≤ SE(A − S) + SE(B − S), so
the p-value of the t-test can only be too large, and the interval too wide.

The p-values of all claims on a collection are corrected together by Holm's method. Writes
experiments/results/claims.json, which a table in the docs is generated from.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bench.stamp import stamp, write_result
from coil.comparison.writing import PER_QUERY, RESULTS
from coil.metrics.significance import holm, randomisation_test, t_p_value, t_test

HERE = Path(__file__).resolve().parent
MEASURE = "nDCG@10"
SURE = 0.05


@dataclass(frozen=True)
class Test:
    """What is known about the difference between two systems."""

    made_on: str  # "pairs" or "bound"
    p: float
    error: float | None  # the standard error of the difference, or its bound


class Compared(Protocol):
    """The outcome of a comparison on one collection."""

    name: str
    queries: int
    systems: dict[str, dict[str, Any]]

    def test(self, better: str, than: str) -> Test:
        """Test the difference between two systems."""


class Folder:
    """An outcome with the values of every query."""

    def __init__(self, folder: Path) -> None:
        outcome = json.loads((folder / RESULTS).read_text(encoding="utf-8"))
        with (folder / PER_QUERY).open(encoding="utf-8") as file:
            self._values = [json.loads(line)["measures"][MEASURE] for line in file]
        self.name, self.queries = outcome["collection"]["name"], len(self._values)
        self.systems = {system["label"]: system for system in outcome["systems"]}

    def test(self, better: str, than: str) -> Test:
        """Test the pairs."""
        pairs = np.array([of[better] - of[than] for of in self._values])
        error = float(pairs.std(ddof=1)) / math.sqrt(len(pairs)) if len(pairs) > 1 else None
        return Test("pairs", max(t_test(pairs), randomisation_test(pairs)), error)


class Recorded:
    """An outcome with tests against one system only."""

    def __init__(self, outcome: dict[str, Any]) -> None:
        self.name, self.queries = outcome["collection"]["name"], outcome["collection"]["queries"]
        self.systems = {system["label"]: system for system in outcome["systems"]}
        self._against = outcome["against"]

    def test(self, better: str, than: str) -> Test:
        """Read the test if it is recorded, or bound it."""
        if self._against in (better, than):
            label = than if better == self._against else better
            found = self.systems[label]["against"][MEASURE]
            return Test("pairs", max(found["t_test_p"], found["randomisation_p"]), self._error(label))
        errors = [self._error(label) for label in (better, than)]
        if None in errors:
            return Test("bound", 1.0, None)
        error = sum(one for one in errors if one is not None)
        return Test("bound", t_p_value(self._mean(better, than) / error, self.queries - 1), error)

    def _mean(self, better: str, than: str) -> float:
        first, second = (self.systems[label]["measures"][MEASURE] for label in (better, than))
        return float(first - second)

    def _error(self, label: str) -> float | None:
        """The standard error of the difference from the system that all are tested against."""
        found = self.systems[label]["against"][MEASURE]
        if not 0 < found["t_test_p"] < 1:  # too small or too large to tell the error
            return None
        return abs(float(found["difference"])) / t_value(found["t_test_p"], self.queries - 1)


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line, test all claims and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "compared", nargs="+", type=Path, help="folders that `coil compare --out` wrote, or recorded results"
    )
    parser.add_argument("--claims", type=Path, default=HERE / "claims.json")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "claims.json")
    arguments = parser.parse_args(given)
    claims = json.loads(arguments.claims.read_text(encoding="utf-8"))
    found = [row for outcome in outcomes(arguments.compared) for row in ask(outcome, claims)]
    path = write_result("claims", {**stamp(), "measure": MEASURE, "claims": found}, arguments.results)
    for one in found:
        print(f"{one['collection']}: {one['name']}: {one['difference']:+.3f}, {one['answer']}")
    print(f"written to {path}")


def outcomes(compared: Sequence[Path]) -> Iterator[Compared]:
    """The outcomes on all collections of folders and result files."""
    for path in compared:
        if path.is_file():
            recorded = json.loads(path.read_text(encoding="utf-8"))
            yield from map(Recorded, recorded["collections"].values())
        elif (path / PER_QUERY).is_file():
            yield Folder(path)
        else:
            yield from (Folder(of_one.parent) for of_one in sorted(path.glob(f"*/{PER_QUERY}")))


def ask(outcome: Compared, claims: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The claims about systems of this comparison, tested."""
    systems = outcome.systems
    asked = [claim for claim in claims if {claim["better"], claim["than"]} <= systems.keys()]
    tests = [outcome.test(claim["better"], claim["than"]) for claim in asked]
    rows = []
    for claim, test, p in zip(asked, tests, holm([test.p for test in tests]), strict=True):
        better, than = systems[claim["better"]], systems[claim["than"]]
        mean = better["measures"][MEASURE] - than["measures"][MEASURE]
        row = {
            "collection": outcome.name,
            "queries": outcome.queries,
            **claim,
            "of_better": better["measures"][MEASURE],
            "of_than": than["measures"][MEASURE],
            "difference": mean,
            "interval_95": interval(mean, test.error, outcome.queries - 1),
            "test": test.made_on,
            "p_holm": p,
            "answer": answer(mean, p),
        }
        if claim.get("costs"):
            row["latency_ratio"] = better["latency_ms"]["median"] / than["latency_ms"]["median"]
            row["index_ratio"] = better["index_bytes"] / than["index_bytes"]
        rows.append(row)
    return rows


def interval(mean: float, error: float | None, freedom: int) -> list[float] | None:
    """The interval that contains the true difference with 95 % confidence."""
    if error is None:
        return None
    half = error * t_value(SURE, freedom)
    return [mean - half, mean + half]


def t_value(p: float, freedom: int) -> float:
    """The value of Student's t distribution with this two-sided p-value, by bisection."""
    low, high = 0.0, 1.0
    while t_p_value(high, freedom) > p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, freedom) > p else (low, middle)
    return high


def answer(difference: float, p: float) -> str:
    """Whether the first system is better: yes and no are significant."""
    if p >= SURE:
        return "no difference shown"
    return "yes" if difference > 0 else "no"


if __name__ == "__main__":
    main()
