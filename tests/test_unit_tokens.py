"""Token vectors of length 1, so that a product is a cosine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coil.errors import OptionMismatch
from coil.indexes.opening import create
from coil.scores import oracle
from coil.training.train import TrainingFiles, train
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from tests.tiny import PROFILE, difference, make_model, random_texts
from tests.training_data import TINY

UNIT = ModelConfig(8, 4, profile=PROFILE, token_norm="unit")


@pytest.fixture(scope="module")
def unit_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_model(tmp_path_factory.mktemp("unit") / "model", UNIT)
    export_model(folder)
    return folder


def test_token_vectors_have_length_1_in_every_encoder(unit_model: Path) -> None:
    texts = random_texts(40)
    exact = list(TorchEncoder(unit_model).encode_documents(texts))
    assert difference(exact, list(OnnxEncoder(unit_model, "fp32").encode_documents(texts))) < 1e-4
    for encoded in (exact, OnnxEncoder(unit_model, "int8").encode_documents(texts)):
        lengths = np.linalg.norm(np.concatenate([text.vectors for text in encoded]), axis=1)
        np.testing.assert_allclose(lengths, 1.0, atol=1e-4)
    sentences = np.linalg.norm([text.sentence for text in exact], axis=1)
    assert np.abs(sentences - 1.0).max() > 0.01  # the option is about tokens alone


def test_an_index_of_unit_vectors_ranks_as_the_oracle(unit_model: Path, tmp_path: Path) -> None:
    texts, queries = random_texts(60, seed=1), random_texts(12, 8, seed=2)
    encoder = OnnxEncoder(unit_model, "fp32")
    documents = list(encoder.encode_documents(texts))
    with create(tmp_path / "unit.coil", precision="fp32", long="truncate", encoder=encoder) as index:
        index.add({"id": str(i), "text": text} for i, text in enumerate(texts))
        for query, vectors in zip(queries, encoder.encode_queries(queries), strict=True):
            expected = oracle.rank(vectors, documents, 10, UNIT.profile)
            hits = index.search(query, k=10)
            assert [int(hit.doc_id) for hit in hits] == [ordinal for ordinal, _ in expected]
            np.testing.assert_allclose([h.score for h in hits], [s for _, s in expected], rtol=1e-4)


def test_the_option_is_saved_with_the_model_and_wrong_values_are_named(
    unit_model: Path, tmp_path: Path
) -> None:
    assert ModelConfig.load(unit_model) == UNIT
    written = json.loads((unit_model / "coil.json").read_text())
    (tmp_path / "coil.json").write_text(json.dumps({**written, "token_norm": "long"}))
    with pytest.raises(OptionMismatch, match="token_norm is 'long'; it must be one of none, unit"):
        ModelConfig.load(tmp_path)
    with pytest.raises(OptionMismatch, match="token_norm"):
        ModelConfig(1, 0, token_norm="unit", non_negative=True)
    with pytest.raises(OptionMismatch, match="--token-norm"):
        replace(TINY, kind="cross-encoder", n_t=0, n_c=0, token_norm="unit")


def test_training_keeps_unit_vectors_and_improves_on_the_start(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    options = replace(TINY, token_norm="unit", steps=40, queries=16, validation_queries=0)
    train(TrainingFiles(pairs, str(base), tmp_path / "model", [negatives]), options, "cpu")
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    vectors = [t.vectors for t in TorchEncoder(tmp_path / "model").encode_documents(random_texts(20))]
    np.testing.assert_allclose(np.linalg.norm(np.concatenate(vectors), axis=1), 1.0, atol=1e-4)
