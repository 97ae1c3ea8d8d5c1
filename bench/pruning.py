"""Compares pruned search with exhaustive search, with bm25s, and with the roofline.

    python -m bench.pruning --data FOLDER [--model FOLDER] [--most 120000] [--copies 8] [--saved FILE]

The first FOLDER contains collections (`corpus.jsonl`, `queries.jsonl`) and training pairs, which
bench.passages turns into segments. With `--model`, the vectors come from a real model, which takes half an
hour; `--saved` caches them. Every query is answered both ways in turn, and the minimum CPU time of each is
used, because it depends least on other work on the machine. `--copies` makes a larger collection of the same
texts with slightly different vectors.
"""

from __future__ import annotations

import argparse
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray

from bench.passages import Passages, encode_passages, make_passages
from bench.stamp import stamp, write_result
from coil import _native
from coil.hits.rankers import NativeRanker, Selection
from coil.lists.precision import StoredVectors
from coil.lists.segment import LiveSegment, Segment
from coil.lists.sentences import Sentences
from coil.scores.prepared import PreparedQuery
from coil.scores.statistics import Statistics
from coil.tokens.profile import WORDS
from coil.vectors.onnx_encoder import OnnxEncoder

BYS: tuple[Any, ...] = ("coil", "tokens", "bm25", "hybrid", "dense")
KS = (10, 1000)
QUERIES = 60  # of each collection
ROUNDS = 7
MARCO = 8_841_823  # passages


