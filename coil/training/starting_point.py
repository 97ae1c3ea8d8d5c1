"""The model before the first step: a base language model, fresh projections, list keys."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coil.errors import MissingModelFile, OptionMismatch
from coil.tokens.list_keys import ListKeys, build_list_keys
from coil.tokens.tokenizer import Tokenizer
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.vectors.config import CONFIG_FILE, ModelConfig
from coil.vectors.model_files import TOKENIZER_FILE, check_backbone, load_list_keys
from coil.vectors.torch_model import CoilModel

_SAMPLE = 8192  # texts that the principal directions are computed from


def load_tokenizer(base: Path) -> Tokenizer:
    """The base model's tokenizer; one without tokenizer.json is converted by transformers."""
    path = base / TOKENIZER_FILE
    if path.is_file():
        return Tokenizer.from_file(path)
    from transformers import AutoTokenizer

    try:
        fast = AutoTokenizer.from_pretrained(base)
        return Tokenizer(fast.backend_tokenizer, str(base))
    except (OSError, ValueError, AttributeError) as error:
        raise MissingModelFile(
            f"{base} has no tokenizer that can be read: {error}",
            f"put the model's tokenizer.json into {base}",
        ) from error


def starting_model(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> tuple[CoilModel, ListKeys]:
    """A new COIL model on a language model, or an existing COIL model for a second round."""
    torch.manual_seed(options.seed)
    query_length, document_length = options.lengths
    for profile in (
        options.config.profile,
        replace(options.config.profile, query_length=query_length, document_length=document_length),
    ):
        check_backbone(base, tokenizer, profile)
    if (base / CONFIG_FILE).is_file():
        saved = ModelConfig.load(base)
        if saved != options.config:
            pairs = ((f.name, getattr(saved, f.name), getattr(options.config, f.name)) for f in fields(saved))
            different = [
                f"{name}={ours!r} instead of {theirs!r}" for name, theirs, ours in pairs if ours != theirs
            ]
            raise OptionMismatch(
                f"{base / CONFIG_FILE} describes another model; the options say {', '.join(different)}",
                "give the options that the model was trained with, or start from its base model",
            )
        model, keys = CoilModel.from_pretrained(base), load_list_keys(base)
    else:
        model = CoilModel.from_base(options.config, base)
        keys = build_list_keys(
            options.config.profile, tokenizer.vocabulary, tokenizer.special_ids, tokenizer.unknown_id
        )
    _freeze(model, options)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionMismatch("everything is frozen", "leave --freeze or --freeze-sentence out")
    return model, keys


def _freeze(model: CoilModel, options: TrainingOptions) -> None:
    if options.freeze != "nothing":
        for name, parameter in model.backbone.named_parameters():
            if options.freeze == "backbone" or "embeddings" in name:
                parameter.requires_grad_(False)
    for name, parameter in model.backbone.named_parameters():
        if "pooler" in name:  # never used, so never trained
            parameter.requires_grad_(False)
    if options.freeze_sentence and model.cls_proj is not None:
        model.cls_proj.requires_grad_(False)
    if options.dropout >= 0:
        for module in model.backbone.modules():
            if isinstance(module, nn.Dropout):
                module.p = options.dropout


def set_training(model: CoilModel, options: TrainingOptions) -> None:
    """Switch to training; without dropout the language model stays in its evaluation mode."""
    model.train()
    if options.dropout == 0 or options.freeze == "backbone":
        model.backbone.eval()


@torch.no_grad()
def start_at_principal_directions(
    model: CoilModel, data: PairData, options: TrainingOptions, tokenizer: Tokenizer, device: torch.device
) -> None:
    """Set the sentence projection so that products are those of the language model's own pooled vectors.

    The n_c leading principal directions give the best approximation of all products in n_c dimensions.
    """
    assert model.cls_proj is not None
    width = model.cls_proj.in_features
    if options.n_c > width:
        raise OptionMismatch(
            f"the language model is {width} wide, so it has no {options.n_c} principal directions",
            f"set --n-c to at most {width}",
        )
    rng = np.random.default_rng([options.seed, 5])
    moment = torch.zeros((width, width), dtype=torch.float64)
    model.eval()
    for store in (data.passages, data.queries):
        chosen = np.sort(rng.choice(len(store), size=min(_SAMPLE, len(store)), replace=False))
        for block in np.array_split(chosen, max(1, len(chosen) // 64)):
            pooled = _pooled(model, [store[int(i)] for i in block], tokenizer, device).double().cpu()
            moment += pooled.T @ pooled / len(chosen)
    directions = torch.linalg.eigh(moment).eigenvectors.flip(1)[:, : options.n_c].T  # [n_c, width]
    # A fixed sign: the largest entry of each direction is positive, on every machine.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    weight = directions * largest.sign() * options.sentence_scale**0.5
    model.cls_proj.weight.copy_(weight.to(model.cls_proj.weight))
    model.cls_proj.bias.zero_()


def _pooled(
    model: CoilModel, texts: list[NDArray[np.int32]], tokenizer: Tokenizer, device: torch.device
) -> Tensor:
    wrapped = [[*tokenizer.prefix, *text.tolist(), *tokenizer.suffix] for text in texts]
    width = max(len(text) for text in wrapped)
    ids = torch.tensor([text + [0] * (width - len(text)) for text in wrapped], device=device)
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t in wrapped], device=device)
    return model.pool(model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state, mask)
