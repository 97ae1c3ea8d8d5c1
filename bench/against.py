"""Compares the speed of this tree with that of another commit, in turn, in one run.

    python -m bench.against OTHER_TREE CORPUS QUERIES [--models OTHER_MODEL MODEL]

OTHER_TREE is a checkout of another commit with its own .venv. Each tree builds an index of CORPUS with its
own command line, and with its bundled model unless --models names one for each: the same model in both
formats, if the format or the bundled model has changed. Queries are encoded beforehand, so that only
searching and fetching are timed.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from bench.stamp import ROOT, stamp, write_result

ROUNDS = 15
WORKER = """
import json, statistics, sys, time
from importlib import import_module
try:
    opening = import_module("coil.indexes.opening")
except ModuleNotFoundError:
    opening = import_module("coil.index")
path, queries = sys.argv[1], [json.loads(line)["text"] for line in open(sys.argv[2], encoding="utf-8")]
encoder = opening.open_index(path).encoder
encoded = dict(zip(queries, encoder.encode_queries(queries)))
class Kept:
    def __getattr__(self, name): return getattr(encoder, name)
    def encode_queries(self, texts): return iter([encoded[text] for text in texts])
index = opening.open_index(path, encoder=Kept())
def timed(work):
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000
print("ready", flush=True)
for line in sys.stdin:
    what, k = line.split()
    if what == "search":
        times = [timed(lambda: index.search(query, int(k))) for query in queries]
    elif what == "open":
        times = [timed(lambda: opening.open_index(path, encoder=Kept()).search(queries[0])) for _ in range(5)]
    else:
        times = [timed(lambda: index.update([{"id": "bench", "text": "a few words"}])) for _ in range(int(k))]
    print(statistics.median(times), flush=True)
"""


def main() -> None:
    """Compare and write bench/results/against.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("other", type=Path)
    parser.add_argument("corpus")
    parser.add_argument("queries", type=Path)
    parser.add_argument("--models", nargs=2, metavar=("OTHER_MODEL", "MODEL"))
    arguments = parser.parse_args()
    trees = {"other": arguments.other.resolve(), "this": ROOT}
    head = ["git", "-C", str(arguments.other), "rev-parse", "HEAD"]
    other = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
    result: dict[str, Any] = {**stamp(), "other_commit": other, "corpus": Path(arguments.corpus).name}
    result["model"] = "the same in both formats" if arguments.models else "the bundled model of each"
    with tempfile.TemporaryDirectory() as scratch:
        workers = {name: _start(tree, Path(scratch), name, arguments) for name, tree in trees.items()}
        for what, k in (("search", 10), ("search", 100), ("search", 1000), ("open", 1), ("update", 3)):
            times: dict[str, list[float]] = {name: [] for name in trees}
            for number in range(ROUNDS):
                for name in list(trees) if number % 2 else list(trees)[::-1]:
                    times[name].append(_ask(workers[name], f"{what} {k}"))
            medians = {name: statistics.median(found[2:]) for name, found in times.items()}
            ratio = medians["this"] / medians["other"]
            label = f"{what}, k = {k}" if what == "search" else what
            result[label] = {
                **{f"{name}_ms": round(ms, 4) for name, ms in medians.items()},
                "ratio": round(ratio, 3),
            }
            print(
                f"{label}: {medians['other']:.3f} → {medians['this']:.3f} ms, ratio {ratio:.2f}", flush=True
            )
        for worker in workers.values():
            worker.communicate("", timeout=60)
    print(f"written to {write_result('against', result)}")


def _start(tree: Path, scratch: Path, name: str, arguments: Any) -> subprocess.Popen[str]:
    index = scratch / f"{name}.coil"
    command = [str(tree / ".venv" / "bin" / "coil"), "index", arguments.corpus, "--out", str(index)]
    if arguments.models:
        command += ["--model", arguments.models[name == "this"]]
    subprocess.run(command, cwd=tree, check=True)
    worker = subprocess.Popen(
        [str(tree / ".venv" / "bin" / "python"), "-c", WORKER, str(index), str(arguments.queries)],
        cwd=tree, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdout.readline() == "ready\n"
    return worker


def _ask(worker: subprocess.Popen[str], what: str) -> float:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(what + "\n")
    worker.stdin.flush()
    return float(worker.stdout.readline())


if __name__ == "__main__":
    main()
