"""Searches a synthetic index of the size of MS MARCO: 8.8 million documents, about 530 million mentions.

    python -m bench.marco FOLDER [--documents 8841823]

Writes about 20 GB to FOLDER, measures, and removes them again. The paper reports 67 ms (COIL-tok, 32) and
125 ms (COIL-full, 128/32) per query on a CPU.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from bench.stamp import stamp, write_result
from bench.synthetic import HEAVY_QUERY, make_queries, write_index
from coil.hits.rankers import NativeRanker, Selection
from coil.scores.native import load_native
from coil.storage.manifest import SEGMENTS_FOLDER
from coil.storage.snapshot import open_snapshot
from coil.tokens.profile import By

PAPER_MS = {"COIL-tok": 67, "COIL-full": 125}
SYSTEMS: dict[str, By] = {"COIL-tok": "tokens", "COIL-full": "coil", "BM25": "bm25"}
ROUNDS = 8


def main() -> None:
    """Write the index, measure, clean up, and write bench/results/marco.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=8_841_823)
    arguments = parser.parse_args()
    result = stamp()
    folder = arguments.folder / "made-up.coil"
    try:
        began = time.perf_counter()
        write_index(folder, arguments.documents, n_c=256)
        print(f"written in {time.perf_counter() - began:.0f} s")
        result |= measure(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"written to {write_result('marco', result)}")


def measure(folder: Path) -> dict[str, Any]:
    """Opening, and queries cold and warm, with one thread and two."""
    began = time.perf_counter()
    snapshot = open_snapshot(folder)
    rankers = {t: NativeRanker(snapshot.segments, t) for t in (1, 2)}
    opening = time.perf_counter() - began
    segments = [live.segment for live in snapshot.segments]
    size = sum(path.stat().st_size for path in (folder / SEGMENTS_FOLDER).iterdir())
    native = load_native()
    assert native is not None
    rows = []
    for name, by in SYSTEMS.items():
        queries = make_queries(ROUNDS, HEAVY_QUERY, 32, 256, snapshot.segments, by)
        of_lists = [s.mentions_at(s.find(key)) for s in segments for key in queries[0].keys]
        mentions = sum(part.stop - part.start for part in of_lists)
        touched = mentions * (35 if queries[0].n_t else 2)
        if queries[0].sentence is not None:
            touched += sum(s.n_rows for s in segments) * 258
        drop_cache(folder)
        began = time.perf_counter()
        rankers[1].rank(queries[:1], Selection(10), prune=False)
        cold = time.perf_counter() - began
        for query in queries:  # now everything is in memory
            rankers[1].rank([query], Selection(10), prune=False)
        for threads, ranker in rankers.items():
            words = np.ones(touched // 8, dtype=np.uint64)
            for k, prune in product((10, 1000), (True, False)):
                times, reads = [], []
                for query in queries:
                    reads.append(native.read_seconds(words, threads))
                    began = time.perf_counter()
                    ranker.rank([query], Selection(k), prune=prune)
                    times.append(time.perf_counter() - began)
                row = {
                    "system": name,
                    "threads": threads,
                    "k": k,
                    "pruned": prune,
                    "mentions": mentions,
                    "megabytes": round(touched / 1e6),
                    "ms": round(statistics.median(times) * 1000, 1),
                    "roofline_ms": round(statistics.median(reads) * 1000, 1),
                    "share_of_roofline": round(statistics.median(reads) / statistics.median(times), 3),
                    "cold_ms": round(cold * 1000),
                    "paper_ms": PAPER_MS.get(name),
                }
                rows.append(row)
                print(row)
    return {
        "data": f"{sum(s.n_rows for s in segments):,} synthetic documents, "
        f"{sum(s.n_mentions for s in segments):,} mentions, {size / 1e9:.1f} GB on disk",
        "opening_ms": round(opening * 1000, 1),
        "latency": rows,
    }


def drop_cache(folder: Path) -> None:
    """Ask the system to drop the files from its cache, so that the next query reads them from disk."""
    for path in (folder / SEGMENTS_FOLDER).iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


if __name__ == "__main__":
    main()
