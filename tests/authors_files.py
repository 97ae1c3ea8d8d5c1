"""Checkpoints and encoded texts as the authors' code writes them, small enough for a test."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import make_base

WIDTH = 32  # of the language model
POSITIONS = 160


def make_checkpoint(folder: Path, n_t: int = 4, n_c: int = 6, norm: bool = False, seed: int = 0) -> Path:
    """A BERT folder with pytorch_model.bin and model.pt, as of 2021."""
    make_base(folder, seed=seed, width=WIDTH)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(seed)
    weights["embeddings.position_embeddings.weight"] = torch.randn(POSITIONS, WIDTH)
    weights["embeddings.position_ids"] = torch.arange(POSITIONS)[None]  # which they had then
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": POSITIONS}))
    torch.save({f"bert.{name}": weight for name, weight in weights.items()}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    heads = {
        "tok_proj.weight": torch.randn(n_t, WIDTH),
        "tok_proj.bias": torch.randn(n_t),
        "cls_proj.weight": torch.randn(n_c, WIDTH),
        "cls_proj.bias": torch.randn(n_c),
    }
    if norm:
        heads |= {"ln_cls.weight": torch.rand(n_c) + 0.5, "ln_cls.bias": torch.randn(n_c)}
    torch.save(heads, folder / "model.pt")
    return folder


def write_encoded(
    folder: Path, texts: dict[int, TokenVectors], encoder: Encoder, dtype: type[np.floating] = np.float32
) -> Path:
    """Encoded texts in the authors' layout: mentions by token, in the order in which tokens first come."""
    folder.mkdir(parents=True, exist_ok=True)
    ids = {name: number for number, name in enumerate(encoder.tokenizer.vocabulary)}
    vectors: dict[int, list[np.ndarray]] = {}
    owners: dict[int, list[int]] = {}
    for number, text in texts.items():
        for key, vector in zip(text.keys, text.vectors, strict=True):
            assert key is not None
            vectors.setdefault(ids[key], []).append(vector)
            owners.setdefault(ids[key], []).append(number)
    offsets, begin = {}, 0
    for token, of_token in vectors.items():
        offsets[token] = (begin, len(of_token))
        begin += len(of_token)
    joined = [vector for of_token in vectors.values() for vector in of_token]
    np.save(folder / "tok_reps.npy", np.array(joined, dtype=dtype).reshape(begin, encoder.config.n_t))
    np.save(
        folder / "tok_pids.npy",
        np.array([n for of_token in owners.values() for n in of_token], dtype=np.int64),
    )
    np.save(folder / "cls_pids.npy", np.array(list(texts), dtype=np.int64))
    sentences = [text.sentence for text in texts.values()]
    np.save(folder / "cls_reps.npy", np.array(sentences, dtype=dtype).reshape(len(texts), encoder.config.n_c))
    (folder / "offsets.pkl").write_bytes(pickle.dumps(offsets, protocol=pickle.HIGHEST_PROTOCOL))
    return folder
