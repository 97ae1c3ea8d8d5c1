"""What the systems that run in PyTorch share: model folder, device, threads and batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from coil.errors import MissingModelFile, OptionMismatch, require

if TYPE_CHECKING:
    import torch

BATCH_TOKENS = {"cpu": 4096, "cuda": 131_072}  # tokens that the language model reads at a time


def model_folder(model: str | None, name: str) -> Path:
    """The folder of a trained model."""
    if model is None:
        raise MissingModelFile(f"{name} has no model", "train one, or pass a model folder")
    folder = Path(model)
    if not folder.is_dir():
        raise MissingModelFile(f"model folder not found: {folder}", "check the path")
    return folder


def check_device(device: str) -> str:
    """Check that PyTorch can use a device."""
    torch = require("torch", "train")
    try:
        kind = torch.device(device).type
    except RuntimeError as error:
        raise OptionMismatch(f"unknown device {device!r}", "use cpu, cuda or cuda:0") from error
    if kind == "cuda" and not torch.cuda.is_available():
        raise OptionMismatch("no CUDA device is available", "use cpu, or install a CUDA build of torch")
    return device


def use_threads(threads: int) -> None:
    """Set the number of PyTorch threads in this process; 0 keeps PyTorch's default, one per core."""
    if threads:
        require("torch", "train").set_num_threads(threads)


def batch_tokens(device: torch.device) -> int:
    """How many tokens the language model reads at a time."""
    return BATCH_TOKENS.get(device.type, BATCH_TOKENS["cpu"])


def pad_ids(texts: Sequence[NDArray[np.int32]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The input of the language model: ids [texts, longest] and the attention mask."""
    import torch

    ids = np.zeros((len(texts), max(map(len, texts))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = text
        mask[row, : len(text)] = 1
    return torch.from_numpy(ids).to(device), torch.from_numpy(mask).to(device)
