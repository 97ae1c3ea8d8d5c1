"""Measures the search core: compared with the roofline and NumPy, singly and in batches, and by size.

    python -m bench.search [--made-up 1000000]

Everything is measured in turn in one run, with one thread unless stated otherwise, and compared by medians.
bench.pruning compares pruned with exhaustive search.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from bench.stamp import stamp, write_result
from bench.synthetic import QUERY, make_queries, write_index
from coil.hits.rankers import NativeRanker, Selection
from coil.metrics import speed
from coil.storage.snapshot import open_snapshot

SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)

RESIDENT = """
import sys
from pathlib import Path
from bench.synthetic import QUERY, make_queries
from coil.hits.rankers import Selection, NativeRanker
from coil.storage.memory import peak_bytes, resident_bytes
from coil.storage.snapshot import open_snapshot
before = resident_bytes()
snapshot = open_snapshot(Path(sys.argv[1]))
ranker = NativeRanker(snapshot.segments)
[query] = make_queries(1, QUERY, 32, 256, snapshot.segments)
ranker.rank([query], Selection(1000), prune=False)
mentions = sum(p.stop - p.start for live in snapshot.segments
               for p in (live.segment.mentions_at(live.segment.find(key)) for key in query.keys))
rows = sum(live.segment.n_rows for live in snapshot.segments)
status = Path("/proc/self/status").read_text()
anonymous = int(status.split("RssAnon:")[1].split()[0]) * 1024
pages = [line.split() for line in open("/proc/self/smaps")]
huge = sum(int(words[1]) for words in pages if words[0] == "FilePmdMapped:") * 1024
print(before, peak_bytes(), mentions * 35 + rows * 258, anonymous, huge)
"""
ORDINARY_PAGES = Path("/dev/shm")  # a file system of which Linux maps 4 KiB at a time


def main() -> None:
    """Measure and write bench/results/search.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--made-up", type=int, default=1_000_000, help="documents of the synthetic index")
    arguments = parser.parse_args()
    result = stamp()
    result["exhaustive"] = [
        {**asdict(timing), "share_of_roofline": round(timing.share, 3)}
        for timing in speed.measure_speed(arguments.made_up)
    ]
    _show(result["exhaustive"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "made-up.coil"
        write_index(folder, arguments.made_up, n_c=256)
        result["opening_ms"] = round(1000 * _median(lambda: _open(folder)), 1)
        result["batch"] = measure_batch(folder)
        result["memory_mb"] = measure_memory(folder)
    _show([{"opening_ms": result["opening_ms"]}, result["batch"], *result["memory_mb"]])
    result["growth"] = measure_growth(arguments.made_up)
    _show(result["growth"])
    print(f"written to {write_result('search', result)}")


def measure_batch(folder: Path) -> dict[str, Any]:
    """Compare 64 queries in one call with single queries, exhaustively."""
    segments = open_snapshot(folder).segments
    ranker = NativeRanker(segments)
    queries = make_queries(64, QUERY, 32, 256, segments)
    together, alone = [], []
    for _ in range(3):
        began = time.perf_counter()
        ranker.rank(queries, Selection(10), prune=False)
        together.append(time.perf_counter() - began)
        began = time.perf_counter()
        for query in queries:
            ranker.rank([query], Selection(10), prune=False)
        alone.append(time.perf_counter() - began)
    ratio = statistics.median(alone) / statistics.median(together)
    return {"batch_of_64_ms_a_query": round(min(together) / 64 * 1000, 2), "gain": round(ratio, 2)}


def measure_memory(folder: Path) -> list[dict[str, Any]]:
    """The peak memory of a process that searches a mapped index once, and the bytes that it has to read.

    If a file system has large pages in its cache, Linux maps 2 MiB per page fault. So the same is measured on
    a copy in memory, which is mapped in small pages.
    """
    rows = [_resident(folder, "as the disk maps it")]
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    if ORDINARY_PAGES.is_dir() and shutil.disk_usage(ORDINARY_PAGES).free > 2 * size:
        with tempfile.TemporaryDirectory(dir=ORDINARY_PAGES) as scratch:
            copy = Path(shutil.copytree(folder, Path(scratch) / "copy.coil"))
            rows.append(_resident(copy, "in small pages"))
    return rows


def _resident(folder: Path, how: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", RESIDENT, str(folder)], capture_output=True, text=True, check=True
    )
    before, peak, touched, anonymous, huge = (round(int(part) / 1e6) for part in done.stdout.split())
    return {
        "mapped": how,
        "before_opening": before,
        "peak": peak,
        "of_it_not_mapped_from_files": anonymous,
        "of_it_in_2_mib_pages": huge,
        "lists_touched": touched,
        "peak_over_touched": peak - before - touched,
    }


def measure_growth(most: int) -> list[dict[str, Any]]:
    """Time of an exhaustive query over collections of several sizes, and over queries of several lengths."""
    rng = np.random.default_rng(0)
    rows = []
    for documents in (size for size in SIZES if size <= most):
        timings = speed.measure_speed(documents, rounds=7, threads=1, with_numpy=False)
        rows += [{"documents": documents, "tokens": 6, "what": t.what, "ms": t.search_ms} for t in timings]
    segments = speed.make_segments(rng, 300_000)
    ranker = NativeRanker(segments)
    for tokens in (1, 2, 4, 8, 16, 32):
        query = speed.make_query(rng, False, tokens)
        ms = 1000 * _median(lambda query=query: ranker.rank([query], Selection(1000), prune=False))  # type: ignore[misc]
        rows.append({"documents": 300_000, "tokens": tokens, "what": "COIL-tok", "ms": ms})
    return rows


def _open(folder: Path) -> None:
    snapshot = open_snapshot(folder)
    NativeRanker(snapshot.segments)
    snapshot.release()


def _median(work: Callable[[], object]) -> float:
    times = []
    for _ in range(7):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(json.dumps(row))


if __name__ == "__main__":
    main()
