"""The outcome of a comparison: measures, differences with their significance, latencies and sizes.

Every system is compared with the system `against`. For each measure, the p-values of all these comparisons
are corrected by Holm's method, separately for the t-test and for the randomisation test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import numpy as np

from coil.comparison.plan import Plan
from coil.comparison.running import Ready, SystemRun
from coil.metrics.evaluation import Evaluation, evaluate
from coil.metrics.machine import PACKAGES, versions
from coil.metrics.significance import compare, holm

SAME = 1e-9  # smaller differences count as ties


@dataclass(frozen=True)
class Difference:
    """The difference between a system and the baseline: means, significance, and queries won and lost."""

    difference: float
    t_test_p: float
    t_test_holm: float
    randomisation_p: float
    randomisation_holm: float
    wins: int
    ties: int
    losses: int

    @property
    def is_significant(self) -> bool:
        """Whether both tests, corrected, find the difference significant at 5 %."""
        return max(self.t_test_holm, self.randomisation_holm) < 0.05


@dataclass(frozen=True)
class Latency:
    """Milliseconds per query."""

    median: float
    p95: float


@dataclass(frozen=True, eq=False)
class SystemOutcome:
    """The outcome of one system. `differences` is empty for the system that the others are compared with."""

    run: SystemRun
    evaluation: Evaluation
    differences: Mapping[str, Difference]
    latency: Latency
    parts: Mapping[str, Latency]

    @property
    def label(self) -> str:
        """The label in tables."""
        return self.run.entry.label

    def to_json(self) -> dict[str, Any]:
        """All figures of the system."""
        entry = self.run.entry
        return {
            "label": self.label,
            "system": entry.kind,
            "options": entry.option_texts,
            "model": entry.model,
            "training": entry.training,
            "works_on": list(entry.inputs),
            "depth": entry.depth if entry.reranks else None,
            "measures": dict(self.evaluation.means),
            "unanswered": len(self.evaluation.unanswered),
            "against": {measure: vars(found) for measure, found in self.differences.items()},
            "latency_ms": vars(self.latency),
            "parts_ms": {part: vars(found) for part, found in self.parts.items()},
            "index_bytes": self.run.index_bytes,
            "index_seconds": self.run.index_seconds,
            "training_seconds": self.run.training.get("seconds"),
            "training_steps": self.run.training.get("steps"),
            "timed_on": self.run.machine,
        }


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome of all systems on one collection."""

    collection: str
    documents: int
    queries: Mapping[str, str]  # id → text of the judged queries
    measures: tuple[str, ...]
    against: str
    k: int
    systems: Sequence[SystemOutcome]
    notes: tuple[str, ...] = ()
    digest: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)

    @property
    def machines(self) -> list[dict[str, Any]]:
        """The different machines that times were measured on."""
        found: list[dict[str, Any]] = []
        for system in self.systems:
            if system.run.machine not in found:
                found.append(system.run.machine)
        return found

    def system(self, label: str) -> SystemOutcome:
        """The outcome of a system, by its label."""
        return next(system for system in self.systems if system.label == label)

    def to_json(self) -> dict[str, Any]:
        """All figures, except those of single queries; see `per_query`."""
        return {
            "collection": {
                "name": self.collection,
                "documents": self.documents,
                "queries": len(self.queries),
                "sha256": self.digest,
                "notes": list(self.notes),
            },
            "made": dict(self.made),
            "measures": list(self.measures),
            "k": self.k,
            "against": self.against,
            "systems": [system.to_json() for system in self.systems],
        }

    def per_query(self) -> list[dict[str, Any]]:
        """Each query with its text and the values of all systems."""
        return [
            {
                "query": query_id,
                "text": text,
                "measures": {
                    measure: {
                        system.label: system.evaluation.values[measure][query_id] for system in self.systems
                    }
                    for measure in self.measures
                },
            }
            for query_id, text in self.queries.items()
        ]


def judge(collection: Ready, runs: Sequence[SystemRun], plan: Plan) -> Outcome:
    """Evaluate all runs against the judgements."""
    evaluations = {
        run.entry.label: evaluate(
            collection.judgements,
            {
                answer.query_id: dict(zip(answer.doc_ids, answer.scores, strict=True))
                for answer in run.answers
            },
            plan.measures,
        )
        for run in runs
    }
    differences = _differences(evaluations, plan.against, plan.measures)
    texts = {query.query_id: query.text for query in collection.queries}
    return Outcome(
        collection.name,
        collection.documents,
        texts,
        plan.measures,
        plan.against,
        plan.k,
        [
            SystemOutcome(
                run, evaluations[run.entry.label], differences.get(run.entry.label, {}), *_latencies(run)
            )
            for run in runs
        ],
        collection.notes,
        collection.digest,
        {
            "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "versions": versions(*PACKAGES),
        },
    )


def _differences(
    evaluations: Mapping[str, Evaluation], against: str, measures: Sequence[str]
) -> dict[str, dict[str, Difference]]:
    """Label → measure → difference, for all but the system that the others are compared with."""
    base = evaluations[against]
    others = [label for label in evaluations if label != against]
    found: dict[str, dict[str, Difference]] = {label: {} for label in others}
    for measure in measures:
        tested = [compare(base, evaluations[label], measure) for label in others]
        by_t = holm([test.t_test_p for test in tested])
        by_draws = holm([test.randomisation_p for test in tested])
        for label, test, corrected, drawn in zip(others, tested, by_t, by_draws, strict=True):
            values, first = evaluations[label].values[measure], base.values[measure]
            each = [values[query] - first[query] for query in base.queries]
            wins, losses = sum(d > SAME for d in each), sum(d < -SAME for d in each)
            found[label][measure] = Difference(
                test.difference,
                test.t_test_p,
                corrected,
                test.randomisation_p,
                drawn,
                wins,
                len(each) - wins - losses,
                losses,
            )
    return found


def _latencies(run: SystemRun) -> tuple[Latency, dict[str, Latency]]:
    """The latency of a whole query, and of each part of the work, in order."""
    names = list(dict.fromkeys(part for answer in run.answers for part in answer.parts_ms))
    totals = [sum(answer.parts_ms.values()) for answer in run.answers]
    parts = {name: _latency([answer.parts_ms.get(name, 0.0) for answer in run.answers]) for name in names}
    return _latency(totals), parts


def _latency(values: Sequence[float]) -> Latency:
    median, p95 = np.percentile(np.array(values), [50, 95])
    return Latency(float(median), float(p95))
