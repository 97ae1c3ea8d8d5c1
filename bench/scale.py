"""Extrapolates measured figures to larger collections: bytes, machines, fan-out, tail latency, cost.

    python -m bench.scale [--cluster FILE] [--out FILE]

A small simulation of a query that is sent to all shards: queues at the shards, and calls that take longer
than usual. Its input is the timings of bench.cluster. Before it extrapolates, it has to
reproduce the measurements: it is fitted to 1 and 2 shards on this machine, and predicts 5. The prices are
assumptions.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.stamp import RESULTS, stamp, write_result

Times = NDArray[np.float64]  # milliseconds

QUERIES = 4000
CORES, MEMORY_GB = 16, 128  # of a machine of the plan
USABLE = 0.75  # of the memory: the rest is for the system and for what is read meanwhile
BUSY = 0.5  # of the capacity: what is left absorbs bursts and a machine that is gone
COPIES = 2
CORE_HOUR = 0.05  # dollars: an assumption, of the order of what clouds charge
SIZES = {"8.8 M": 8_841_823, "100 M": 100_000_000, "10 G": 10_000_000_000}


def load(name: str) -> Any:
    """A result file."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def draw(rng: np.random.Generator, samples: list[float], shape: tuple[int, ...]) -> Times:
    """Times like those that were measured."""
    return rng.choice(np.array(samples), shape)


def at_once(calls: Times, share: float) -> Times:
    """How long calls take that one client makes at the same time: it handles them one by one, which is
    a `share` of a call. [queries, calls] -> [queries]"""
    return calls.max(axis=1) + share * (calls.sum(axis=1) - calls.max(axis=1))


