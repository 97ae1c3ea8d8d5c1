"""experiments/token_head.py and experiments/wordnet.py on data made in the test."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coil.scores import oracle
from coil.texts.pairs import read_pairs
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from coil.vectors.onnx_encoder import OnnxEncoder
from experiments import token_head
from experiments.wordnet import Mention, read_nouns
from tests.tiny import WEIGHED, make_model

DATABASE = """  1 This software and database is being provided to you, the LICENSEE, by Princeton University
00000001 14 n 02 bank 0 money_house 1 001 @ 00000003 n 0000 | a place for money; "the bank of the loan"
00000002 17 n 01 bank 0 000 | land beside a river; "steep bank of the river"; "the river bank was deep"
00000003 14 n 01 account 0 000 | money in a list
00000004 06 n 01 cabinet 0 000 | a kitchen box of wood; "the wood cabinet in the kitchen"
00000005 14 n 01 cabinet 0 000 | people of a government; "the government cabinet"
00000006 06 n 01 crane 0 000 | lifts a load; "the crane runs on and on"
00000007 05 n 01 crane 0 000 | a bird; "the crane in the water"
00000008 06 n 01 file 0 000 | a tool; "the long file in the box"
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    (tmp_path / "data.noun").write_text(DATABASE)
    return tmp_path


def test_nouns_of_two_fields_have_a_text_for_each_use(database: Path) -> None:
    nouns = read_nouns(database)
    # Left out: account and file have one sense, crane is an item of experiments/senses.json.
    assert nouns.keys() == {"bank", "cabinet"}
    assert [(m.text, m.sense, m.field) for m in nouns["bank"]] == [
        ("bank: a place for money", "00000001", "14"),
        ("the bank of the loan", "00000001", "14"),
        ("bank money house account", "00000001", "14"),
        ("bank: land beside a river", "00000002", "17"),
        ("steep bank of the river", "00000002", "17"),
        ("the river bank was deep", "00000002", "17"),
    ]


def test_training_changes_the_token_projection_alone(
    database: Path, pairs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ModelConfig(4, 6, "mean", "unit", WEIGHED)
    start = make_model(tmp_path / "start", config)
    monkeypatch.setattr(token_head, "STEPS", 20)
    monkeypatch.setattr(token_head, "QUERIES", 4)
    monkeypatch.setattr(token_head, "NEGATIVES", 3)
    out = tmp_path / "out"
    options = ["--pairs", *map(str, pairs), "--wordnet", str(database), "--out", str(out), "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", ["token_head", str(start), *options])
    token_head.main()
    made = ModelConfig.load(out)
    assert (made.token_norm, made.n_t, made.n_c) == ("unit", 4, 6)
    assert (made.profile.alpha, made.profile.beta, made.profile.gamma) == token_head.FACTORS
    before, after = (token_head.CoilModel.from_pretrained(folder) for folder in (start, out))
    for name, weight in before.backbone.state_dict().items():
        torch.testing.assert_close(after.backbone.state_dict()[name], weight, atol=2e-3, rtol=2e-3)  # fp16
    assert before.cls_proj is not None
    assert after.cls_proj is not None
    assert before.tok_proj is not None
    assert after.tok_proj is not None
    torch.testing.assert_close(after.cls_proj.weight, before.cls_proj.weight)
    assert (after.tok_proj.weight - before.tok_proj.weight).abs().max() > 1e-3


def test_the_loss_of_senses_finds_the_direction_that_separates_them(tmp_path: Path) -> None:
    """States that differ mostly at random, and a little by their sense."""
    torch.manual_seed(5)
    sense = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0, -1.0])
    states = torch.randn(6, 32)
    states[:, 0] = 0.5 * sense
    mentions = [Mention("", str(s), str(s)) for s in sense.tolist()]
    noun = token_head.Noun(states, mentions)
    assert noun.triples()[0] == (0, [1, 2], [3, 4, 5])
    folder = make_model(tmp_path / "model", ModelConfig(4, 6, "mean", "unit", WEIGHED))
    heads = token_head.Heads(token_head.CoilModel.from_pretrained(folder))
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.02)
    rng = random.Random(1)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        loss = token_head.sense_loss(heads, [noun], [noun.triples()], rng)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[0] > 0.5
    assert losses[-1] < 0.1
    products = heads.tokens(states) @ heads.tokens(states).T
    assert products[:3, :3].min() > products[:3, 3:].max()


def test_negatives_are_the_best_passages_by_bm25(
    pairs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_head, "NEGATIVES", 3)
    folder = make_model(tmp_path / "model", ModelConfig(4, 6, "mean", "unit", WEIGHED))
    export_model(folder, ["int8"])
    encoder = OnnxEncoder(folder)
    source = token_head.read_source(pairs[0], encoder, token_head.Lists(), encoder.config)
    given = list(read_pairs(pairs[0]))
    passages = list(encoder.encode_documents(sorted({pair.positive for pair in given})))
    queries = encoder.encode_queries(pair.query for pair in given)
    profile, counted = WEIGHED.answering("bm25"), oracle.CountedRows(passages)
    for query, positive, negatives in zip(queries, source.positives, source.negatives.tolist(), strict=True):
        scores = [oracle.score(query, passage, profile, counted) for passage in passages]
        assert passages[positive].keys
        assert positive not in negatives
        best = sorted((s for i, s in enumerate(scores) if i != positive), reverse=True)[:3]
        np.testing.assert_allclose([scores[i] for i in negatives], best, rtol=1e-4, atol=1e-6)


def test_the_loss_of_lone_words_brings_them_near_their_mentions(pairs: list[Path], tmp_path: Path) -> None:
    folder = make_model(tmp_path / "model", ModelConfig(8, 6, "mean", "unit", WEIGHED))
    model = token_head.CoilModel.from_pretrained(folder)
    encoder = OnnxEncoder(token_head.export_states(model, folder, tmp_path / "wide"))
    lists = token_head.Lists()
    source = token_head.read_source(pairs[0], encoder, lists, encoder.config)
    [lone] = token_head.read_lone([source], lists, encoder)
    assert len(lone.states) == len(lone.mentions) > 5
    for mentions in lone.mentions:
        [of] = {int(number) for number in source.passages.lists[mentions]}
        assert len(mentions) == int((source.passages.lists == of).sum())
    heads = token_head.Heads(model)
    before = float(token_head.lone_loss(heads, [source], [lone], random.Random(1)).detach())
    optimizer = torch.optim.Adam(heads.parameters(), lr=0.02)
    for seed in range(40):
        optimizer.zero_grad()
        token_head.lone_loss(heads, [source], [lone], random.Random(seed)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    after = float(token_head.lone_loss(heads, [source], [lone], random.Random(1)).detach())
    assert after < 0.5 * before
