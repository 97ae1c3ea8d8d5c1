"""Convert checkpoints of the authors' code (luyug/COIL) to COIL model folders.

A checkpoint is a Hugging Face model folder with an additional `model.pt`, which contains the projections:
`tok_proj.*`, `cls_proj.*` and, if the sentence vector is normalised, `ln_cls.*`. The training options are
pickled Python objects (`args.pt`), which are never loaded, so the caller has to pass those that matter.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from coil.errors import MissingModelFile, ModelError, OptionMismatch, OutputError, WrongShape, require
from coil.tokens.model_json import check_file, read_json
from coil.tokens.profile import PAPER
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.model_files import BACKBONE_FILE, TOKENIZER_FILE, check_backbone, resolve_folder

for _package in ("torch", "transformers"):
    require(_package, "train")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from coil.training.starting_point import load_tokenizer  # noqa: E402
from coil.vectors.backbone import check_finite, check_weights, fill_backbone, load_backbone  # noqa: E402
from coil.vectors.torch_model import CoilModel  # noqa: E402

HEADS = "model.pt"
OLD_BACKBONE = "pytorch_model.bin"
QUERY_LENGTH, DOCUMENT_LENGTH = 16, 128  # of the authors' commands, special tokens included
_OURS = {"ln_cls.weight": "cls_norm.weight", "ln_cls.bias": "cls_norm.bias"}
_DOWNLOAD = "download the checkpoint again"


def import_checkpoint(
    checkpoint: str | Path,
    out: Path,
    tokenizer: Path | None = None,
    no_cls: bool = False,
    cls_only: bool = False,
    query_length: int = QUERY_LENGTH,
    document_length: int = DOCUMENT_LENGTH,
) -> ModelConfig:
    """Convert a checkpoint to a COIL model folder with the paper's profile; returns its configuration.

    `no_cls` and `cls_only` are training options: the sentence projection or the token projection was never
    trained and must not be used. `tokenizer` is the folder or the tokenizer.json of the base model, for a
    checkpoint without a tokenizer.
    """
    if no_cls and cls_only:
        raise OptionMismatch("no_cls and cls_only exclude each other", "pass at most one of them")
    folder = resolve_folder(checkpoint)
    width = _width(folder)
    heads = _read_heads(folder / HEADS, width)
    wanted = {"tok_proj": not cls_only, "cls_proj": not no_cls, "cls_norm": not no_cls}
    heads = {name: weight for name, weight in heads.items() if wanted[name.partition(".")[0]]}
    config = ModelConfig(
        n_t=0 if cls_only else len(heads["tok_proj.bias"]),
        n_c=0 if no_cls else len(heads["cls_proj.bias"]),
        pooling="cls",
        sentence_norm="layer" if "cls_norm.weight" in heads else "none",
        profile=replace(PAPER, query_length=query_length, document_length=document_length),
    )
    words = _tokenizer_of(folder, tokenizer)
    check_backbone(folder, words, config.profile)
    model = CoilModel(config, _backbone_of(folder))
    check_weights(model.heads(), heads, folder / HEADS)
    model.load_state_dict(heads, strict=False)
    with _new_folder(out) as unfinished:
        model.save_pretrained(unfinished)
        words.save(unfinished / TOKENIZER_FILE)
    return config


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file written by torch.save; no code is executed, and other objects are refused."""
    check_file(path, _DOWNLOAD)
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} contains objects other than tensors, which could execute code when loaded",
            "save only the weights: torch.save(model.state_dict(), path)",
        ) from error
    except Exception as error:  # zip, pickle and torch each fail in their own way on a damaged file
        raise ModelError(f"{path} is damaged: {str(error)[:200]}", _DOWNLOAD) from error
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in loaded.items()
    ):
        raise ModelError(f"{path} does not contain a dictionary of weights", _DOWNLOAD)
    check_finite({name: value for name, value in loaded.items() if value.is_floating_point()}, path)
    return loaded


def _width(folder: Path) -> int:
    path = folder / "config.json"
    if not (folder / HEADS).is_file():
        raise MissingModelFile(
            f"{folder / HEADS} is missing: {folder} is not a checkpoint of the authors' COIL",
            "pass the folder that contains both config.json and model.pt",
        )
    value = read_json(path)
    width = value.get("hidden_size", value.get("dim"))
    if type(width) is not int or width < 1:
        raise WrongShape(f"{path} has no valid hidden_size", _DOWNLOAD)
    return width


def _read_heads(path: Path, width: int) -> dict[str, Tensor]:
    """The projections, renamed to our names."""
    stored = load_tensors(path)
    needed = {f"{head}.{part}" for head in ("tok_proj", "cls_proj") for part in ("weight", "bias")}
    missing, unknown = sorted(needed - set(stored)), sorted(set(stored) - needed - set(_OURS))
    if missing:
        raise WrongShape(
            f"{path} has no weight {missing[0]!r}; it has {', '.join(sorted(stored))[:200] or 'nothing'}",
            "pass the checkpoint of a COIL model",
        )
    if any(name.startswith("ln_tok.") for name in unknown):
        raise ModelError(
            f"{path} normalises token vectors (ln_tok), which is not supported",
            "use a checkpoint trained without --token_norm_after",
        )
    if unknown:
        raise ModelError(
            f"{path} has the unknown weight {unknown[0]!r}", "pass the checkpoint of a COIL model"
        )
    for head in ("tok_proj", "cls_proj"):
        weight, bias = stored[f"{head}.weight"], stored[f"{head}.bias"]
        if weight.ndim != 2 or weight.shape[1] != width or not len(weight):
            raise WrongShape(
                f"{path}: {head}.weight has the shape {list(weight.shape)}; expected [n, {width}], as "
                f"config.json says {width}",
                "the projections and the language model belong to different checkpoints",
            )
        if list(bias.shape) != [len(weight)]:
            raise WrongShape(
                f"{path}: {head}.bias has the shape {list(bias.shape)}; expected [{len(weight)}]", _DOWNLOAD
            )
    return {_OURS.get(name, name): weight for name, weight in stored.items()}


def _backbone_of(folder: Path) -> torch.nn.Module:
    if (folder / BACKBONE_FILE).is_file():
        return load_backbone(folder)
    path = folder / OLD_BACKBONE
    if not path.is_file():
        raise MissingModelFile(
            f"{folder} has neither {BACKBONE_FILE} nor {OLD_BACKBONE}", "copy the complete checkpoint"
        )
    return fill_backbone(folder, path, load_tensors(path))


def _tokenizer_of(folder: Path, given: Path | None) -> Tokenizer:
    if given is not None:
        return Tokenizer.from_file(given) if given.is_file() else load_tokenizer(given)
    if not any((folder / name).is_file() for name in (TOKENIZER_FILE, "vocab.txt")):
        raise MissingModelFile(
            f"{folder} has no tokenizer (tokenizer.json or vocab.txt)",
            "pass that of the base model, such as bert-base-uncased, with --tokenizer FOLDER",
        )
    return load_tokenizer(folder)


@contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder that appears under its name only when it is complete."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise OutputError(f"{out} already exists", "choose another name")
    unfinished = out.with_name(f".partial-{out.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    try:
        yield unfinished
        unfinished.replace(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
