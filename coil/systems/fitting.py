"""Training of a system's model in the shared loop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from coil.errors import require
from coil.systems.system import Say, TrainingData
from coil.training.options import Kind, TrainingOptions


def fit_model(recipe: TrainingOptions, data: TrainingData, folder: Path, say: Say) -> None:
    """Train a model into a folder, continuing an interrupted call if there was one."""
    for module in ("torch", "transformers", "accelerate"):
        require(module, "train")
    from coil.training.train import TrainingFiles, train

    files = TrainingFiles(
        data.pairs, data.base, folder, data.negatives, corpus=data.corpus, prepared=data.prepared
    )
    report = train(files, recipe, data.device, resume=any(folder.iterdir()), say=say)
    if report.interrupted:
        raise KeyboardInterrupt


def recipe_of_kind(shared: TrainingOptions, kind: Kind, **shape: Any) -> TrainingOptions:
    """The shared recipe for another kind of model, without the options that only COIL supports."""
    own = {
        "keep": 0.0,
        "keep_tokens": 0.0,
        "token_only": 0.0,
        "freeze_sentence": False,
        "non_negative": False,
        "token_norm": "none",
    }
    starts = {"sentence_init": "random"} if kind == "colbert" else dict.fromkeys(_STARTS, "random")
    teacher = "none" if shared.teacher == "hybrid" else shared.teacher
    return replace(shared, kind=kind, **{**own, **starts, "teacher": teacher, **shape})


_STARTS = ("sentence_init", "token_init")
