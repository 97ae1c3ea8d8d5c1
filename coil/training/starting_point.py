"""The model before the first step: a base language model with initial projections."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import torch
from torch import nn

from coil.errors import MissingModelFile, OptionMismatch
from coil.tokens.tokenizer import Tokenizer
from coil.training.options import TrainingOptions
from coil.vectors.backbone import BackboneModel, load_backbone
from coil.vectors.config import CONFIG_FILE, ModelConfig, Shape
from coil.vectors.cross_encoder import SHAPE_FILE as CROSS_ENCODER_FILE
from coil.vectors.cross_encoder import CrossEncoder, CrossEncoderShape
from coil.vectors.late_interaction import SHAPE_FILE as COLBERT_FILE
from coil.vectors.late_interaction import LateInteractionModel, LateInteractionShape
from coil.vectors.model_files import TOKENIZER_FILE, check_backbone, longest_input
from coil.vectors.query_writer import QueryWriter
from coil.vectors.torch_model import CoilModel


def load_tokenizer(base: Path) -> Tokenizer:
    """The base model's tokenizer; if there is no tokenizer.json, transformers converts the tokenizer."""
    path = base / TOKENIZER_FILE
    if path.is_file():
        return Tokenizer.from_file(path)
    from transformers import AutoTokenizer

    try:
        fast = AutoTokenizer.from_pretrained(base)
        return Tokenizer(fast.backend_tokenizer, str(base))
    except (OSError, ValueError, AttributeError) as error:
        raise MissingModelFile(
            f"{base} has no readable tokenizer: {error}",
            f"copy the model's tokenizer.json to {base}",
        ) from error


def is_second_round(base: Path) -> bool:
    """Whether the base is a model that this library has trained, including its projections."""
    return any((base / name).is_file() for name in (CONFIG_FILE, COLBERT_FILE, CROSS_ENCODER_FILE))


def starting_model(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> BackboneModel:
    """A new model on a language model, or an existing one of the same kind for a second round."""
    torch.manual_seed(options.seed)
    query_length, document_length = options.lengths
    for profile in (
        options.config.profile,
        replace(options.config.profile, query_length=query_length, document_length=document_length),
    ):
        check_backbone(base, tokenizer, profile)
    model = _MAKERS[options.kind](base, options, tokenizer)
    _freeze(model, options)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise OptionMismatch("all parameters are frozen", "omit --freeze or --freeze-sentence")
    return model


def _coil(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> BackboneModel:
    if not (base / CONFIG_FILE).is_file():
        return CoilModel.from_base(options.config, base)
    saved = ModelConfig.load(base)
    _check_same(saved, _with_factors_of(saved, options.config), base / CONFIG_FILE)
    return CoilModel.from_pretrained(base)


def _colbert(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> BackboneModel:
    shape = LateInteractionShape(options.n_t, options.query_length, options.document_length, options.fill)
    if not (base / COLBERT_FILE).is_file():
        return LateInteractionModel(shape, load_backbone(base))
    model = LateInteractionModel.from_pretrained(base)
    _check_same(model.shape, shape, base / COLBERT_FILE)
    return model


def _cross_encoder(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> BackboneModel:
    wanted = options.query_length + options.document_length - len(tokenizer.prefix)
    room = longest_input(base)
    separator = tokenizer.suffix[0] if tokenizer.suffix else -1
    length = wanted if room is None else min(wanted, room)
    shape = CrossEncoderShape(options.pooling, options.query_length, length, separator)
    if not (base / CROSS_ENCODER_FILE).is_file():
        return CrossEncoder(shape, load_backbone(base))
    model = CrossEncoder.from_pretrained(base)
    _check_same(model.shape, shape, base / CROSS_ENCODER_FILE)
    return model


def _query_writer(base: Path, options: TrainingOptions, tokenizer: Tokenizer) -> BackboneModel:
    return QueryWriter.from_base(base, tokenizer)


_MAKERS = {
    "coil": _coil,
    "colbert": _colbert,
    "cross-encoder": _cross_encoder,
    "seq2seq": _query_writer,
}


def _with_factors_of(saved: ModelConfig, wanted: ModelConfig) -> ModelConfig:
    """The configuration with the α, β and γ learned in the first round."""
    learned = saved.profile
    if not learned.weight == wanted.profile.weight == "bm25":
        return wanted
    profile = replace(wanted.profile, alpha=learned.alpha, beta=learned.beta, gamma=learned.gamma)
    return replace(wanted, profile=profile)


def _check_same(saved: Shape, wanted: Shape, path: Path) -> None:
    if saved == wanted:
        return
    pairs = ((f.name, getattr(saved, f.name), getattr(wanted, f.name)) for f in fields(saved))  # type: ignore[arg-type]
    different = [f"{name}={ours!r} instead of {theirs!r}" for name, theirs, ours in pairs if ours != theirs]
    raise OptionMismatch(
        f"{path} describes a different model; the options set {', '.join(different)}",
        "use the options that the model was trained with, or start from its base model",
    )


def _freeze(model: BackboneModel, options: TrainingOptions) -> None:
    if options.freeze != "nothing":
        for name, parameter in model.backbone.named_parameters():
            if options.freeze == "backbone" or "embeddings" in name:
                parameter.requires_grad_(False)
    for name, parameter in model.backbone.named_parameters():
        if "pooler" in name:  # never used, so never trained
            parameter.requires_grad_(False)
    if options.freeze_sentence and isinstance(model, CoilModel) and model.cls_proj is not None:
        model.cls_proj.requires_grad_(False)
    if options.dropout >= 0:
        for module in model.backbone.modules():
            if isinstance(module, nn.Dropout):
                module.p = options.dropout


def set_training(model: BackboneModel, options: TrainingOptions) -> None:
    """Switch to training mode; without dropout, the language model stays in evaluation mode."""
    model.train()
    if options.dropout == 0 or options.freeze == "backbone":
        model.backbone.eval()
