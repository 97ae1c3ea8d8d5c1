"""Keeps the figures of a comparison in experiments/results, with its config and commit.

    coil compare --config experiments/cpu.toml --set data=DATA --set lab=lab --work work --out compared
    python -m experiments.record compared --config experiments/cpu.toml

Writes experiments/results/compare-CONFIG.json, which the tables in the docs are generated from. Collections
that were compared separately with the same config are kept, in the order of the config.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    # A comparison of a single collection has no level for collections.
    found = figures.get("collections") or {figures["collection"]["name"]: figures}
    title, written = figures.get("title"), config.read_text(encoding="utf-8").splitlines()
    path = results / f"compare-{config.stem.replace('_', '-')}.json"
    kept: dict[str, Any] = {}
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        kept = before["collections"] if before["config"] == written else {}
        title = title or before["title"]
    both = {**kept, **{name: {"commit": commit(), **of_one} for name, of_one in found.items()}}
    named = [Path(source).name for source in sources(written)]
    order = sorted(both, key=lambda name: named.index(name) if name in named else len(named))
    value = {"title": title, "config": written, "collections": {name: both[name] for name in order}}
    return write_result("", value, path)


def sources(config: Sequence[str]) -> list[str]:
    """The collections of a config, in order."""
    return [line.split('"')[1] for line in config if line.startswith("source = ")]


if __name__ == "__main__":
    main()
