"""Keeps the figures of a comparison in experiments/results, with its config and the commit.

    coil compare --config experiments/cpu.toml --set data=DATA --set lab=lab --work work --out compared
    python -m experiments.record compared --config experiments/cpu.toml

Writes experiments/results/compare-CONFIG.json, which the tables in the docs are generated from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from bench.stamp import commit, write_result
from coil.comparison.writing import RESULTS as FIGURES

RESULTS = Path(__file__).resolve().parent / "results"


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("compared", type=Path, help="the folder that `coil compare --out` wrote")
    parser.add_argument("--config", type=Path, required=True, help="the config of the comparison")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result files")
    arguments = parser.parse_args(given)
    print(f"written to {record(arguments.compared, arguments.config, arguments.results)}")


def record(compared: Path, config: Path, results: Path = RESULTS) -> Path:
    """Write the result file."""
    figures = json.loads((compared / FIGURES).read_text(encoding="utf-8"))
    written = config.read_text(encoding="utf-8").splitlines()
    if "collections" not in figures:  # of a single collection
        figures = {"collections": {figures["collection"]["name"]: figures}}
    value = {"commit": commit(), "config": written, **figures}
    return write_result("", value, results / f"compare-{config.stem.replace('_', '-')}.json")


if __name__ == "__main__":
    main()
