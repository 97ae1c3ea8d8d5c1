"""The COIL model in PyTorch: any Hugging Face encoder with a token and a sentence projection on top."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from coil.errors import ModelError, WrongShape
from coil.tokens.model_json import COPY, check_file, read_json
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.model_files import BACKBONE_FILE, GET_WEIGHTS, HEADS_FILE, bundled_model

_MISSING = "copy the whole model folder, or train the model again"


class CoilModel(nn.Module):
    """LM(text) → v_i = W_tok LM(text, i) + b_tok for each token, v_cls = W_cls LM(text, CLS) + b_cls.

    A non-negative model floors v_i at 0: with n_t = 1 it is a term weight, as in DeepCT.

    α, β and γ of the scoring profile are learned where its weight is BM25's: each is its value in the
    configuration times e^x, so it stays positive, and one that is 0 stays 0.
    """

    def __init__(self, config: ModelConfig, backbone: nn.Module) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        width = int(backbone.config.hidden_size)  # type: ignore[union-attr, arg-type]
        self.tok_proj = nn.Linear(width, config.n_t) if config.n_t else None
        if self.tok_proj is not None and config.non_negative:
            nn.init.ones_(self.tok_proj.bias)  # a weight of 1 to start from: below 0 there is no gradient
        self.cls_proj = nn.Linear(width, config.n_c) if config.n_c else None
        self.cls_norm = nn.LayerNorm(config.n_c) if config.n_c and config.sentence_norm == "layer" else None
        self.log_factors = nn.Parameter(torch.zeros(3)) if config.profile.weight == "bm25" else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """[batch, length] ids → token vectors [batch, length, n_t] and sentence vectors [batch, n_c]."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.vectors(hidden, attention_mask)

    def vectors(self, hidden: Tensor, attention_mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The language model's states [batch, length, width] → the same."""
        tokens = self.token_vectors(hidden)
        if self.cls_proj is None:
            return tokens, None
        return tokens, self.sentence(self.pool(hidden, attention_mask))

    def token_vectors(self, hidden: Tensor) -> Tensor | None:
        """[batch, length, width] → [batch, length, n_t]."""
        if self.tok_proj is None:
            return None
        tokens: Tensor = self.tok_proj(hidden)
        return tokens.relu() if self.config.non_negative else tokens

    def sentence(self, pooled: Tensor) -> Tensor:
        """[batch, width] → sentence vectors [batch, n_c]."""
        assert self.cls_proj is not None
        sentence: Tensor = self.cls_proj(pooled)
        return self.cls_norm(sentence) if self.cls_norm is not None else sentence

    def pool(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """[batch, length, width] → [batch, width], before the sentence projection."""
        if self.config.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = attention_mask.to(hidden.dtype)
            pooled = self.sum_tokens(hidden, mask) / mask.sum(1, keepdim=True)
        return nn.functional.normalize(pooled, dim=-1) if self.config.sentence_norm == "unit" else pooled

    @staticmethod
    def sum_tokens(hidden: Tensor, mask: Tensor) -> Tensor:
        """The sum of the real tokens, [batch, length, width] → [batch, width]."""
        return (hidden * mask.unsqueeze(-1)).sum(1)

    def factors(self) -> Tensor | None:
        """α, β and γ as they are now; None where they are constants."""
        if self.log_factors is None:
            return None
        profile = self.config.profile
        start = self.log_factors.new_tensor([profile.alpha, profile.beta, profile.gamma])
        return start * self.log_factors.exp()

    def profile(self) -> ScoringProfile:
        """The scoring profile with α, β and γ as they are now."""
        if self.log_factors is None:
            return self.config.profile
        start, grown = self.config.profile, self.log_factors.detach().double().exp().tolist()
        alpha, beta, gamma = (
            float(f"{value * factor:.6g}")
            for value, factor in zip((start.alpha, start.beta, start.gamma), grown, strict=True)
        )
        return replace(start, alpha=alpha, beta=beta, gamma=gamma)

    def heads(self) -> dict[str, Tensor]:
        """The projections: the weights that are neither the language model's nor in the profile."""
        return {
            name: w
            for name, w in self.state_dict().items()
            if not name.startswith("backbone.") and name != "log_factors"
        }

    def backbone_weights(self) -> dict[str, Tensor]:
        """A copy of the language model's weights."""
        return {name: weight.detach().clone() for name, weight in self.backbone.named_parameters()}

    @torch.no_grad()
    def average(self, others: Mapping[str, Tensor], share: float) -> None:
        """Move the language model's weights towards others; a share of 1 takes those as they are."""
        for name, weight in self.backbone.named_parameters():
            weight.lerp_(others[name].to(weight.device), share)

    @classmethod
    def from_base(cls, config: ModelConfig, base: Path) -> CoilModel:
        """A new model on a pretrained language model; the projections are random and must be trained."""
        return cls(config, load_backbone(base))

    def save_pretrained(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write configuration and weights. The tokenizer is copied by the caller, who has it."""
        folder.mkdir(parents=True, exist_ok=True)
        replace(self.config, profile=self.profile()).save(folder)
        self.backbone.config.save_pretrained(folder)  # type: ignore[union-attr, operator]
        cast = {
            name: w.detach().to("cpu", dtype).contiguous()
            for name, w in self.backbone.state_dict().items()
            if w.is_floating_point()
        }
        save_file(cast, folder / BACKBONE_FILE, metadata={"format": "pt"})
        # The projections are small: they stay in fp32 whatever the backbone is stored in.
        heads = {name: w.detach().to("cpu", torch.float32).contiguous() for name, w in self.heads().items()}
        save_file(heads, folder / HEADS_FILE, metadata={"format": "pt"})

    @classmethod
    def from_pretrained(cls, folder: Path) -> CoilModel:
        """Read what `save_pretrained` wrote; every weight must be there and fit."""
        config = ModelConfig.load(folder)
        model = cls(config, load_backbone(folder))
        heads = _read(folder / HEADS_FILE)
        _check(model.heads(), heads, folder / HEADS_FILE)
        model.load_state_dict(heads, strict=False)
        return model.float()


def _backbone_config(folder: Path) -> Any:
    path = folder / "config.json"
    read_json(path)
    try:
        # Not asked about, and never run: code that a folder brings along.
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # each architecture checks its fields in its own way
        raise ModelError(f"{path} describes no known language model: {str(error)[:300]}", COPY) from error


def load_backbone(base: Path) -> nn.Module:
    """A pretrained language model in fp32 (training in fp16 without casting gives NaN)."""
    auto: Any = AutoModel  # from_config carries no types
    config = _backbone_config(base)
    _check_size(config, base)
    try:
        backbone: nn.Module = auto.from_config(config, trust_remote_code=False)
    except Exception as error:
        raise ModelError(
            f"{base / 'config.json'} describes no language model that can be built: {str(error)[:300]}", COPY
        ) from error
    load_weights(backbone, base / BACKBONE_FILE)
    return backbone.float()


def _check_size(config: Any, base: Path) -> None:
    """Refuse a configuration that asks for more than the file of the weights can hold, before it is built."""
    path = base / BACKBONE_FILE
    check_file(path, GET_WEIGHTS if base.resolve() == bundled_model() else _MISSING)
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
            f"{base / 'config.json'} asks for at least {needed:,} weights, but {path} has only "
            f"{path.stat().st_size:,} bytes",
            "the weights and the configuration belong to different models",
        )


def load_weights(backbone: nn.Module, path: Path) -> None:
    """Fill a language model from a safetensors file; only an unused pooler may be missing."""
    stored = _read(path)
    wanted = backbone.state_dict()
    prefix = str(getattr(backbone, "base_model_prefix", "")) + "."
    renamed = {name.removeprefix(prefix) if name not in wanted else name: w for name, w in stored.items()}
    needed = {
        name: w for name, w in wanted.items() if "pooler" not in name and not name.endswith("position_ids")
    }
    _check(needed, renamed, path)
    backbone.load_state_dict({name: w for name, w in renamed.items() if name in wanted}, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    check_file(path, _MISSING)
    try:
        tensors = load_file(path)
    except Exception as error:  # SafetensorError, and what PyTorch says about types that it does not have
        raise ModelError(f"{path} is damaged: {str(error)[:200]}", COPY) from error
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise ModelError(f"{path}: the weight {name!r} has values that are not finite numbers", COPY)
    return tensors


def _check(wanted: dict[str, Tensor], stored: dict[str, Tensor], path: Path) -> None:
    for name, weight in wanted.items():
        if name not in stored:
            raise WrongShape(
                f"{path} has no weight {name!r}", "the model was saved incompletely; train it again"
            )
        if stored[name].shape != weight.shape:
            raise WrongShape(
                f"{path}: {name!r} has the shape {list(stored[name].shape)}; coil.json and config.json "
                f"require {list(weight.shape)}",
                "the weights and the configuration belong to different models",
            )
