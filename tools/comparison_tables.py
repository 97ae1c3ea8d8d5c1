"""The tables of comparisons in the docs, generated from the result files that experiments.record writes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from coil.comparison.tables import MARK, show, show_bytes, show_seconds
from tools.quality_tables import result


def compare_untrained() -> str:
    """The systems that need no training."""
    return table_of(result("experiments/results/compare-untrained.json")["collections"])


_FIRST = "COIL, from its index"
IN_DOMAIN = "insuranceqa"  # what the models of cpu.toml are trained on


def compare_cpu() -> str:
    """Every system of the paper, trained in-domain and searched there and zero-shot."""
    found = result("experiments/results/compare-cpu.json")["collections"]
    return table_of(found, zero_shot={name for name in found if name != IN_DOMAIN})


def compare_cpu_in_domain() -> str:
    """The same systems with all measures, in-domain."""
    return table_of_one(result("experiments/results/compare-cpu.json")["collections"][IN_DOMAIN])


def compare_cpu_short() -> str:
    """The same systems in three columns."""
    found = result("experiments/results/compare-cpu.json")["collections"]
    others = {name: of_one for name, of_one in found.items() if name != IN_DOMAIN}
    lines = ["| system | in-domain | zero-shot | index |", "|---|---|---|---|"]
    for system in found[IN_DOMAIN]["systems"]:
        in_domain, index = _cell(system, "nDCG@10"), show_bytes(system["index_bytes"])
        zero_shot = _cells(system["label"], others, "nDCG@10")[-1]
        lines.append(f"| {system['label']} | {in_domain} | {zero_shot} | {index} |")
    names = ", ".join(others)
    note = f"In-domain: {IN_DOMAIN}. Zero-shot: the mean of {names}. {_explain_mark(found[IN_DOMAIN])}"
    return "\n".join([*lines, "", note])


def dimensions() -> str:
    """The paper's Table 3: other dimensions of COIL, with the time of searching relative to the first."""
    found = result("experiments/results/compare-cpu-dimensions.json")["collections"][IN_DOMAIN]
    measures = ("nDCG@10", "RR@10", "R@1000")
    head = ["system", *measures, "search", "index"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    first = found["systems"][0]["parts_ms"]["search"]["median"]
    for system in found["systems"]:
        cells = [_cell(system, measure) for measure in measures]
        cells += [
            f"{system['parts_ms']['search']['median'] / first:.2f} × the time",
            show_bytes(system["index_bytes"]),
        ]
        lines.append(f"| {system['label']} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", f"{IN_DOMAIN}, {_explain_mark(found)}"])


def claims() -> str:
    """The paper's claims in-domain, with figures and significance."""
    found = [one for one in _claims() if one["collection"] == IN_DOMAIN]
    lines = ["| claim | difference | 95 % interval | p | answer | time, index |", "|---|---|---|---|---|---|"]
    for one in found:
        low, high = one["interval_95"]
        bound = " (bound)" if one["test"] == "bound" else ""
        cells = [_signed(one["difference"]), f"{_signed(low)} to {_signed(high)}{bound}", _p(one["p_holm"])]
        lines.append(f"| {one['name']} | " + " | ".join([*cells, one["answer"], _ratios(one)]) + " |")
    return "\n".join(lines)


def claims_zero_shot() -> str:
    """The same claims on the other collections."""
    found = [one for one in _claims() if one["collection"] != IN_DOMAIN]
    names = list(dict.fromkeys(one["collection"] for one in found))
    cells = {
        (one["name"], one["collection"]): f"{_signed(one['difference'])}: {one['answer']}" for one in found
    }
    lines = ["| claim | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for name in dict.fromkeys(one["name"] for one in found):
        lines.append(f"| {name} | " + " | ".join(cells.get((name, of), "–") for of in names) + " |")
    return "\n".join(lines)


def _claims() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result("experiments/results/claims.json")["claims"]
    return found


def reranking() -> str:
    """The time of reranking by COIL and by a cross-encoder, with the same candidates."""
    found = result("bench/results/rerank.json")
    lines = [
        "| reranked by | candidates per second | time per query | CPU time per query |",
        "|---|---|---|---|",
    ]
    for name, row in found["ways"].items():
        lines.append(
            f"| {name} | {row['candidates_per_second']:,.0f} | {row['times_the_first']:,.0f} × | "
            f"{row['cpu_times_the_first']:,.0f} × |"
        )
    first = found["ways"][_FIRST]["median_ms"]
    note = (
        f"{found['queries']} queries of {found['collection']} with {found['mean_candidates']:.0f} candidates "
        f"each, on {found['threads']} threads. COIL from its index takes {first:.0f} ms per query."
    )
    return "\n".join([*lines, "", note])


def case_study() -> str:
    """The similarity of a token in two senses, by every model."""
    found = result("experiments/results/case-study.json")["models"]
    lines = ["| token | query | model | same sense | other sense |", "|---|---|---|---|---|"]
    for number, case in enumerate(next(iter(found.values()))["cases"]):
        for name, of_model in found.items():
            cells = [
                _best(of_model["cases"][number]["similarities"][which]) for which in ("relevant", "other")
            ]
            lines.append(f"| {case['token']} | {case['query']} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _best(similarities: list[float]) -> str:
    return f"{max(similarities):.2f}" if similarities else "–"


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("0.", ".").replace("-", "−")


def _p(value: float) -> str:
    return "< .001" if value < 0.001 else f"{value:.3f}".removeprefix("0")


def _ratios(one: dict[str, Any]) -> str:
    if "index_ratio" not in one:
        return "–"
    return f"{one['latency_ratio']:.2g} ×, {one['index_ratio']:.2g} ×"


def table_of_one(found: dict[str, Any]) -> str:
    """All measures on one collection, the size of the index and the time of the training."""
    measures = found["measures"]
    head = ["system", *measures, "index", "training"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for system in found["systems"]:
        cells = [_cell(system, measure) for measure in measures]
        lines.append("| " + " | ".join([system["label"], *cells, *_costs(system)]) + " |")
    return "\n".join([*lines, "", f"{found['collection']['name']}, {_explain_mark(found)}"])


def table_of(
    found: dict[str, Any], measure: str = "nDCG@10", zero_shot: Collection[str] | None = None
) -> str:
    """One measure on every collection, its mean, and the size of the index on the first.

    With `zero_shot`, the mean is that of these collections.
    """
    first = next(iter(found.values()))
    averaged = {name: of_one for name, of_one in found.items() if zero_shot is None or name in zero_shot}
    rows = {}
    for system in first["systems"]:
        cells = _cells(system["label"], found, measure)
        cells[-1] = _cells(system["label"], averaged, measure)[-1]
        rows[system["label"]] = [*cells, *_costs(system)]
    head = ["system", *found, "mean" if zero_shot is None else "zero-shot mean", "index", "training"]
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
