"""`train`: pairs in, a model folder out."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from coil.errors import OptionMismatch, OutputError, TrainingDiverged
from coil.progress import ProgressBar
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import BatchPlan
from coil.training.bi_encoding import BiEncoding
from coil.training.checkpoints import latest_checkpoint, load_checkpoint, save_checkpoint
from coil.training.cross_encoding import CrossEncoding
from coil.training.learner import Learner, Setting
from coil.training.metrics_file import Metrics, open_metrics
from coil.training.options import TrainingOptions
from coil.training.outcome import Outcome
from coil.training.pair_data import PairData, load_pairs
from coil.training.prepared_pairs import prepare_pairs
from coil.training.processes import Processes
from coil.training.query_writing import QueryWriting
from coil.training.starting_point import load_tokenizer, set_training, starting_model
from coil.vectors.backbone import BackboneModel
from coil.vectors.cross_encoder import CrossEncoder
from coil.vectors.late_interaction import LateInteractionModel
from coil.vectors.model_files import BACKBONE_FILE, TOKENIZER_FILE, resolve_weights
from coil.vectors.query_writer import QueryWriter
from coil.vectors.torch_model import CoilModel

LOG_EVERY = 10
RECIPE_FILE, FACTS_FILE = "recipe.json", "training.json"


@dataclass(frozen=True)
class TrainingFiles:
    """The input files of a training run and its output folder."""

    pairs: Sequence[Path]
    base: str
    out: Path
    negatives: Sequence[Path] = ()
    teacher: Path | None = None
    corpus: str | None = None
    prepared: Path | None = None  # cache of tokenized pairs for other runs


@dataclass(frozen=True)
class TrainingReport:
    """The outcome of a training run."""

    out: Path
    steps: int
    interrupted: bool
    seconds: float
    outcome: Outcome | None = None
    pairs: int = 0  # trained on


def train(
    files: TrainingFiles,
    options: TrainingOptions,
    device: str | None = None,
    resume: bool = False,
    tensorboard: bool = False,
    say: Callable[[str], object] = lambda text: None,
) -> TrainingReport:
    """Train a model. `say` is called with progress messages; metrics go to OUT/metrics.jsonl."""
    if options.teacher == "file" and files.teacher is None:
        raise OptionMismatch("--teacher file requires a file of scores", "add --teacher-scores FILE")
    processes = Processes(device)
    if options.queries % processes.count:
        raise OptionMismatch(
            f"{options.queries} queries cannot be divided evenly among {processes.count} processes",
            f"set --queries to a multiple of {processes.count}",
        )
    base = resolve_weights(files.base)
    if processes.first:
        _prepare(files.out, resume)
    processes.wait()
    started = time.monotonic() - _spent(files.out)
    tell = say if processes.first else lambda text: None
    tell("loading the model and tokenizing the pairs")
    tokenizer = load_tokenizer(base)
    model = starting_model(base, options, tokenizer)
    data_folder = files.out / f"tokens-{processes.rank}"
    try:
        data = _load(files, base, tokenizer, options, processes, data_folder)
        tell(f"{len(data.training):,} training pairs, {len(data.held_out):,} held out for validation")
        model.to(processes.device)
        before = model.backbone_weights() if options.average else {}
        setting = Setting(options, processes, tokenizer, data, base, tell)
        learner = make_learner(setting, model)
        sources = input_digest(base, files, data)
        with open_metrics(files.out, processes.first, tensorboard) as metrics:
            run = _Run(files.out, setting, learner, metrics, sources, tell)
            report = run.go(resume, started)
            if options.average and not report.interrupted:
                tell(f"averaging the language model with its starting weights ({options.average:g} of them)")
                model.average(before, options.average)
                if report.outcome is not None:
                    end = run.validate(report.steps)
                    assert end is not None
                    report = replace(report, outcome=replace(report.outcome, end=end))
        processes.wait()
    finally:
        shutil.rmtree(data_folder, ignore_errors=True)
    if processes.first:
        _note(report, str(processes.device))
        if not report.interrupted:
            save_model(files.out, learner, setting)
    return report


def _spent(out: Path) -> float:
    """The seconds spent in earlier, interrupted sessions."""
    try:
        return float(json.loads((out / FACTS_FILE).read_text(encoding="utf-8"))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0.0


def _note(report: TrainingReport, device: str) -> None:
    """Write a file next to the model that records the cost of the run and whether it helped."""
    outcome = report.outcome
    facts = {
        "steps": report.steps,
        "interrupted": report.interrupted,
        "seconds": round(report.seconds, 2),
        "pairs": report.pairs,
        "device": device,
        "mrr_at_10_before": None if outcome is None else float(outcome.start.mean()),
        "mrr_at_10_after": None if outcome is None else float(outcome.end.mean()),
    }
    (report.out / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _load(
    files: TrainingFiles,
    base: Path,
    tokenizer: Tokenizer,
    options: TrainingOptions,
    processes: Processes,
    folder: Path,
) -> PairData:
    if files.prepared is None:
        keys = ListKeys(options.config.profile, tokenizer)
        return load_pairs(
            folder, files.pairs, tokenizer, keys, options.lengths, options.validation_queries, options.seed,
            files.negatives, files.teacher, files.corpus,
        )  # fmt: skip
    if files.corpus is not None:
        raise OptionMismatch("prepared pairs do not include documents of a corpus", "omit --prepared")
    if not processes.first:  # the first process prepares them; the others then find them
        processes.wait()
    given = files.prepared, files.pairs, files.negatives, base, tokenizer, options
    data = prepare_pairs(*given)
    if processes.first:
        processes.wait()
    return data


def make_learner(setting: Setting, model: BackboneModel) -> Learner:
    """The learner for a model; the initial model is the same in every process."""
    if isinstance(model, CoilModel | LateInteractionModel):
        return BiEncoding(setting, model)
    if isinstance(model, CrossEncoder):
        return CrossEncoding(setting, model)
    assert isinstance(model, QueryWriter)
    return QueryWriting(setting, model)


def input_digest(base: Path, files: TrainingFiles, data: PairData) -> str:
    """A digest of all inputs besides the options, to check that a resumed run has the same ones."""
    digest = hashlib.sha256(data.digest.encode())
    for path in (base / BACKBONE_FILE, *files.negatives, *([files.teacher] if files.teacher else [])):
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def save_model(out: Path, learner: Learner, setting: Setting) -> None:
    """Write the finished model and its recipe."""
    learner.save(out)
    if (setting.base / TOKENIZER_FILE).is_file():
        shutil.copyfile(setting.base / TOKENIZER_FILE, out / TOKENIZER_FILE)
    else:
        setting.tokenizer.save(out / TOKENIZER_FILE)
    recipe = json.dumps(setting.options.to_json(), indent=2) + "\n"
    (out / RECIPE_FILE).write_text(recipe, encoding="utf-8")


def _prepare(out: Path, resume: bool) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OutputError(
            f"{out} cannot be written: {error.strerror}", "choose another folder with --out"
        ) from error
    if not resume and any(out.iterdir()):
        raise OutputError(
            f"{out} is not empty",
            "continue with --resume, or choose a new folder with --out; nothing was changed",
        )


class _Run:
    """The training loop and its state."""

    def __init__(
        self,
        out: Path,
        setting: Setting,
        learner: Learner,
        metrics: Metrics,
        sources: str,
        tell: Callable[[str], object],
    ) -> None:
        self._out, self._options, self._processes = out, setting.options, setting.processes
        self._sources, self._tell = sources, tell
        self._learner, self._metrics, self._data = learner, metrics, setting.data
        self._model = learner.model
        self._plan = BatchPlan(setting.data, setting.options, setting.tokenizer)
        self._trained = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.AdamW(_groups(self._model, setting.options), lr=setting.options.lr)

    def go(self, resume: bool, started: float) -> TrainingReport:
        """Train until the end or an interruption, which leaves a checkpoint."""
        steps, checkpoints = self._plan.steps, self._out / "checkpoints"
        start = self.validate(0) if steps else None  # before a checkpoint replaces the initial weights
        first = self._resume(checkpoints) if resume else 0
        self._metrics.forget_after(first)
        set_training(self._model, self._options)
        end: NDArray[np.float64] | None = None
        with _interruptible() as interrupted, self._bar(first, steps) as bar:
            for step in range(first, steps):
                parts = self._one(step, steps)
                if (step + 1) % LOG_EVERY == 0 or step + 1 == steps:
                    share = _rate(step, steps, self._options.warmup)
                    self._metrics.write(
                        {"step": step + 1, "rate_share": share, **parts, **self._learner.watched()}
                    )
                    bar.annotate(f"loss {parts['loss']:.3f}")
                bar.update()
                done = step + 1
                if _due(done, self._options.validate_every) or done == steps:
                    end = self.validate(done)
                stopping = self._processes.any(interrupted())
                every = self._options.checkpoint_every
                if stopping or _due(done, every) or (every and done == steps):
                    self._checkpoint(checkpoints, done)
                if stopping and done < steps:
                    return TrainingReport(self._out, done, True, time.monotonic() - started)
        if end is None and steps:  # resumed after its last step
            end = self.validate(steps)
        outcome = Outcome(start, end) if start is not None and end is not None else None
        return TrainingReport(
            self._out, steps, False, time.monotonic() - started, outcome, len(self._data.training)
        )

    def _one(self, step: int, steps: int) -> dict[str, float]:
        # Seeded by the step, so that dropout in a resumed run is the same as in an uninterrupted one.
        torch.manual_seed(self._options.seed * 1_000_003 + step * 257 + self._processes.rank)
        batch = self._plan.batch(step)
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * _rate(step, steps, self._options.warmup)
        parts = self._learner.learn(batch)
        if not math.isfinite(parts["loss"]):
            raise TrainingDiverged(
                f"the loss of step {step + 1} is {parts['loss']}",
                "lower --lr and --head-lr and start over, or continue from the last checkpoint with --resume",
            )
        if self._options.clip:
            norm = torch.nn.utils.clip_grad_norm_(self._trained, self._options.clip)
            parts["gradient"] = float(norm)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return parts

    def validate(self, step: int) -> NDArray[np.float64] | None:
        """The reciprocal ranks of the held-out queries with the current model; None if there are none."""
        if not len(self._data.held_out):
            return None
        self._tell("validating on the held-out queries")
        ranks = self._learner.reciprocal_ranks()
        set_training(self._model, self._options)
        self._metrics.write({"step": step, "validation_mrr_at_10": float(ranks.mean())})
        return ranks

    def _checkpoint(self, folder: Path, step: int) -> None:
        if self._processes.first:
            save_checkpoint(folder, step, self._model, self._optimizer, self._options, self._sources)
        self._processes.wait()

    def _resume(self, folder: Path) -> int:
        path = latest_checkpoint(folder)
        if path is None:
            self._tell(f"no checkpoint in {folder}; starting from the beginning")
            return 0
        return load_checkpoint(path, self._model, self._optimizer, self._options, self._sources)

    def _bar(self, first: int, steps: int) -> ProgressBar:
        return ProgressBar("training", "steps", steps, before=first, hidden=not self._processes.first)


def _groups(model: BackboneModel, options: TrainingOptions) -> list[dict[str, Any]]:
    """Parameter groups by learning rate, each with and without weight decay."""
    of_heads = options.head_lr or options.lr
    groups: dict[tuple[float, bool], list[torch.nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            peak = of_heads if model.is_new(name) else options.lr
            if name == "log_factors":
                peak = options.factor_lr or of_heads
            groups.setdefault((peak, parameter.ndim > 1), []).append(parameter)
    return [
        {"params": parameters, "peak": peak, "weight_decay": options.weight_decay if decays else 0.0}
        for (peak, decays), parameters in sorted(groups.items(), key=lambda item: item[0])
    ]


def _rate(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then linear decay to 0, as a share of the peak."""
    rising = warmup * steps
    if step < rising:
        return (step + 1) / (rising + 1)
    return (steps - step) / max(1.0, steps - rising)


def _due(step: int, every: int) -> bool:
    return bool(every) and step % every == 0


@contextmanager
def _interruptible() -> Iterator[Any]:
    """The first Ctrl-C ends the run after the current step; a second one ends it immediately."""
    asked: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    try:
        before = signal.signal(signal.SIGINT, note)
    except ValueError:  # outside the main thread, the caller handles interruptions
        yield lambda: False
        return
    try:
        yield lambda: bool(asked)
    finally:
        signal.signal(signal.SIGINT, before)
