"""Runs a comparison on a machine with a GPU and many cores: every model in a process of its own.

    python -m experiments.parallel_comparison CONFIG --set data=DATA --set lab=LAB --set device=cuda
        --set weights=torch --work WORK --out OUT [--at-once 12]

CONFIG is one of `coil compare`, and its models must be in WORK (`experiments.laboratory install`). Each
process indexes and searches all collections with one model, in a work folder of its own. What they made is
then moved to WORK, and `coil compare` does the rest, one process per collection: it fuses and reranks,
evaluates, and writes OUT/COLLECTION. Since systems run side by side, latencies mean little.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from coil.comparison.config import Config, read_config
from coil.comparison.plan import Entry
from coil.comparison.running import Laboratory
from coil.comparison.work_folder import WorkFolder
from coil.errors import CoilError
from experiments.systems import say

SHARED = ("models",)  # of the work folder: read by all processes
MADE = ("collections", "indexes", "runs")  # by each process


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", type=Path)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="values")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=12, help="processes at the same time")
    parser.add_argument("--label", action="append", help="only run these systems, in this process")
    arguments = parser.parse_args(given)
    config = read_config(arguments.config, dict(value.split("=", 1) for value in arguments.values))
    if arguments.label:
        run_systems(config, arguments.label, arguments.work)
        return
    parts = [(label, arguments.work / "parts" / str(n)) for n, label in enumerate(apart(config))]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        failed = sum(pool.map(lambda part: _run_beside(part[0], part[1], arguments), parts))
    for _, work in parts:
        merge(work, arguments.work)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        sources = [dict(collection)["source"] for collection in config.collections]
        failed += sum(pool.map(lambda source: _compare(Path(source), arguments), sources))
    if failed:
        sys.exit(f"{failed} processes failed; run the same command again to continue")


def apart(config: Config) -> list[str]:
    """A label of every model: systems that search with the same model follow in the same process."""
    seen: dict[tuple[object, ...], str] = {}
    for entry in config.plan().entries:
        if entry.training is not None:
            seen.setdefault(model_of(entry), entry.label)
    return list(seen.values())


def model_of(entry: Entry) -> tuple[object, ...]:
    """What identifies the model of an entry."""
    return entry.training, entry.kind, tuple(sorted(entry.option_texts.items()))


def run_systems(config: Config, labels: Sequence[str], work: Path) -> None:
    """Index and search all collections with the systems of these labels and what they build on."""
    plan = config.plan()
    models = {model_of(plan.entry(label)) for label in labels}
    names = {entry.label for entry in plan.entries if model_of(entry) in models}
    wanted = [system for system in config.systems if system.get("name") in names]
    below = {label for label in names for label in plan.entry(label).inputs}
    wanted = [system for system in config.systems if system.get("name") in below - names] + wanted
    folder = WorkFolder(work)
    with folder.locked():
        laboratory = Laboratory(replace(config, systems=tuple(wanted), against=None).plan(), folder, _Lines())
        for collection in config.find_collections():
            laboratory.run(laboratory.read(collection))


def _run_beside(label: str, work: Path, arguments: argparse.Namespace) -> bool:
    """Run the systems of one model in another process; whether that failed."""
    share(arguments.work, work)
    command = [sys.executable, "-m", "experiments.parallel_comparison", str(arguments.config)]
    command += ["--work", str(work), "--out", str(arguments.out), "--label", label]
    return _call([*command, *_settings(arguments)], label, arguments)


def _compare(source: Path, arguments: argparse.Namespace) -> bool:
    """Compare all systems on one collection, in a work folder that has what is finished."""
    work = arguments.work / "judged" / source.name
    share(arguments.work, work, (*SHARED, *MADE))
    command = [sys.executable, "-m", "coil.cli.main", "compare", str(source)]
    command += ["--config", str(arguments.config), "--work", str(work)]
    command += ["--out", str(arguments.out / source.name)]
    return _call([*command, *_settings(arguments)], f"{source.name}: all systems", arguments)


def _settings(arguments: argparse.Namespace) -> Iterator[str]:
    for value in arguments.values:
        yield from ("--set", value)


def _call(command: Sequence[str], what: str, arguments: argparse.Namespace) -> bool:
    began = time.monotonic()
    log = arguments.out / "logs" / f"{''.join(c if c.isalnum() else '-' for c in what)}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        status = subprocess.run(command, stdout=file, stderr=file, check=False).returncode
    took = time.monotonic() - began
    last = log.read_text(errors="replace").strip().splitlines()[-3:] if status else []
    say(f"{what}: {'FAILED' if status else 'done'} after {took:.0f} s {' | '.join(last)}".rstrip())
    return status != 0


def share(work: Path, other: Path, names: Sequence[str] = SHARED) -> None:
    """Let another work folder read the folders of this one."""
    other.mkdir(parents=True, exist_ok=True)
    for name in names:
        (work / name).mkdir(exist_ok=True)
        if not (other / name).is_symlink():
            (other / name).symlink_to((work / name).resolve(), target_is_directory=True)


def merge(part: Path, work: Path) -> None:
    """Move the finished folders of a part to the work folder."""
    for name in MADE:
        for folder in sorted((part / name).glob("*")):
            place = work / name / folder.name
            if folder.suffix != ".unfinished" and not place.exists():
                place.parent.mkdir(exist_ok=True)
                os.replace(folder, place)
    if not list(part.glob("*/*.unfinished")):
        shutil.rmtree(part)


class _Lines:
    """Progress as lines."""

    def say(self, text: str) -> None:
        say(text)

    @contextmanager
    def stage(self, what: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
        began = time.monotonic()
        yield lambda count: None
        say(f"{what}: {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    try:
        main()
    except CoilError as error:
        sys.exit(str(error))
