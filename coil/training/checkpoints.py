"""Checkpoints: weights, optimizer and step, so that a killed run continues with the same result."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from coil.errors import InputError, OptionMismatch
from coil.training.options import TrainingOptions
from coil.vectors.model_files import apply_umask

KEPT = 2


def save_checkpoint(
    folder: Path,
    step: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: TrainingOptions,
    sources: str,
) -> Path:
    """Write the state after `step` steps atomically; all but the last two checkpoints are removed."""
    final = folder / f"step-{step:07d}"
    partial = folder / f".partial-{step}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    # Copies: some models share a weight between two layers, which safetensors does not store.
    weights = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in model.state_dict().items()}
    save_file(weights, partial / "weights.safetensors")
    apply_umask(partial / "weights.safetensors")
    moments: dict[str, torch.Tensor] = {}
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            moments[f"{number}.{name}"] = torch.as_tensor(value).detach().cpu().contiguous()
    save_file(moments, partial / "optimizer.safetensors")
    apply_umask(partial / "optimizer.safetensors")
    state_json = {"step": step, "options": options.to_json(), "sources": sources}
    (partial / "state.json").write_text(json.dumps(state_json, indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    for old in sorted(folder.glob("step-*"))[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def latest_checkpoint(folder: Path) -> Path | None:
    """The latest checkpoint, or None."""
    found = sorted(folder.glob("step-*"))
    return found[-1] if found else None


def load_checkpoint(
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    options: TrainingOptions,
    sources: str,
) -> int:
    """Restore weights and optimizer; returns the step to continue from."""
    try:
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        weights = load_file(path / "weights.safetensors")
        moments = load_file(path / "optimizer.safetensors")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is damaged: {error}", "delete this folder to resume from the previous checkpoint"
        ) from error
    # An option that the checkpoint does not have yet was added later; it was off, which is its default.
    saved, now = {**TrainingOptions().to_json(), **state["options"]}, options.to_json()
    changed = sorted(name for name in now if saved.get(name) != now[name])
    if changed:
        shown = ", ".join(f"{name} was {saved.get(name)}, now {now[name]}" for name in changed)
        raise OptionMismatch(
            f"{path} was saved with different options: {shown}", "resume with the original options"
        )
    if state["sources"] != sources:
        raise OptionMismatch(
            f"{path} was saved with different pairs, negatives, teacher scores or a different base model",
            "resume with the original files",
        )
    model.load_state_dict(weights)
    per_parameter: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in moments.items():
        number, name = key.split(".", 1)
        per_parameter.setdefault(int(number), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": per_parameter, "param_groups": groups})
    return int(state["step"])