def waves(shards: int) -> list[int]:
    """How many shards rank first, and then: as `RayCalls` has it."""
    return [count for count in (shards // 4, shards - shards // 4) if count]


def simulate_here(
    rng: np.random.Generator, calls: dict[str, list[float]], shards: int, share: float, own: float = 0.0
) -> Times:
    """Queries of one client on this machine: encode while the ledger and then the statistics are asked for,
    and rank in waves; texts come with the rankings of so few shards. A question about statistics is as small
    as one for ids, which was measured. What the client does itself takes `own` milliseconds."""
    ranked = sum(at_once(draw(rng, calls["rank_one"], (QUERIES, count)), share) for count in waves(shards))
    counted = at_once(draw(rng, calls["look_up"], (QUERIES, shards)), share)
    encoded, versions = (draw(rng, calls[kind], (QUERIES,)) for kind in ("encode", "versions"))
    return np.maximum(encoded, versions + counted) + ranked + own


def fit(measured: dict[int, Any]) -> tuple[float, float]:
    """What the client does itself, so that one shard takes as long as was measured; and the share of a call
    that is the client's, so that two shards do."""

    def median(shards: int, share: float, own: float) -> float:
        calls = measured[shards]["samples_ms"]
        return float(np.median(simulate_here(np.random.default_rng(1), calls, shards, share, own)))

    own = max(0.0, measured[1]["search"]["p50_ms"] - median(1, 0.0, 0.0))
    wanted = measured[2]["search"]["p50_ms"]
    return own, float(min(np.linspace(0.0, 1.0, 21), key=lambda share: abs(median(2, share, own) - wanted)))


def compare(measured: dict[int, Any], share: float, own: float) -> list[dict[str, Any]]:
    """The simulation compared with the measurements. It draws from the single calls that were measured with
    so many shards, because the speed of the machine varies."""
    rows = []
    for shards, found in measured.items():
        times = simulate_here(np.random.default_rng(2), found["samples_ms"], shards, share, own)
        row: dict[str, Any] = {"shards": shards, "fitted": shards < 5}
        for q in (50, 95):
            row[f"measured_p{q}_ms"] = found["search"][f"p{q}_ms"]
            row[f"simulated_p{q}_ms"] = round(float(np.percentile(times, q)), 2)
        row["simulated_over_measured_p50"] = round(row["simulated_p50_ms"] / row["measured_p50_ms"], 2)
        rows.append(row)
    return rows


def wait_in_line(arrivals: Times, work: Times) -> Times:
    """How long each of these takes at a machine that does one at a time on all of its cores."""
    free, ends = 0.0, np.empty(len(arrivals))
    for number, (arrival, needed) in enumerate(zip(arrivals, work, strict=True)):
        free = max(free, arrival) + needed
        ends[number] = free - arrival
    return ends


def simulate_fan_out(
    rng: np.random.Generator,
    shards: int,
    work_ms: float,
    spread: list[float],
    call: list[float],
    share: float,
) -> tuple[dict[str, float], float]:
    """Queries that arrive at random, so that the machines are half busy; each waits for the statistics of all
    shards, for the slowest shard of the first wave, and then for that of the second. Each message to a
    further shard takes the client its share of a call."""
    rate = BUSY * COPIES / work_ms  # a millisecond; the copies of a shard share the queries
    arrivals = np.cumsum(rng.exponential(1 / rate, QUERIES))
    total = at_once(draw(rng, call, (QUERIES, shards)), share)
    for count in waves(shards):
        slowest = np.zeros(QUERIES)
        begun = arrivals + total
        for _ in range(count):
            copies = rng.integers(0, COPIES, QUERIES)
            work = work_ms * rng.choice(np.array(spread), QUERIES)
            took = np.empty(QUERIES)
            for copy in range(COPIES):
                mine = np.flatnonzero(copies == copy)
                mine = mine[np.argsort(begun[mine], kind="stable")]
                took[mine] = wait_in_line(begun[mine], work[mine])
            slowest = np.maximum(slowest, took + draw(rng, call, (QUERIES,)))
        total += slowest + share * draw(rng, call, (QUERIES, count - 1)).sum(axis=1)
    return {f"p{q}_ms": round(float(np.percentile(total, q)), 1) for q in (50, 95, 99)}, 1000 * rate


def plan(cluster: dict[str, Any], share: float) -> list[dict[str, Any]]:
    """What each size takes."""
    marco, pruning, encoding = load("marco"), load("pruning"), load("encoding")
    bytes_a_passage = float(marco["data"].split(", ")[-1].split()[0]) * 1e9 / SIZES["8.8 M"]
    large = next(row for row in pruning["large"] if (row["threads"], row["by"], row["k"]) == (1, "coil", 10))
    core_ms = large["pruned_ms"] / large["documents"]  # a passage, on one core
    one, two = (
        next(row["ms"] for row in marco["latency"] if (row["system"], row["threads"], row["k"]) == of)
        for of in (("COIL-full", 1, 10), ("COIL-full", 2, 10))
    )
    efficiency = one / two / 2  # of the second core
    a_second = encoding["document_throughput"][0]["documents_a_second"]["bucketed"]
    samples = cluster[1]["samples_ms"]
    usual = float(np.median(samples["rank_one"]))
    spread = [time / usual for time in samples["rank_one"]]
    rows = []
    for name, passages in SIZES.items():
        size = passages * bytes_a_passage
        shards = max(1, int(np.ceil(size / (USABLE * MEMORY_GB * 1e9))))
        work = passages / shards * core_ms / (CORES * efficiency)
        rng = np.random.default_rng(3)
        latency, rate = simulate_fan_out(rng, shards, work, spread, samples["versions"], share)
        encode_hours = passages / a_second / 3600
        rows.append(
            {
                "passages": name,
                "terabytes": round(size / 1e12, 2),
                "shards": shards,
                "machines": shards * COPIES,
                "work_ms": round(work, 1),
                "queries_a_second": round(rate, 1),
                **latency,
                "encoding_core_hours": round(encode_hours, -1 if encode_hours > 100 else 0),
                "encoding_dollars": round(encode_hours * CORE_HOUR, -1 if encode_hours > 1000 else 0),
                "serving_dollars_a_day": round(shards * COPIES * CORES * CORE_HOUR * 24),
            }
        )
    return rows


def main() -> None:
    """Check the simulation against the measurements, extrapolate, and write bench/results/scale.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--cluster", type=Path, default=RESULTS / "cluster.json", help="result file of bench.cluster"
    )
    parser.add_argument("--out", type=Path, help="result file, instead of the default")
    arguments = parser.parse_args()
    found = json.loads(arguments.cluster.read_text(encoding="utf-8"))
    measured = {row["shards"]: row for row in found["fan_out"]}
    own, share = fit(measured)
    result = {
        **stamp(),
        "client_ms": round(own, 2),
        "client_share_of_a_call": round(share, 2),
        "check": compare(measured, share, own),
        "assumptions": {
            "cores": CORES, "memory_gb": MEMORY_GB, "usable_memory": USABLE, "busy": BUSY, "copies": COPIES,
            "dollars_a_core_hour": CORE_HOUR,
        },
        "plan": plan(measured, share),
    }  # fmt: skip
    for row in (*result["check"], *result["plan"]):
        print(row)
    print(f"written to {write_result('scale', result, arguments.out)}")


if __name__ == "__main__":
    main()
