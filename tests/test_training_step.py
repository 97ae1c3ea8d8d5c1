"""One training step: the batch equation against the oracle, micro-batches, masks, teachers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.scores import oracle
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import TextVectors, sentence_scores, token_scores
from coil.training.batches import BatchPlan
from coil.training.grad_cache import CachedTexts, lay_out, text_vectors
from coil.training.losses import Targets, contrast, divergence
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.processes import Processes
from coil.training.starting_point import starting_model
from coil.training.step import Step
from coil.training.teachers import BatchBM25, StartingModel, hybrid, z_scores
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import make_keys, make_tokenizer, make_vectors
from tests.training_data import TINY, load

# The equation


def as_text_vectors(texts: list[TokenVectors], keys: ListKeys) -> TextVectors:
    rows, lists, vectors = [], [], []
    for row, text in enumerate(texts):
        of_text = keys.of(text.token_ids)
        for i in np.flatnonzero(of_text != NO_LIST):
            rows.append(row)
            lists.append(int(of_text[i]))
            vectors.append(text.vectors[i])
    width = texts[0].vectors.shape[1]
    sentences = [text.sentence for text in texts if text.sentence is not None]
    return TextVectors(
        torch.tensor(np.array(vectors, dtype=np.float32).reshape(-1, width)),
        torch.tensor(lists, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(np.stack(sentences)) if sentences else None,
        len(texts),
    )


token_lists = st.lists(st.integers(0, 7), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    queries=st.lists(token_lists, min_size=1, max_size=3),
    passages=st.lists(token_lists, min_size=1, max_size=4),
    floor=st.booleans(),
    at_once=st.integers(1, 40),
)
def test_batch_scores_equal_the_oracle(
    seed: int, queries: list[list[int]], passages: list[list[int]], floor: bool, at_once: int
) -> None:
    rng = np.random.default_rng(seed)
    keys = ListKeys(np.array([0, 0, 2, 3, NO_LIST, 5, 5, 7], dtype=np.int32))
    profile = ScoringProfile(floor=floor)
    q = [make_vectors(rng, tokens, 3, 2) for tokens in queries]
    d = [make_vectors(rng, tokens, 3, 2) for tokens in passages]
    q_vectors, d_vectors = as_text_vectors(q, keys), as_text_vectors(d, keys)
    sentences = sentence_scores(q_vectors, d_vectors)
    assert sentences is not None
    scores = token_scores(q_vectors, d_vectors, floor, at_once) + sentences
    expected = [[oracle.score(a, b, profile, keys) for b in d] for a in q]
    np.testing.assert_allclose(scores.numpy(), np.array(expected), atol=1e-4)


def test_a_scorer_that_forgets_all_but_the_first_mention_is_caught() -> None:
    """The comparison above can fail: this one drops every further mention of a list in a text."""

    def forgetful(queries: TextVectors, passages: TextVectors, floor: bool) -> torch.Tensor:
        seen: set[tuple[int, int]] = set()
        first = []
        for i, pair in enumerate(zip(passages.rows.tolist(), passages.lists.tolist(), strict=True)):
            first += [] if pair in seen else [i]
            seen.add(pair)
        kept = torch.tensor(first, dtype=torch.int64)
        cut = TextVectors(
            passages.vectors[kept], passages.lists[kept], passages.rows[kept], None, passages.n_texts
        )
        return token_scores(queries, cut, floor)

    rng = np.random.default_rng(1)
    keys = ListKeys(np.arange(8, dtype=np.int32))
    query, passage = make_vectors(rng, [1, 2], 3, 0), make_vectors(rng, [1, 1, 2, 2, 2], 3, 0)
    exact = oracle.score(query, passage, ScoringProfile(floor=False), keys)
    vectors = as_text_vectors([query], keys), as_text_vectors([passage], keys)
    assert float(token_scores(*vectors, False)[0, 0]) == pytest.approx(exact, abs=1e-5)
    assert abs(float(forgetful(*vectors, False)[0, 0]) - exact) > 1e-2


# Gradients


def gradients(base: Path, data: PairData, options: TrainingOptions) -> dict[str, torch.Tensor]:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    model, keys = starting_model(base, options, tokenizer)
    start = StartingModel(model) if options.keep or options.teacher == "hybrid" else None
    bm25 = BatchBM25(data.passages, keys) if options.teacher == "hybrid" else None
    step = Step(model, keys, (1, 1), options, Processes("cpu"), start, bm25)
    step(BatchPlan(data, options, tokenizer).batch(0))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_c": 0},
        {"n_t": 0},
        {"keep": 2.0, "teacher": "hybrid", "token_only": 0.5, "spans": 0.5, "pooling": "mean"},
    ],
)
def test_gradients_in_micro_batches_equal_those_of_the_whole_batch(
    base: Path, pairs: list[Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    data = load(pairs, tmp_path)
    whole = gradients(base, data, replace(TINY, micro_batch_tokens=10**6, **changes))
    parts = gradients(base, data, replace(TINY, micro_batch_tokens=60, **changes))
    assert whole.keys() == parts.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_dropout_drops_the_same_in_the_second_encoding(base_with_dropout: Path) -> None:
    """With dropout on, gradients in micro-batches are those of the very vectors the loss saw."""
    tokenizer = Tokenizer.from_file(base_with_dropout / "tokenizer.json")
    model, keys = starting_model(base_with_dropout, TINY, tokenizer)
    model.train()
    texts = [t.input_ids for t in tokenizer.cut(["the bank of the river", "money in a bank account now"], 48)]
    layout = lay_out(texts, keys, (1, 1))
    torch.manual_seed(3)
    cached = CachedTexts(texts, layout, model, 8, torch.device("cpu"))  # 8 tokens: two micro-batches
    vectors = text_vectors(layout, cached.vectors, cached.sentences)
    (vectors.vectors.square().sum() + vectors.sentences.square().sum()).backward()  # type: ignore[union-attr]
    cached.backward()
    got = model.tok_proj.weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()
    torch.manual_seed(3)
    total = torch.zeros(())
    for text in sorted(texts, key=len, reverse=True):  # the order in which micro-batches are made
        ids = torch.from_numpy(text.astype(np.int64))[None]
        tokens, sentence = model(ids, torch.ones_like(ids))
        listed = torch.from_numpy(keys.of(text) != NO_LIST)
        total = total + tokens[0][listed].square().sum() + sentence.square().sum()
    total.backward()
    torch.testing.assert_close(got, model.tok_proj.weight.grad)  # type: ignore[union-attr]


# Losses and batches


def test_other_positives_of_the_query_are_neither_right_nor_wrong() -> None:
    scores = torch.tensor([[2.0, 9.0, 1.0]])
    masked = Targets(torch.tensor([0]), torch.tensor([[False, True, False]]))
    without = Targets(torch.tensor([0]), torch.tensor([[False, False]]))
    torch.testing.assert_close(contrast(scores, masked), contrast(scores[:, [0, 2]], without))


def test_batches_mask_equal_texts_that_are_positives(tmp_path: Path) -> None:
    path = tmp_path / "twins.jsonl"
    lines = [
        {"query": "bank loan", "positive": f"money bank {word}"}
        for word in ("loan", "rate", "price", "account")
    ]
    lines += [{"query": "river", "positive": "the river bank was steep"}] * 4
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = load([path], tmp_path, held_out=0)
    options = replace(TINY, queries=8, hard_negatives=0)
    batch = BatchPlan(data, options, Tokenizer(make_tokenizer(), "tiny")).batch(0)
    per_query = sorted(int(row.sum()) for row in batch.excluded)
    assert per_query == [3] * 8  # the three others of its query; never the one it is trained on
    assert not batch.excluded[np.arange(8), batch.targets].any()


def test_teacher_divergence_is_zero_only_when_the_model_agrees() -> None:
    teacher = torch.tensor([[1.0, 2.0, float("nan"), 0.0]])
    targets = Targets(torch.tensor([0]), torch.zeros((1, 4), dtype=torch.bool), teacher)
    agreeing = torch.tensor([[3.0, 4.0, 99.0, 2.0]])
    assert float(divergence(agreeing, targets, 1.0)) == pytest.approx(0.0, abs=1e-5)
    assert float(divergence(agreeing.flip(1), targets, 1.0)) > 0.1


def test_hybrid_teacher_is_a_sum_of_z_scores() -> None:
    excluded = torch.tensor([[False, False, False, True]])
    dense, lexical = torch.tensor([[1.0, 2.0, 3.0, 50.0]]), torch.tensor([[9.0, 0.0, 0.0, 70.0]])
    z = z_scores(dense, excluded)[0, :3]
    assert float(z.mean()) == pytest.approx(0, abs=1e-6)
    assert float(z.std(correction=0)) == pytest.approx(1, abs=1e-5)
    both = hybrid(dense, lexical, excluded, 0.7)
    torch.testing.assert_close(both, 0.7 * z_scores(dense, excluded) + 0.3 * z_scores(lexical, excluded))


def test_batch_bm25_is_bm25(pairs: list[Path], tmp_path: Path) -> None:
    data = load(pairs, tmp_path)
    keys = make_keys(TINY.config)
    texts = [np.concatenate([[2], data.passages[i], [3]]).astype(np.int32) for i in range(5)]
    query = np.concatenate([[2], data.queries[0], [3]]).astype(np.int32)
    got = BatchBM25(data.passages, keys).scores(lay_out([query], keys, (1, 1)), lay_out(texts, keys, (1, 1)))
    everything = [data.passages[i].tolist() for i in range(len(data.passages))]
    average = np.mean([len(text) for text in everything])
    for column in range(5):
        expected = 0.0
        for token in data.queries[0].tolist():
            df = sum(token in text for text in everything)
            idf = np.log(1 + (len(everything) - df + 0.5) / (df + 0.5))
            tf = everything[column].count(token)
            expected += idf * tf / (tf + 0.9 * (0.6 + 0.4 * len(everything[column]) / average))
        assert got[0, column] == pytest.approx(expected, rel=1e-4)


def test_batches_are_a_function_of_the_step_and_cover_all_pairs(pairs: list[Path], tmp_path: Path) -> None:
    data = load(pairs, tmp_path)
    options = replace(TINY, one_source=True, spans=0.5, steps=11)
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    one, other = BatchPlan(data, options, tokenizer), BatchPlan(data, options, tokenizer)
    for step in (7, 0, 3):
        a, b = one.batch(step), other.batch(step)
        assert all(
            np.array_equal(x, y) for x, y in zip(a.passages + a.queries, b.passages + b.queries, strict=True)
        )
        sources = {int(data.source_of[pair]) for pair in one.pairs_at(step)}
        assert len(sources) == 1
    mixed = BatchPlan(data, replace(TINY, steps=11), tokenizer)  # 44 training pairs, 4 at a time
    assert sorted(np.concatenate([mixed.pairs_at(s) for s in range(11)])) == sorted(data.training)


def test_spans_are_whole_words_and_usually_cut_out(pairs: list[Path], tmp_path: Path) -> None:
    data = load(pairs, tmp_path)
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    options = replace(TINY, queries=40, spans=1.0, span_titles=0.0, span_cut=1.0, document_length=64)
    batch = BatchPlan(data, options, tokenizer).batch(0)
    assert batch.n_spans > 10
    full = BatchPlan(data, replace(options, spans=0.0), tokenizer).batch(0)
    shorter = [len(a) < len(b) for a, b in zip(batch.passages[::3], full.passages[::3], strict=True)]
    assert sum(shorter) == batch.n_spans


def test_a_teacher_scores_every_copy_of_a_passage_and_no_span(pairs: list[Path], tmp_path: Path) -> None:
    data = load(pairs, tmp_path)
    query = int(data.query_of[data.training[0]])
    passage = int(data.passage_of[data.training[0]])
    data.teacher[query] = (np.array([passage]), np.array([7.0], dtype=np.float32))
    plan = BatchPlan(data, replace(TINY, teacher="file"), Tokenizer(make_tokenizer(), "tiny"))
    taught = plan._taught(data.training[:2], [passage, passage + 1, passage], [False, False])
    assert taught[0].tolist()[::2] == [7.0, 7.0]
    assert np.isnan(taught[0, 1])
    assert np.isnan(plan._taught(data.training[:1], [passage], [True])).all()


@pytest.mark.parametrize("norm", ["none", "layer"])
def test_the_starting_model_keeps_its_own_sentence_vector(base: Path, norm: str) -> None:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    model, _ = starting_model(base, replace(TINY, sentence_norm=norm), tokenizer)
    ids = torch.from_numpy(tokenizer.cut(["the river bank"], 16)[0].input_ids.astype(np.int64))[None]
    _, kept = StartingModel(model)(ids, torch.ones_like(ids))
    torch.testing.assert_close(kept, model.eval()(ids, torch.ones_like(ids))[1])