def main() -> None:
    """Measure and write bench/results/pruning.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder of collections and training pairs")
    parser.add_argument("--model", type=Path, help="encode with this model instead of using random vectors")
    parser.add_argument("--most", type=int, default=120_000, help="passages")
    parser.add_argument("--queries", type=int, default=15, help="number of queries to measure per collection")
    parser.add_argument(
        "--copies", type=int, default=8, help="number of copies of the passages in the larger collection"
    )
    parser.add_argument("--saved", type=Path, help="file that caches the encoded passages")
    arguments = parser.parse_args()
    passages = _passages(arguments)
    result = stamp("bm25s", "numba")
    result["passages"] = len(passages.keys)
    result["vectors"] = "made up" if arguments.model is None else "of the model"
    queries = [text for some in passages.queries.values() for text in some[: arguments.queries]]
    result["pruned"] = measure_pruning(passages.segments, queries)
    _show(result["pruned"])
    result["bm25s"] = measure_bm25s(passages, queries)
    _show(result["bm25s"])
    large = [live for copy in range(arguments.copies) for live in copied(passages.segments, copy)]
    result["large"] = measure_large(large, queries[:: max(len(queries) // 20, 1)])
    _show(result["large"])
    print(write_result("pruning", result))


def _passages(arguments: argparse.Namespace) -> Passages:
    if arguments.saved is not None and arguments.saved.exists():
        loaded: Passages = pickle.loads(arguments.saved.read_bytes())  # our own file
        return loaded
    if arguments.model is None:
        made = make_passages(arguments.data, arguments.most, QUERIES)
    else:
        made = encode_passages(OnnxEncoder(arguments.model), arguments.data, arguments.most, QUERIES)
    if arguments.saved is not None:
        arguments.saved.write_bytes(pickle.dumps(made, protocol=5))
    return made


def measure_pruning(segments: Sequence[LiveSegment], texts: Sequence[Any]) -> list[dict[str, Any]]:
    """One thread; ratios of exhaustive to pruned time, query by query."""
    ranker = NativeRanker(segments)
    rows = []
    for by in BYS:
        queries = _prepared(segments, texts, by)
        for k in KS:
            times = np.full((2, len(queries)), np.inf)
            counts = []
            for number, query in enumerate(queries):
                for _ in range(ROUNDS):
                    found = []
                    for way in (0, 1):
                        seconds, [(ranking, count)] = _timed(
                            lambda: ranker.rank([query], Selection(k), prune=bool(way))  # noqa: B023
                        )
                        times[way, number] = min(times[way, number], seconds)
                        found.append(ranking)
                    assert found[0] == found[1]
                counts.append(count)
            ratios = times[0] / times[1]
            rows.append(
                {
                    "by": by,
                    "k": k,
                    "exhaustive_us": _micro(np.median(times[0])),
                    "pruned_us": _micro(np.median(times[1])),
                    "ratio_median": round(float(np.median(ratios)), 2),
                    "ratio_least": round(float(ratios.min()), 2),
                    "ratio_10th": round(float(np.quantile(ratios, 0.1)), 2),
                    "ratio_most": round(float(ratios.max()), 2),
                    "mentions": _share(counts, "mentions_scored", "mentions_skipped"),
                    "tails": _share(counts, "sentences_scored", "sentences_skipped"),
                }
            )
    return rows


def measure_bm25s(passages: Passages, texts: Sequence[Any]) -> list[dict[str, Any]]:
    """BM25 in batches, one thread: microseconds per query."""
    try:
        import bm25s
        import numba  # noqa: F401
    except ImportError:
        return []
    rival = bm25s.BM25(method="lucene", k1=WORDS.k1, b=WORDS.b, backend="numba")
    rival.index([list(keys) for keys in passages.keys], show_progress=False)
    asked = [[key for key in text.keys if key in rival.vocab_dict] for text in texts]
    ranker = NativeRanker(passages.segments)
    prepared = {by: _prepared(passages.segments, texts, by) for by in ("bm25", "coil")}
    rows = []
    for k in KS:
        ways: dict[str, Callable[[], Any]] = {
            "bm25s": lambda: rival.retrieve(asked, k=k, n_threads=1, show_progress=False),  # noqa: B023
            **{by: partial(ranker.rank, queries, Selection(k)) for by, queries in prepared.items()},
        }
        least = dict.fromkeys(ways, np.inf)
        for _ in range(ROUNDS + 1):  # the first compiles
            for name, way in ways.items():
                least[name] = min(least[name], _timed(way, time.process_time)[0] / len(texts))
        rows.append(
            {"k": k}
            | {f"{name}_us": _micro(seconds) for name, seconds in least.items()}
            | {f"{by}_to_bm25s": round(float(least[by] / least["bm25s"]), 2) for by in prepared}
        )
    return rows


def measure_large(segments: Sequence[LiveSegment], texts: Sequence[Any]) -> list[dict[str, Any]]:
    """Milliseconds per query on more documents than fit into caches, and the time to read the bytes once."""
    n_rows = sum(live.segment.n_rows for live in segments)
    words = np.ones(1 << 26, np.uint64)  # 512 MiB; zeros would not be in memory
    rows = []
    for threads in (1, 2):
        ranker = NativeRanker(segments, threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        read = min(_timed(lambda: _native.read_seconds(words, threads), clock)[0] for _ in range(9))  # noqa: B023
        read /= words.nbytes  # seconds a byte, by the same clock
        for by in BYS:
            queries = _prepared(segments, texts, by)
            for k in KS:
                least = np.full((2, len(queries)), np.inf)
                for _ in range(3):
                    for number, query in enumerate(queries):
                        for way in (0, 1):
                            seconds, _ = _timed(
                                lambda: ranker.rank([query], Selection(k), prune=bool(way)),  # noqa: B023
                                clock,
                            )
                            least[way, number] = min(least[way, number], seconds)
                floor = np.array([_bytes_of(query, segments) * read for query in queries])
                rows.append(
                    {
                        "documents": n_rows,
                        "threads": threads,
                        "by": by,
                        "k": k,
                        "exhaustive_ms": round(float(np.median(least[0])) * 1e3, 2),
                        "roofline_share": round(float(np.median(floor / least[0])), 2),
                        "pruned_ms": round(float(np.median(least[1])) * 1e3, 2),
                        "ratio_median": round(float(np.median(least[0] / least[1])), 2),
                        "marco_ms": round(float(np.median(least[1])) * 1e3 * MARCO / n_rows, 1),
                    }
                )
    return rows


def copied(segments: Sequence[LiveSegment], copy: int) -> list[LiveSegment]:
    """Copies of the same texts; the signs of some dimensions are changed, so that scores differ."""
    rng = np.random.default_rng(copy)
    moved = []
    last = int(segments[-1].segment.row_documents[-1]) + 1
    for live in segments:
        old = live.segment
        flat = {
            name: np.array(getattr(old, name)) for name in ("posting_rows", "posting_starts", "row_lengths")
        }
        tail = old.sentences.tail
        signs = _signs(rng, tail.dim)
        head = StoredVectors(old.sentences.head.values.copy(), old.sentences.head.scales)
        segment = replace(
            old,
            vectors=replace(old.vectors, values=_flipped(old, rng)),
            sentences=Sentences(head, StoredVectors(tail.values * signs, tail.scales)),
            row_documents=old.row_documents + copy * last,
            **flat,
        )
        moved.append(LiveSegment(segment, None))
    return moved


def _flipped(segment: Segment, rng: np.random.Generator) -> NDArray[np.int8]:
    """Token vectors in groups; the last, smaller group stays as it is."""
    dim = segment.vectors.dim
    signs = _signs(rng, dim).reshape(1, dim // 4, 1, 4)
    values = segment.vectors.values.copy()
    whole = len(values) // (16 * dim) * 16 * dim
    values[:whole].reshape(-1, dim // 4, 16, 4)[:] *= signs
    return values


def _signs(rng: np.random.Generator, dim: int) -> NDArray[np.int8]:
    """Few are -1: lengths stay as they are, and products nearly so."""
    return rng.choice(np.array([-1, 1], np.int8), dim, p=[1 / 16, 15 / 16])


def _prepared(segments: Sequence[LiveSegment], texts: Sequence[Any], by: Any) -> list[PreparedQuery]:
    statistics = Statistics(segments)
    queries = [PreparedQuery.of(text, WORDS.answering(by), statistics) for text in texts]
    for query in queries:
        assert query.native is not None  # made before the clock runs
    return queries


def _bytes_of(query: PreparedQuery, segments: Sequence[LiveSegment]) -> int:
    """What an exhaustive search must read once."""
    total = 0
    for live in segments:
        segment = live.segment
        for key in query.keys:
            place = segment.find(key)
            mentions, postings = segment.mentions_at(place), segment.postings_at(place)
            count = mentions.stop - mentions.start
            total += 2 * (postings.stop - postings.start) + count // 8 + count * (query.n_t + (query.n_t > 0))
        if query.sentence is not None:
            total += segment.n_rows * (segment.sentences.dim + 2)
    return total


def _timed(work: Callable[[], Any], clock: Callable[[], float] = time.thread_time) -> tuple[float, Any]:
    began = clock()
    found = work()
    return clock() - began, found


def _micro(seconds: Any) -> float:
    return round(float(seconds) * 1e6, 1)


def _share(counts: Sequence[Any], done: str, skipped: str) -> float | None:
    some = sum(getattr(count, done) for count in counts)
    total = some + sum(getattr(count, skipped) for count in counts)
    return round(some / total, 4) if total else None


def _show(rows: Sequence[dict[str, Any]]) -> None:
    if not rows:
        return
    widths = {name: max(len(name), *(len(str(row[name])) for row in rows)) for name in rows[0]}
    print("  ".join(name.rjust(width) for name, width in widths.items()))
    for row in rows:
        print("  ".join(str(row[name]).rjust(width) for name, width in widths.items()), flush=True)
    print()


if __name__ == "__main__":
    main()
