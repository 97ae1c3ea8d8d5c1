"""Evaluates a test collection through the command line, and compares it with the same model in memory.

    python -m bench.collection BEIR_FOLDER [--index INDEX]

INDEX is built with `coil index --long truncate` if it does not exist, because texts in memory are also
truncated.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.stamp import ROOT, stamp, write_result


def main() -> None:
    """Index, search and evaluate with the commands; write bench/results/collection.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        index = arguments.index or Path(scratch) / "collection.coil"
        if not index.exists():
            _coil("index", arguments.folder, "--out", index, "--long", "truncate")
        run = Path(scratch) / "run.trec"
        _coil("search", index, "--queries", arguments.folder, "-k", 1000, "--run", run)
        measured = json.loads(_coil("evaluate", arguments.folder, run, "--json"))["measures"]
        facts = json.loads(_coil("inspect", index, "--json"))
    name = arguments.folder.name
    kept = ("documents", "mentions", "lists", "segments", "bytes_a_mention", "bytes_lists")
    memory = json.loads((ROOT / "experiments/results/default-model.json").read_text(encoding="utf-8"))
    in_memory = memory["collections"][name]["systems"]["COIL-full"]["means"]["nDCG@10"]
    result: dict[str, Any] = {
        **stamp(),
        "data": name,
        "measures": measured,
        "in_memory_nDCG@10": in_memory,
        "difference": round(measured["nDCG@10"] - in_memory, 4),
        "index": {key: facts[key] for key in kept},
        "precision": facts["precision"],
    }
    print(json.dumps(result["measures"]), in_memory)
    print(f"written to {write_result('collection', result)}")


def _coil(*arguments: object) -> str:
    command = [sys.executable, "-m", "coil.cli.main", *(str(argument) for argument in arguments)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
