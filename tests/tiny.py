"""Real models, tokenizers and vectors small enough to make in a test."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer as RustTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors

from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import WORDS as DEFAULT
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors

WORDS = """
the a of in to and is was bank river money steep water flow loan account deep open search index
token vector list query document score match exact match word meaning context task cancel long run
runs running time wait stop file read write line text token tokens what how why when price interest
rate rates cabinet government wood kitchen pass mountain airport lounge
""".split()
PROFILE = ScoringProfile(query_length=16, document_length=64)
WEIGHED = replace(DEFAULT, gamma=2.0, query_length=16, document_length=64)
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789", *".,!?'-:;()"]


def make_tokenizer() -> RustTokenizer:
    """A word-piece tokenizer that can spell any lower-case ASCII word."""
    vocabulary: dict[str, int] = {}
    for token in [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *WORDS,
        *LETTERS,
        *(f"##{c}" for c in LETTERS),
    ]:
        vocabulary.setdefault(token, len(vocabulary))
    tokenizer = RustTokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return tokenizer


def make_base(
    folder: Path,
    kind: str = "bert",
    seed: int = 0,
    width: int = 32,
    dropout: float = 0.0,
    positions: int = 80,
) -> Path:
    """A pretrained-looking base model: random weights of a real architecture, config and tokenizer."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModel

    tokenizer = make_tokenizer()
    common = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": positions}
    settings = {
        "bert": {
            "hidden_size": width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
        },
        "roberta": {
            "hidden_size": width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "pad_token_id": 0,
        },
        "mpnet": {
            "hidden_size": width,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "hidden_dropout_prob": dropout,
            "attention_probs_dropout_prob": dropout,
            "pad_token_id": 0,
        },
        "distilbert": {
            "dim": width,
            "n_layers": 2,
            "n_heads": 2,
            "hidden_dim": 64,
            "dropout": dropout,
            "attention_dropout": dropout,
        },
    }[kind]
    torch.manual_seed(seed)
    config = AutoConfig.for_model(kind, **common, **settings)
    backbone = AutoModel.from_config(config)
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    save_file({k: v.contiguous() for k, v in backbone.state_dict().items()}, folder / "model.safetensors")
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def make_model(folder: Path, config: ModelConfig, kind: str = "bert", seed: int = 0) -> Path:
    """A COIL model folder with random weights, as `coil train` would leave it (no ONNX files)."""
    import shutil

    import torch

    from coil.vectors.torch_model import CoilModel

    base = make_base(folder.with_name(folder.name + "-base"), kind, seed)
    torch.manual_seed(seed + 1)
    model = CoilModel.from_base(config, base)
    model.save_pretrained(folder)
    shutil.copy(base / "tokenizer.json", folder / "tokenizer.json")
    return folder


def make_keys(config: ModelConfig) -> ListKeys:
    """The list keys of the tiny vocabulary."""
    return ListKeys(config.profile, Tokenizer(make_tokenizer(), "tiny"))


def make_vectors(
    rng: np.random.Generator, lists: list[int], n_t: int, n_c: int, whole_numbers: bool = False
) -> TokenVectors:
    """Vectors for mentions of given lists (-1: none); whole numbers make ties and exact sums."""
    n = len(lists)

    def draw(*shape: int) -> np.ndarray:
        if whole_numbers:
            return rng.integers(-2, 3, size=shape).astype(np.float32)
        return rng.standard_normal(shape).astype(np.float32)

    return TokenVectors(
        keys=tuple(None if number < 0 else f"w{number}" for number in lists),
        positions=np.arange(1, n + 1, dtype=np.int32),
        spans=np.stack([np.arange(n), np.arange(n) + 1], axis=1).astype(np.int32).reshape(n, 2),
        vectors=draw(n, n_t),
        sentence=draw(n_c) if n_c else None,
    )


def difference(first: list[TokenVectors], second: list[TokenVectors]) -> float:
    """The largest difference in any number; other tokens or spans are an error."""
    largest = 0.0
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        assert a.keys == b.keys
        np.testing.assert_array_equal(a.positions, b.positions)
        np.testing.assert_array_equal(a.spans, b.spans)
        assert a.dropped == b.dropped
        assert a.vectors.shape == b.vectors.shape
        assert (a.sentence is None) == (b.sentence is None)
        pairs = [(a.vectors, b.vectors)]
        if a.sentence is not None and b.sentence is not None:
            pairs.append((a.sentence, b.sentence))
        largest = max([largest, *(float(np.abs(x - y).max()) for x, y in pairs if x.size)])
    return largest


def random_texts(count: int, longest: int = 70, seed: int = 0, shortest: int = 1) -> list[str]:
    """Texts of very different lengths."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(shortest, longest))) for _ in range(count)]
