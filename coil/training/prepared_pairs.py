"""A cache of tokenized pairs, so that later runs on the same pairs start immediately.

The folder has a subfolder for each set of inputs, named by a digest of them: the bytes of the pairs and
negatives files, the tokenizer, which tokens have lists, the lengths, the held-out queries and the seed.
Nothing in it depends on the machine, so pairs can be prepared on one machine and trained on another.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from coil.errors import InputError, OptionMismatch
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData, Rows, load_pairs
from coil.training.passage_statistics import PassageStatistics
from coil.training.token_store import TokenStore
from coil.vectors.model_files import TOKENIZER_FILE, apply_umask

FORMAT = "coil-prepared-pairs-1"
ARRAYS_FILE = "pairs.safetensors"
DIGEST_FILE = "digest.json"
IDENTITY_FILE = "identity.json"


def prepare_pairs(
    folder: Path,
    pairs: Sequence[Path],
    negatives: Sequence[Path],
    base: Path,
    tokenizer: Tokenizer,
    options: TrainingOptions,
) -> PairData:
    """Open the prepared pairs, or prepare them now."""
    identity = _identity(pairs, negatives, base, tokenizer, options)
    text = json.dumps(identity, indent=2, sort_keys=True) + "\n"
    place = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    if not (place / IDENTITY_FILE).is_file():
        folder.mkdir(parents=True, exist_ok=True)
        # A name of its own: other processes may be preparing the same pairs.
        partial = Path(tempfile.mkdtemp(prefix=f".partial-{place.name}-", dir=folder))
        try:
            data = load_pairs(
                partial, pairs, tokenizer, ListKeys(options.config.profile, tokenizer), options.lengths,
                options.validation_queries, options.seed, negatives,
            )  # fmt: skip
            _save(data, partial)
            (partial / IDENTITY_FILE).write_text(text, encoding="utf-8")
            _put(partial, place)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return _open(place)


def _put(partial: Path, place: Path) -> None:
    """Give the finished folder its name, unless another process was faster."""
    try:
        partial.rename(place)
    except OSError:
        if not (place / IDENTITY_FILE).is_file():  # left by something else
            shutil.rmtree(place)
            partial.rename(place)


def _identity(
    pairs: Sequence[Path],
    negatives: Sequence[Path],
    base: Path,
    tokenizer: Tokenizer,
    options: TrainingOptions,
) -> dict[str, Any]:
    """Everything that determines the prepared files."""
    if options.teacher == "file":
        raise OptionMismatch("prepared pairs do not support teacher scores", "omit --prepared")
    profile = options.config.profile
    path = base / TOKENIZER_FILE
    return {
        "format": FORMAT,
        "pairs": {path.name: _digest(path) for path in pairs},
        "negatives": [_digest(path) for path in negatives],
        "tokenizer": _digest(path) if path.is_file() else tokenizer.vocabulary,
        "list_key": profile.list_key,
        "unlisted": profile.unlisted,
        "lengths": options.lengths,
        "validation_queries": options.validation_queries,
        # It chooses the held-out queries and nothing else.
        "seed": options.seed if options.validation_queries else None,
    }


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}", "check the path") from error


def _save(data: PairData, folder: Path) -> None:
    """Write everything except the tokens, which are already in the folder."""
    arrays = {
        "rarity": data.statistics.rarity.numpy(),
        "mean_length": data.statistics.mean_length.numpy(),
        "source_of": data.source_of,
        "query_of": data.query_of,
        "passage_of": data.passage_of,
        "title_of": data.title_of,
        "positives": data.positives.values,
        "positive_offsets": data.positives.offsets,
        "negatives": data.negatives.values,
        "negative_offsets": data.negatives.offsets,
        "training": data.training,
        "held_out": data.held_out,
    }
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(arrays, folder / ARRAYS_FILE)
    apply_umask(folder / ARRAYS_FILE)
    (folder / DIGEST_FILE).write_text(data.digest, encoding="utf-8")


def _open(folder: Path) -> PairData:
    try:
        arrays = load_file(folder / ARRAYS_FILE)
        return PairData(
            queries=TokenStore.open(folder / "queries.tokens"),
            passages=TokenStore.open(folder / "passages.tokens"),
            statistics=PassageStatistics(
                torch.from_numpy(arrays["rarity"]), torch.from_numpy(arrays["mean_length"])
            ),
            source_of=arrays["source_of"],
            query_of=arrays["query_of"],
            passage_of=arrays["passage_of"],
            title_of=arrays["title_of"],
            positives=Rows(arrays["positives"], arrays["positive_offsets"]),
            negatives=Rows(arrays["negatives"], arrays["negative_offsets"]),
            teacher={},
            training=arrays["training"],
            held_out=arrays["held_out"],
            digest=(folder / DIGEST_FILE).read_text(encoding="utf-8"),
        )
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise InputError(
            f"{folder} is damaged: {error}", "delete this folder; it will be prepared again"
        ) from error
