"""`coil train`: trains a model; every option of the recipe is a flag, generated from TrainingOptions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import Field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import click

from coil.errors import InputError, how_many, require
from coil.training.options import PRESETS, TrainingOptions


def _flag(field: Field[Any], kind: Any) -> Callable[[Any], Any]:
    """The command-line option for one field; its default comes from the preset."""
    name = "--" + field.name.replace("_", "-")
    shown = ", ".join(
        f"{preset}: {_show(getattr(options, field.name))}" for preset, options in PRESETS.items()
    )
    text = f"{field.metadata['help']} [{shown}]"
    if kind is bool:
        return click.option(f"{name}/--no-{name[2:]}", field.name, default=None, help=text)
    choices = get_args(kind)
    return click.option(
        name, field.name, default=None, type=click.Choice(choices) if choices else kind, help=text
    )


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _all_flags(function: Any) -> Any:
    kinds = get_type_hints(TrainingOptions)
    for field in reversed(fields(TrainingOptions)):
        function = _flag(field, kinds[field.name])(function)
    return function


@click.command("train")
@click.option(
    "--pairs", multiple=True, required=True, type=click.Path(path_type=Path),
    help='Pairs file, lines {"query": ..., "positive": ...}, optionally .gz, .xz or .zst; may be repeated.',
)  # fmt: skip
@click.option(
    "--base", required=True,
    help="Model to start from: 'default' (the bundled model), a Hugging Face folder, an installed package "
    "that contains one, or a trained COIL model for a second round.",
)  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for the trained model.")
@click.option(
    "--negatives",
    "negatives",
    multiple=True,
    type=click.Path(path_type=Path),
    help="File written by `coil mine`; may be repeated.",
)
@click.option("--corpus", help="Collection of the negatives, if they were made with `coil mine --corpus`.")
@click.option("--teacher-scores", type=click.Path(path_type=Path), help="Teacher scores for --teacher file.")
@click.option(
    "--prepared",
    type=click.Path(path_type=Path),
    help="Cache folder for tokenized pairs; later runs on the same pairs start immediately.",
)
@click.option(
    "--preset",
    type=click.Choice(sorted(PRESETS)),
    default="default",
    show_default=True,
    help="Recipe to start from; other options override it.",
)
@click.option(
    "--recipe",
    type=click.Path(path_type=Path),
    help="Recipe to start from: the recipe.json of an earlier training run.",
)
@click.option("--device", default=None, help="cpu or cuda (default: a GPU if there is one).")
@click.option("--resume", is_flag=True, help="Continue from the last checkpoint in --out.")
@click.option("--tensorboard", is_flag=True, help="Also write TensorBoard events to OUT/tensorboard.")
@_all_flags
def command(
    pairs: tuple[Path, ...],
    base: str,
    out: Path,
    negatives: tuple[Path, ...],
    corpus: str | None,
    teacher_scores: Path | None,
    prepared: Path | None,
    preset: str,
    recipe: Path | None,
    device: str | None,
    resume: bool,
    tensorboard: bool,
    **changes: Any,
) -> None:
    """Train a COIL model on query–passage pairs.

    Metrics go to OUT/metrics.jsonl, checkpoints to OUT/checkpoints. Ctrl-C saves a checkpoint; --resume
    continues from it. After training, `coil export OUT` creates the ONNX files for searching. For several
    GPUs, use `accelerate launch -m coil.cli.main train ...`; --queries is then the total over all GPUs.

    \b
      coil mine  --pairs faq.jsonl --out negatives.jsonl
      coil train --pairs faq.jsonl --negatives negatives.jsonl --base default --out model/
    """
    given = {name: value for name, value in changes.items() if value is not None}
    if "epochs" in given and given.setdefault("steps", 0):
        raise click.UsageError("--epochs and --steps are mutually exclusive.")
    if teacher_scores is not None and given.setdefault("teacher", "file") != "file":
        raise click.UsageError("--teacher-scores requires --teacher file.")
    options = replace(_recipe(recipe) if recipe is not None else PRESETS[preset], **given)
    for module in ("torch", "transformers", "accelerate"):
        require(module, "train")
    from coil.training.outcome import judge
    from coil.training.train import TrainingFiles, train

    files = TrainingFiles(pairs, base, out, negatives, teacher_scores, corpus, prepared)
    report = train(files, options, device, resume, tensorboard, say=lambda text: click.echo(text, err=True))
    if report.interrupted:
        click.echo(f"interrupted after {report.steps} steps; continue with --resume", err=True)
        raise click.Abort
    steps = how_many(report.steps, "step")
    click.echo(f"trained {steps} in {report.seconds:.0f} s; model in {report.out}", err=True)
    if report.steps:
        for line in judge(report.outcome, options, report.pairs, bool(negatives)):
            click.echo(line, err=True)


def _recipe(path: Path) -> TrainingOptions:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read as a recipe: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must contain one JSON object")
    return TrainingOptions.from_json(value, str(path))
