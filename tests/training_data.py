"""Pairs and options for trainings that take a second."""

from __future__ import annotations

from pathlib import Path

from coil.tokens.tokenizer import Tokenizer
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData, load_pairs
from tests.tiny import make_tokenizer

TINY = TrainingOptions(
    n_t=4, n_c=6, queries=4, hard_negatives=2, steps=6, lr=1e-3, query_length=16, document_length=48,
    validation_queries=4, validation_passages=16, validate_every=0, checkpoint_every=0,
)  # fmt: skip


def load(pairs: list[Path], folder: Path, negatives: list[Path] | None = None, **options: int) -> PairData:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    return load_pairs(folder, pairs, tokenizer, (16, 48), options.get("held_out", 4), 13, negatives or [])
