"""Runs stress tests: kills, disk errors, power failures, swapped folders, damaged files, traffic.

    python -m bench.soak            # what `make soak` runs; about forty minutes
    python -m bench.soak --share .1 # a tenth of it

Each part is a test of the suite with larger numbers. Counts, and failures if there are any, are written to
bench/results/soak.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.stamp import RESULTS, ROOT, stamp, write_result

PARTS: list[tuple[str, list[str], dict[str, int]]] = [
    (
        "SIGKILL at any moment",
        ["tests/test_crash.py", "tests/test_service_crash.py"],
        {"COIL_CRASH_ROUNDS": 100},
    ),
    ("disk errors and power failures", ["tests/test_faults.py"], {"COIL_FAULT_POINTS": 200}),
    ("swapped folders", ["tests/test_swaps.py"], {"COIL_SWAP_ROUNDS": 60}),
    ("damaged and hostile files", ["tests/test_mutations.py"], {"COIL_MUTATIONS": 1_200}),
    ("attacks on the service", ["tests/test_service_attack.py"], {"COIL_CRASH_ROUNDS": 100}),
    (
        "the end of a process whose threads write and search",
        ["tests/test_state_found.py::test_a_process_ends_while_daemon_threads_write_and_search"],
        {"COIL_CRASH_ROUNDS": 300},
    ),
    ("mixed traffic", ["tests/test_traffic.py"], {"COIL_TRAFFIC_SECONDS": 600}),
    (
        "kills on a Ray cluster",
        ["tests/test_cluster_building.py", "tests/test_cluster_serving.py"],
        {"COIL_CLUSTER_KILLS": 12},
    ),
]

SANITIZERS = ["sanitize", "sanitize-threads"]


def run_part(tests: list[str], sizes: dict[str, int], share: float) -> tuple[dict[str, Any], bool]:
    """Run some tests with larger numbers; returns their counts, and whether all passed."""
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.jsonl"
        report.touch()
        sized = {name: str(max(1, round(size * share))) for name, size in sizes.items()}
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup"]
        command += ["--hypothesis-profile=random", *tests]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **sized, "COIL_SOAK_REPORT": str(report)}, check=False
        )
        counts: dict[str, dict[str, int]] = {}
        for line in report.read_text(encoding="utf-8").splitlines():
            told = json.loads(line)
            of_kind = counts.setdefault(told.pop("what"), {})
            for name, count in told.items():
                of_kind[name] = of_kind.get(name, 0) + count
    passed = done.returncode == 0
    return {"passed": passed, "seconds": round(time.monotonic() - began), "did": counts}, passed


def run_sanitizer(target: str) -> tuple[dict[str, Any], bool]:
    """The kernel tests with instrumented native code."""
    began = time.monotonic()
    passed = subprocess.run(["make", target], cwd=ROOT, check=False).returncode == 0
    return {"passed": passed, "seconds": round(time.monotonic() - began), "did": {}}, passed


def main() -> None:
    """Run every part, or the named ones, even if an earlier one failed."""
    names = [name for name, _, _ in PARTS] + SANITIZERS
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--share", type=float, default=1.0, help="Share of the usual numbers; results are then not saved."
    )
    parser.add_argument(
        "--part",
        action="append",
        choices=names,
        help="Run only this part; the results of the others are kept.",
    )
    arguments = parser.parse_args()
    path = RESULTS / "soak.json"
    result: dict[str, Any] = {"parts": {}}
    if arguments.part and path.exists():
        result = json.loads(path.read_text(encoding="utf-8"))
    stamped = stamp()
    sizes = {name: (tests, numbers) for name, tests, numbers in PARTS}
    all_passed = True
    for name in arguments.part or names:
        print(f"== {name}", flush=True)
        part, passed = (
            run_sanitizer(name) if name in SANITIZERS else run_part(*sizes[name], share=arguments.share)
        )
        result["parts"][name] = {**part, "commit": stamped["commit"]["id"]}
        all_passed &= passed
    result = {**stamped, "parts": {name: result["parts"][name] for name in names if name in result["parts"]}}
    if arguments.share == 1.0:
        print(f"written to {write_result('soak', result)}")
    for name, part in result["parts"].items():
        print(f"{'passed' if part['passed'] else 'FAILED'}  {name}: {json.dumps(part['did'])}")
    sys.exit(0 if all_passed else 1)


if __name__ == "__main__":
    main()
