"""What the systems that run in PyTorch share: their folder, device and threads."""

from __future__ import annotations

import os
from pathlib import Path

from coil.errors import MissingModelFile, OptionMismatch, require


def model_folder(model: str | None, name: str) -> Path:
    """The folder of a trained model."""
    if model is None:
        raise MissingModelFile(f"{name} has no model", "train one, or name the folder of one")
    folder = Path(model)
    if not folder.is_dir():
        raise MissingModelFile(f"model folder not found: {folder}", "check the path")
    return folder


def check_device(device: str) -> str:
    """A device that PyTorch can use here."""
    torch = require("torch", "train")
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise OptionMismatch(f"unknown device {device!r}", "use cpu, cuda or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionMismatch("no CUDA device is available", "use cpu, or install a CUDA build of torch")
    return device


def use_threads(threads: int) -> None:
    """Let PyTorch use so many threads in this process; 0 is one a core."""
    require("torch", "train").set_num_threads(threads or os.cpu_count() or 1)
