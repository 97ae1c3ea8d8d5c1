"""Pairs and options for trainings that take a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import wrap
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData, load_pairs
from coil.training.token_store import ListNumbers, TextTokens, number_tokens
from tests.tiny import WEIGHED, make_tokenizer

TINY = TrainingOptions(
    n_t=4, n_c=6, queries=4, hard_negatives=2, steps=6, lr=1e-3, query_length=16, document_length=48,
    validation_queries=4, validation_passages=16, validate_every=0, checkpoint_every=0,
)  # fmt: skip
WORDS = replace(TINY, **{**WEIGHED.to_json(), "query_length": 16, "document_length": 48})
"""The same with whole words and the collection's weights, whose factors are learned."""


def load(
    pairs: list[Path],
    folder: Path,
    negatives: list[Path] | None = None,
    held_out: int = 4,
    profile: ScoringProfile = TINY.config.profile,
    corpus: str | None = None,
) -> PairData:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    keys = ListKeys(profile, tokenizer)
    return load_pairs(folder, pairs, tokenizer, keys, (16, 48), held_out, 13, negatives or [], corpus=corpus)


def numbered(texts: list[str], profile: ScoringProfile, tokenizer: Tokenizer) -> list[TextTokens]:
    """Texts with special tokens, as a batch has them."""
    found = number_tokens(texts, tokenizer, ListKeys(profile, tokenizer), ListNumbers(), 48)
    return [wrap(text, tokenizer, 48) for text in found]
