"""The tables of comparisons in the docs, generated from the result files that experiments.record writes."""

from __future__ import annotations

from typing import Any

from coil.comparison.tables import MARK, show, show_bytes, show_seconds
from tools.quality_tables import result


def compare_untrained() -> str:
    """The systems that need no training."""
    return table_of(result("experiments/results/compare-untrained.json")["collections"])


def compare_cpu() -> str:
    """Every system of the paper, trained in-domain."""
    [found] = result("experiments/results/compare-cpu.json")["collections"].values()
    return table_of_one(found)


def table_of_one(found: dict[str, Any]) -> str:
    """All measures on one collection, the size of the index and the time of the training."""
    measures = found["measures"]
    head = ["system", *measures, "index", "training"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for system in found["systems"]:
        cells = [_cell(system, measure) for measure in measures]
        lines.append("| " + " | ".join([system["label"], *cells, *_costs(system)]) + " |")
    return "\n".join([*lines, "", f"{found['collection']['name']}, {_explain_mark(found)}"])


def table_of(found: dict[str, Any], measure: str = "nDCG@10") -> str:
    """One measure on every collection, and the size of the index on the first."""
    first = next(iter(found.values()))
    rows = {
        system["label"]: [*_cells(system["label"], found, measure), *_costs(system)]
        for system in first["systems"]
    }
    head = ["system", *found, "mean", "index", "training"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join([label, *cells]) + " |" for label, cells in rows.items()]
    note = f"{measure}, {_explain_mark(first)} Index size on {first['collection']['name']}."
    return "\n".join([*lines, "", note])


def _cells(label: str, found: dict[str, Any], measure: str) -> list[str]:
    """The measure on every collection, with a mark if the difference is significant, and the mean."""
    cells, values = [], []
    for of_one in found.values():
        system = next(one for one in of_one["systems"] if one["label"] == label)
        values.append(system["measures"][measure])
        cells.append(_cell(system, measure))
    return [*cells, show(sum(values) / len(values))]


def _cell(system: dict[str, Any], measure: str) -> str:
    against = system["against"].get(measure)
    is_sure = against and max(against["t_test_holm"], against["randomisation_holm"]) < 0.05
    return f"{show(system['measures'][measure])}{MARK if is_sure else ''}"


def _explain_mark(found: dict[str, Any]) -> str:
    """The date and the meaning of the mark."""
    return (
        f"{str(found['made']['at'])[:10]}. {MARK}: differs from {found['against']} by a paired "
        "t-test and by a randomisation test, p < .05 after Holm's correction."
    )


def _costs(system: dict[str, Any]) -> list[str]:
    seconds = system["training_seconds"]
    return [
        show_bytes(system["index_bytes"]),
        show_seconds(seconds) if seconds else "–",
    ]
