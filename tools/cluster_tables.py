"""The tables of docs/scale.md: shards on a cluster, measured and extrapolated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tools.quality_tables import ROOT, result

NOT_MEASURED = "There are no results yet."


def is_measured(name: str) -> bool:
    """Whether there is a result file."""
    return (ROOT / "bench/results" / f"{name}.json").is_file()


def table(head: str, rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    names = head.split("|")
    return [
        "| " + " | ".join(name.strip() for name in names) + " |",
        "|" + "---|" * len(names),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def ms(value: float) -> str:
    """Milliseconds."""
    return f"{value:,.0f} ms"


def cluster() -> str:
    """What shards on a cluster cost, and how building scales."""
    if not is_measured("cluster"):
        return NOT_MEASURED
    found = result("bench/results/cluster.json")
    machine, data, building = found["machine"], found["data"], found["building"]
    rows = []
    for row in found["batches"]:
        what = f"{row['queries']} queries, `by={row['by']}`" + (", with all texts" if row["texts"] else "")
        ratio = f"{row['shards_over_one_p50']:.2f}"
        rows.append([what, ms(row["one"]["p50_ms"]), ms(row["shards"]["p50_ms"]), ratio])
    best = [max(run["documents_a_second"] for run in building["runs"][actors]) for actors in "12"]
    told = (
        f"Building with two actors encodes {building['two_over_one']:.2f} × as many documents per second as "
        f"with one (at best {best[1]:.0f} and {best[0]:.0f}){_control(building)}.\n"
        f"The batches are measured on {data['documents']:,} documents of {data['corpus']}, building on "
        f"{data['built_with_1_and_2_actors']:,} of them; the load of the machine was "
        f"{machine['load_before']:.1f} before and "
        f"{machine['load_after']:.1f} after the run."
    )
    head = "batches, k = 10 (p50) | one index, two threads | two shards, one thread each | ratio"
    return "\n".join([*table(head, rows), "", told])


def _control(building: dict[str, Any]) -> str:
    """What the cores had to give."""
    others = max(run["cores_of_others"] for run in building["runs"]["2"])
    return (
        f"; two processes that only encode, without a cluster, reach {building['plain_two_over_one']:.2f} ×. "
        f"Other programs used up to {others:.1f} cores meanwhile"
    )


def scale() -> str:
    """The simulation compared with the measurements, and the plan."""
    if not is_measured("scale"):
        return NOT_MEASURED
    found = result("bench/results/scale.json")
    checks = [
        [
            f"{row['shards']}{' (fitted)' if row['fitted'] else ''}",
            *(ms(row[f"{kind}_p{q}_ms"]) for q in (50, 95) for kind in ("measured", "simulated")),
        ]
        for row in found["check"]
    ]
    of = found["assumptions"]
    assumed = (
        f"Machines of {of['cores']} cores and {of['memory_gb']} GB, {of['copies']} copies of each shard, "
        f"{of['busy']:.0%} busy, int8, k = 10.\n"
        f"A core-hour is assumed to cost ${of['dollars_a_core_hour']:.2f}."
    )
    plans = [
        [
            row["passages"].replace(" G", " B"), f"{row['terabytes']:g} TB",
            f"{row['shards']:,}", f"{row['machines']:,}",
            ms(row["work_ms"]), f"{row['queries_a_second']:,.0f}",
            *(ms(row[f"p{q}_ms"]) for q in (50, 95, 99)),
            f"{row['encoding_core_hours']:,.0f} core-hours, ${row['encoding_dollars']:,.0f}",
            f"${row['serving_dollars_a_day']:,.0f} per day",
        ]
        for row in found["plan"]
    ]  # fmt: skip
    head = (
        "passages|size|shards (fan-out)|machines|work per shard|queries per second|p50|p95|p99|"
        "encoding|serving"
    )
    first = "shards on this machine|p50 measured|p50 simulated|p95 measured|p95 simulated"
    return "\n".join([*table(first, checks), "", assumed, "", *table(head, plans)])
