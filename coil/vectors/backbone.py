"""A language model in PyTorch, read as untrusted input: the base class of all trained models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from coil.errors import ModelError, WrongShape
from coil.tokens.model_json import COPY, check_file, read_json
from coil.vectors.model_files import BACKBONE_FILE, GET_WEIGHTS, HEADS_FILE, apply_umask, bundled_model

_MISSING = "copy the complete model folder, or retrain the model"


class BackboneModel(nn.Module):
    """A language model, and the weights that training adds on top of it (the heads)."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    @property
    def width(self) -> int:
        """The width of the language model's states."""
        return int(self.backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def is_new(self, name: str) -> bool:
        """Whether a weight is not part of the language model; it then uses the learning rate of the heads."""
        return not name.startswith("backbone.")

    def heads(self) -> dict[str, Tensor]:
        """The weights that are not part of the language model."""
        return {name: w for name, w in self.state_dict().items() if not name.startswith("backbone.")}

    def backbone_weights(self) -> dict[str, Tensor]:
        """A copy of the language model's weights."""
        return {name: weight.detach().clone() for name, weight in self.backbone.named_parameters()}

    @torch.no_grad()
    def average(self, others: Mapping[str, Tensor], share: float) -> None:
        """Move the language model's weights towards others; a share of 1 replaces them."""
        for name, weight in self.backbone.named_parameters():
            weight.lerp_(others[name].to(weight.device), share)

    def save_weights(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write the language model with its configuration, and the heads."""
        folder.mkdir(parents=True, exist_ok=True)
        self.backbone.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        cast = {
            name: w.detach().to("cpu", dtype).contiguous()
            for name, w in self.backbone.state_dict().items()
            if w.is_floating_point()
        }
        _save(cast, folder / BACKBONE_FILE)
        # The heads are small: they stay in fp32, whatever the precision of the language model.
        heads = {name: w.detach().to("cpu", torch.float32).contiguous() for name, w in self.heads().items()}
        _save(heads, folder / HEADS_FILE)

    def load_heads(self, folder: Path, config_file: str) -> None:
        """Read the heads that `save_weights` wrote; each must be present and have the right shape."""
        heads = read_weights(folder / HEADS_FILE)
        check_weights(self.heads(), heads, folder / HEADS_FILE, config_file)
        self.load_state_dict(heads, strict=False)


def _save(weights: Mapping[str, Tensor], path: Path) -> None:
    save_file(dict(weights), path, metadata={"format": "pt"})
    apply_umask(path)


def read_backbone_config(folder: Path) -> Any:
    """The configuration of the language model in a folder."""
    path = folder / "config.json"
    read_json(path)
    try:
        # Never run code from the folder, and never prompt about it.
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # each architecture checks its fields in its own way
        raise ModelError(
            f"{path} does not describe a known language model: {str(error)[:300]}", COPY
        ) from error


def load_backbone(base: Path) -> nn.Module:
    """A pretrained language model in fp32 (training in fp16 without casting gives NaN)."""
    path = base / BACKBONE_FILE
    check_file(path, GET_WEIGHTS if base.resolve() == bundled_model() else _MISSING)
    return fill_backbone(base, path, read_weights(path))


def fill_backbone(base: Path, path: Path, weights: Mapping[str, Tensor]) -> nn.Module:
    """The language model that config.json describes, with these weights."""
    auto: Any = AutoModel  # from_config is untyped
    config = read_backbone_config(base)
    _check_size(config, base, path)
    try:
        backbone: nn.Module = auto.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{base / 'config.json'} does not describe a usable language model: {str(error)[:300]}", COPY
        ) from error
    _load_weights(backbone, weights, path)
    return backbone.float()


def _check_size(config: Any, base: Path, path: Path) -> None:
    """Refuse a configuration with more weights than the file can contain, before the model is built."""
    layers, width = (getattr(config, name, 0) for name in ("num_hidden_layers", "hidden_size"))
    rows = (
        getattr(config, name, 0) for name in ("vocab_size", "max_position_embeddings", "intermediate_size")
    )
    try:
        needed = width * (sum(rows) + layers * width)
    except TypeError as error:
        raise WrongShape(f"{base / 'config.json'}: a size is not a number", COPY) from error
    if needed > path.stat().st_size:
        raise WrongShape(
            f"{base / 'config.json'} requires at least {needed:,} weights, but {path} has only "
            f"{path.stat().st_size:,} bytes",
            "the weights and the configuration belong to different models",
        )


def _load_weights(backbone: nn.Module, stored: Mapping[str, Tensor], path: Path) -> None:
    """Load weights into a language model; only an unused pooler may be missing."""
    wanted = backbone.state_dict()
    prefix = str(getattr(backbone, "base_model_prefix", "")) + "."
    renamed = {name.removeprefix(prefix) if name not in wanted else name: w for name, w in stored.items()}
    needed = {
        name: w for name, w in wanted.items() if "pooler" not in name and not name.endswith("position_ids")
    }
    check_weights(needed, renamed, path)
    backbone.load_state_dict({name: w for name, w in renamed.items() if name in wanted}, strict=False)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a safetensors file."""
    check_file(path, _MISSING)
    try:
        tensors = load_file(path)
    except Exception as error:  # SafetensorError, or PyTorch's errors about unsupported types
        raise ModelError(f"{path} is damaged: {str(error)[:200]}", COPY) from error
    check_finite(tensors, path)
    return tensors


def check_finite(weights: Mapping[str, Tensor], path: Path) -> None:
    """Refuse NaN and infinite weights: they would make every vector useless."""
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{path}: the weight {name!r} has NaN or infinite values", COPY)


def check_weights(
    wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor], path: Path, config_file: str = "coil.json"
) -> None:
    """Check that every required weight is stored and has the right shape."""
    for name, weight in wanted.items():
        if name not in stored:
            raise WrongShape(f"{path} has no weight {name!r}", "the saved model is incomplete; retrain it")
        if stored[name].shape != weight.shape:
            raise WrongShape(
                f"{path}: {name!r} has the shape {list(stored[name].shape)}; {config_file} and config.json "
                f"require {list(weight.shape)}",
                "the weights and the configuration belong to different models",
            )
