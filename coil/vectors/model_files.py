"""The files of a model folder that every encoder needs: configuration, tokenizer, fingerprint."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from coil.errors import MissingModelFile, ModelError, OptionMismatch, TokenizerMismatch, WrongShape
from coil.forks import cached
from coil.interruptions import let_through
from coil.tokens.list_keys import ListKeys
from coil.tokens.model_json import COPY, check_file, read_json
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import CONFIG_FILE, ModelConfig

TOKENIZER_FILE = "tokenizer.json"
BACKBONE_FILE = "model.safetensors"
HEADS_FILE = "heads.safetensors"
ONNX_FILES = {"fp32": "model.onnx", "int8": "model.int8.onnx"}

DEFAULT = "default"  # the name of the bundled model
# The package has the bundled model for ONNX Runtime, the repository for PyTorch; both need these files.
SHARED_FILES = (CONFIG_FILE, "config.json", HEADS_FILE, TOKENIZER_FILE)
_FINGERPRINTED = (*SHARED_FILES, BACKBONE_FILE, *ONNX_FILES.values())
GET_WEIGHTS = "clone the coil-ir repository and pass the path of its folder models/default"

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")  # owner/name
# These models number positions from the padding id + 1, so this many rows of the table are unused.
OFFSET_POSITIONS = {"roberta": 2, "xlm-roberta": 2, "camembert": 2, "mpnet": 2}


_LARGEST_SIZES = {
    "vocab_size": 1 << 24,
    "max_position_embeddings": 1 << 20,
    **dict.fromkeys(("hidden_size", "dim", "intermediate_size", "hidden_dim"), 1 << 20),
    **dict.fromkeys(("num_hidden_layers", "n_layers", "num_attention_heads", "n_heads"), 1 << 10),
    "type_vocab_size": 1 << 10,
}


Stamp = tuple[int, ...]
"""A value that changes when a file is written or replaced."""


def stamp_of(path: Path) -> Stamp | None:
    """The stamp of a file; None if there is no such file."""
    try:
        found = path.stat()
    except OSError as error:
        let_through(error)
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, eq=False)
class ModelFiles:
    """The files next to the weights, read and checked against each other."""

    folder: Path
    config: ModelConfig
    tokenizer: Tokenizer
    keys: ListKeys
    stamps: Mapping[str, Stamp | None]  # of all files that determine the vectors, before any was read

    @classmethod
    def load(cls, folder: Path) -> ModelFiles:
        """Read a model folder without its weights."""
        if not folder.is_dir():
            raise MissingModelFile(f"model folder not found: {folder}", "check the path")
        stamps = {name: stamp_of(folder / name) for name in _FINGERPRINTED}
        config = ModelConfig.load(folder)
        tokenizer = Tokenizer.from_file(folder / TOKENIZER_FILE)
        check_backbone(folder, tokenizer, config.profile)
        return cls(folder, config, tokenizer, ListKeys(config.profile, tokenizer), stamps)

    @cached
    def sentence_projection(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """W [n_c, width] and b [n_c] of the sentence vector."""
        path = self.folder / HEADS_FILE
        check_file(path, "copy the complete model folder, not only the ONNX file")
        try:
            heads = load_file(path)
            weight, bias = heads["cls_proj.weight"], heads["cls_proj.bias"]
        except Exception as error:  # SafetensorError, or NumPy's errors about unsupported types
            let_through(error)
            raise ModelError(f"{path} is damaged: {str(error)[:200]}", COPY) from error
        if weight.ndim != 2 or len(weight) != self.config.n_c or bias.shape != (self.config.n_c,):
            raise WrongShape(f"{path}: the sentence projection does not have {self.config.n_c} rows", COPY)
        return weight.astype(np.float32), bias.astype(np.float32)

    def fingerprint(self, weights: Path) -> str:
        """A digest of weights, configuration, tokenizer and profile.

        It is computed when it is needed, and must be that of the files that were read before.
        """
        digest = hashlib.sha256()
        digest.update(json.dumps(self.config.to_json(), sort_keys=True).encode())
        paths = (self.folder / TOKENIZER_FILE, *_weight_files(weights))
        for path in paths:
            with path.open("rb") as file:
                digest.update(
                    hashlib.file_digest(file, "sha256").digest()
                    if hasattr(hashlib, "file_digest")
                    else hashlib.sha256(file.read()).digest()
                )
        for path in (self.folder / CONFIG_FILE, *paths):
            self._check_unchanged(path)
        return digest.hexdigest()[:32]

    def _check_unchanged(self, path: Path) -> None:
        if stamp_of(path) != self.stamps[path.name]:
            raise ModelError(
                f"{path} has changed since it was read", "open the index again, or start a new process"
            )


def apply_umask(path: Path) -> None:
    """Give a file the permissions of any other new file: safetensors makes its files private."""
    usual = path.with_name(f".{path.name}.permissions")
    usual.touch()
    try:
        with suppress(PermissionError):  # on a file system without permissions
            path.chmod(S_IMODE(usual.stat().st_mode))
    finally:
        usual.unlink(missing_ok=True)


def _weight_files(weights: Path) -> list[Path]:
    beside = weights.with_name(HEADS_FILE)
    # PyTorch builds the language model from config.json; an ONNX file contains the whole model.
    return [weights, beside, weights.with_name("config.json")] if weights.name == BACKBONE_FILE else [weights]


def check_backbone(folder: Path, tokenizer: Tokenizer, profile: ScoringProfile) -> None:
    """Check that the language model described by config.json supports the vocabulary and the lengths."""
    path = folder / "config.json"
    value = read_json(path)
    for name, largest in _LARGEST_SIZES.items():
        size = value.get(name)
        if size is not None and not (type(size) is int and 0 < size <= largest):
            raise WrongShape(
                f"{path}: {name} is {str(size)[:40]}; expected a whole number from 1 to {largest:,}", COPY
            )
    if not isinstance(value.get("model_type", ""), str):
        raise WrongShape(f"{path}: model_type is not a string", COPY)
    vocabulary = value.get("vocab_size")
    if vocabulary is not None and vocabulary < len(tokenizer.vocabulary):
        raise TokenizerMismatch(
            f"{tokenizer.where} has {len(tokenizer.vocabulary)} tokens, but the model in {path} has only "
            f"{vocabulary}",
            "restore the tokenizer that the model was trained with",
        )
    room = longest_input(folder)
    if room is None:
        return
    longest = max(profile.query_length, profile.document_length)
    if longest > room:
        raise OptionMismatch(
            f"the scoring profile allows {longest} tokens, but the model in {path} supports only {room}",
            f"set query_length and document_length to at most {room}",
        )


def longest_input(folder: Path) -> int | None:
    """How many tokens the language model described by config.json can read; None if there is no limit."""
    value = read_json(folder / "config.json")
    room = value.get("max_position_embeddings")
    return None if room is None else int(room) - OFFSET_POSITIONS.get(value.get("model_type", ""), 0)


def bundled_model() -> Path:
    """The folder of the model that ships with the package: its ONNX file, without the PyTorch weights."""
    return Path(__file__).resolve().parent.parent / "models" / DEFAULT


def bundled_weights() -> Path:
    """The folder of the bundled model for PyTorch: in a checkout, not in an installed package."""
    packaged = bundled_model()
    folder = packaged.parents[2] / "models" / DEFAULT
    if not (folder / BACKBONE_FILE).is_file():
        raise MissingModelFile(
            f"the PyTorch weights of the bundled model are not installed: {packaged} has only its ONNX model",
            GET_WEIGHTS,
        )
    for name in SHARED_FILES:
        check_file(folder / name)
        if (folder / name).read_bytes() != (packaged / name).read_bytes():
            raise OptionMismatch(
                f"{folder} and {packaged} are different models: {name} differs",
                "restore both with `git checkout`, or create both with `python -m experiments.bundle`",
            )
    return folder


def resolve_folder(model: str | Path | None) -> Path:
    """A model folder from a path, an installed package that contains one, or None or "default" (bundled).

    An existing folder with the given name takes precedence.
    """
    if model is None:
        return bundled_model()
    name, spec = str(model).replace("-", "_"), None
    with suppress(OSError, ValueError, TypeError, ImportError):  # neither a path nor a module
        path = Path(model)
        if path.is_dir():
            return path
        if name == DEFAULT:
            return bundled_model()
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
    if spec is not None and spec.submodule_search_locations:
        packages = [Path(place) for place in spec.submodule_search_locations]
        found = [config for package in packages for config in sorted(package.rglob("config.json"))]
        for config in found:
            if (config.parent / BACKBONE_FILE).is_file():
                return config.parent
        raise ModelError(f"the package {name!r} is installed but contains no model with {BACKBONE_FILE}")
    if _HUB_ID.fullmatch(str(model)):
        raise MissingModelFile(
            f"{str(model)!r} is not a folder; models from the Hugging Face hub must be downloaded first, "
            "since coil downloads nothing itself",
            f"run `hf download {model} --local-dir {str(model).rpartition('/')[2]}` on a machine with "
            "internet access, and pass the path of that folder",
        )
    raise MissingModelFile(
        f"{model!r:.200} is neither a folder nor an installed package with a model",
        f"pass the path of a model folder, or `pip install {str(model)[:80]}` if it is a package",
    )


def name_lastingly(model: str | Path | None) -> str | Path | None:
    """A name of a model that stays valid: a folder by its absolute path.

    The working directory may change, or differ in another process.
    """
    with suppress(OSError, ValueError, TypeError):  # not a path
        if model is not None and Path(model).is_dir():
            return str(Path(model).resolve())
    return model


def resolve_weights(model: str | Path | None) -> Path:
    """Like `resolve_folder`, for PyTorch: the bundled model is the one in the repository."""
    folder = resolve_folder(model)
    return bundled_weights() if folder.resolve() == bundled_model() else folder
