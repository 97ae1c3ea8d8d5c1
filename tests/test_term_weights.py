"""Term weights (DeepCT's idea): token vectors of one number that is never negative."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coil.errors import OptionMismatch
from coil.indexes.opening import create
from coil.scores import oracle
from coil.training.train import TrainingFiles, train
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from coil.vectors.torch_model import CoilModel
from tests.tiny import PROFILE, difference, make_model, random_texts
from tests.training_data import TINY

WEIGHTS = ModelConfig(1, 0, profile=PROFILE, non_negative=True)


@pytest.fixture(scope="module")
def weigher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights differ widely, many of them floored at 0."""
    folder = make_model(tmp_path_factory.mktemp("weights") / "made", WEIGHTS)
    model = CoilModel.from_pretrained(folder)
    with torch.no_grad():
        model.tok_proj.weight.mul_(20)  # type: ignore[union-attr]
        model.tok_proj.bias.zero_()  # type: ignore[union-attr]
    sharp = folder.with_name("model")
    model.save_pretrained(sharp)
    shutil.copy(folder / "tokenizer.json", sharp)
    export_model(sharp)
    return sharp


def test_weights_are_never_negative_and_the_same_in_every_encoder(weigher: Path) -> None:
    texts = random_texts(40)
    exact = list(TorchEncoder(weigher).encode_documents(texts))
    numbers = np.concatenate([text.vectors[:, 0] for text in exact])
    assert numbers.min() == 0.0
    assert 0.1 < (numbers == 0.0).mean() < 0.9  # the floor does something, and not everything
    assert difference(exact, list(OnnxEncoder(weigher, "fp32").encode_documents(texts))) < 1e-4
    small = np.concatenate([t.vectors[:, 0] for t in OnnxEncoder(weigher, "int8").encode_documents(texts)])
    assert small.min() == 0.0
    assert small @ numbers / np.linalg.norm(small) / np.linalg.norm(numbers) > 0.99


def test_an_index_of_weights_ranks_as_the_oracle(weigher: Path, tmp_path: Path) -> None:
    texts, queries = random_texts(60, seed=1), random_texts(12, 8, seed=2)
    encoder = OnnxEncoder(weigher, "fp32")
    documents = list(encoder.encode_documents(texts))
    found = 0
    with create(tmp_path / "weights.coil", precision="fp32", long="truncate", encoder=encoder) as index:
        index.add({"id": str(i), "text": text} for i, text in enumerate(texts))
        for query, vectors in zip(queries, encoder.encode_queries(queries), strict=True):
            expected = oracle.rank(vectors, documents, 10, WEIGHTS.profile)
            hits = index.search(query, k=10)
            assert [int(hit.doc_id) for hit in hits] == [ordinal for ordinal, _ in expected]
            np.testing.assert_allclose([h.score for h in hits], [s for _, s in expected], rtol=1e-4)
            found += len(hits)
    assert found > 60


def test_the_floor_is_saved_with_the_model_and_plain_models_keep_their_bytes(
    weigher: Path, tmp_path: Path
) -> None:
    assert ModelConfig.load(weigher) == WEIGHTS
    assert "non_negative" not in replace(WEIGHTS, non_negative=False).to_json()
    changed = json.loads((weigher / "coil.json").read_text())
    for value, said in ((1, "true or false"), (None, "true or false")):
        (tmp_path / "coil.json").write_text(json.dumps({**changed, "non_negative": value}))
        with pytest.raises(OptionMismatch, match=said):
            ModelConfig.load(tmp_path)
    with pytest.raises(OptionMismatch, match="n_t is 0"):
        ModelConfig(0, 8, non_negative=True)
    with pytest.raises(OptionMismatch, match="floored at 0"):
        replace(TINY, non_negative=True, token_init="principal")


def test_training_weights_improves_on_the_start(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    """All words start at about the same weight; training finds out which say more."""
    options = replace(TINY, n_t=1, n_c=0, non_negative=True, steps=60, queries=16, validation_queries=0)
    files = TrainingFiles(pairs, str(base), tmp_path / "model", [negatives])
    train(files, options, "cpu")
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    saved = ModelConfig.load(tmp_path / "model")
    assert (saved.n_t, saved.n_c, saved.non_negative) == (1, 0, True)
    vectors = [t.vectors for t in TorchEncoder(tmp_path / "model").encode_documents(random_texts(20))]
    numbers = np.concatenate(vectors)
    assert numbers.min() >= 0.0
    assert numbers.std() > 0.05
