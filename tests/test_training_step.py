"""One training step: the batch equation against the oracle, micro-batches, masks, teachers."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from coil.scores import oracle
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import PAPER, ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import BatchEquation, TextVectors
from coil.training.batches import BatchPlan
from coil.training.grad_cache import CachedTexts, lay_out, text_vectors
from coil.training.learner import Setting
from coil.training.losses import Targets, contrast, divergence
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.training.passage_statistics import PassageStatistics
from coil.training.processes import Processes
from coil.training.starting_point import starting_model
from coil.training.teachers import StartingModel, hybrid, z_scores
from coil.training.token_store import NO_LIST, ListNumbers, number_tokens
from coil.training.train import make_learner
from coil.vectors.token_vectors import TokenVectors
from coil.vectors.torch_model import CoilModel
from tests.tiny import WEIGHED, make_tokenizer, make_vectors
from tests.training_data import TINY, WORDS, load, numbered

# The equation


def as_text_vectors(texts: list[TokenVectors]) -> TextVectors:
    """Lists are numbered by the digit in their keys, as `make_vectors` writes them."""
    rows, lists, vectors = [], [], []
    for row, text in enumerate(texts):
        for key, vector in zip(text.keys, text.vectors, strict=True):
            if key is not None:
                rows.append(row)
                lists.append(int(key[1:]))
                vectors.append(vector)
    width = texts[0].vectors.shape[1]
    sentences = [text.sentence for text in texts if text.sentence is not None]
    return TextVectors(
        torch.tensor(np.array(vectors, dtype=np.float32).reshape(len(rows), width)),
        torch.tensor(lists, dtype=torch.int64),
        torch.tensor(rows, dtype=torch.int64),
        torch.tensor(np.stack(sentences)) if sentences else None,
        len(texts),
    )


def statistics_of(*collections: list[TokenVectors]) -> PassageStatistics:
    """What training counts over the passages of each source, here counted by the oracle's own way."""
    counted = [oracle.CountedRows(collection) for collection in collections]
    rarity = [
        [
            math.log(1 + (rows.n_rows - df + 0.5) / (df + 0.5))
            for df in (rows.rows_with(f"w{number}") for number in range(8))
        ]
        for rows in counted
    ]
    return PassageStatistics(torch.tensor(rarity), torch.tensor([rows.mean_length for rows in counted]))


def first_source(n_queries: int) -> torch.Tensor:
    return torch.zeros(n_queries, dtype=torch.int64)


mention_lists = st.lists(st.integers(-1, 7), max_size=6)
profiles = st.one_of(
    st.builds(ScoringProfile, floor=st.booleans()),  # the paper's
    st.builds(
        ScoringProfile,
        list_key=st.just("word"),
        unlisted=st.just("stopwords"),
        weight=st.just("bm25"),
        alpha=st.sampled_from([0.0, 0.3, 1.0]),
        beta=st.sampled_from([0.0, 0.2, 1.0]),
        gamma=st.sampled_from([0.0, 0.5, 8.0]),
        gamma_rule=st.sampled_from(["constant", "root"]),
        k1=st.sampled_from([0.0, 0.9, 2.0]),
        b=st.sampled_from([0.0, 0.4, 1.0]),
    ),
)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    queries=st.lists(mention_lists, min_size=1, max_size=3),
    passages=st.lists(mention_lists, min_size=1, max_size=4),
    others=st.lists(mention_lists, max_size=4),
    profile=profiles,
    n_t=st.sampled_from([0, 3]),
    at_once=st.integers(1, 40),
)
def test_batch_scores_equal_the_oracle(
    seed: int,
    queries: list[list[int]],
    passages: list[list[int]],
    others: list[list[int]],
    profile: ScoringProfile,
    n_t: int,
    at_once: int,
) -> None:
    """The weights come from all passages of a query's source, those in the batch and `others`."""
    assume(profile.alpha > 0 or (profile.beta > 0 and n_t) or profile.gamma > 0)
    rng = np.random.default_rng(seed)
    q = [make_vectors(rng, lists, n_t, 2) for lists in queries]
    d = [make_vectors(rng, lists, n_t, 2) for lists in passages]
    rest = [make_vectors(rng, lists, n_t, 2) for lists in others]
    collections = [d + rest, d[:1] + rest + rest]
    equation = BatchEquation(profile, statistics_of(*collections), at_once)
    sources = rng.integers(2, size=len(q))
    scores = equation(as_text_vectors(q), as_text_vectors(d), torch.from_numpy(sources)).whole
    counted = [oracle.CountedRows(collection) for collection in collections]
    expected = [[oracle.score(a, b, profile, counted[s]) for b in d] for a, s in zip(q, sources, strict=True)]
    np.testing.assert_allclose(scores.numpy(), np.array(expected), atol=1e-4, rtol=1e-5)


def test_a_scorer_that_forgets_all_but_the_first_mention_is_caught() -> None:
    """The comparison above can fail: this one drops every further mention of a list in a text."""

    def first_mentions(passages: TextVectors) -> TextVectors:
        seen: set[tuple[int, int]] = set()
        first = []
        for i, pair in enumerate(zip(passages.rows.tolist(), passages.lists.tolist(), strict=True)):
            first += [] if pair in seen else [i]
            seen.add(pair)
        kept = torch.tensor(first, dtype=torch.int64)
        return TextVectors(
            passages.vectors[kept], passages.lists[kept], passages.rows[kept], None, passages.n_texts
        )

    rng = np.random.default_rng(1)
    query, passage = make_vectors(rng, [1, 2], 3, 0), make_vectors(rng, [1, 1, 2, 2, 2], 3, 0)
    for profile in (ScoringProfile(floor=False), WEIGHED):
        exact = oracle.score(query, passage, profile, oracle.CountedRows([passage]))
        equation = BatchEquation(profile, statistics_of([passage]))
        vectors = as_text_vectors([query]), as_text_vectors([passage])
        assert float(equation(*vectors, first_source(1)).whole[0, 0]) == pytest.approx(exact, abs=1e-5)
        forgetful = equation(vectors[0], first_mentions(vectors[1]), first_source(1)).whole
        assert abs(float(forgetful[0, 0]) - exact) > 1e-2


def test_the_gradients_of_the_factors_are_those_of_the_equation(base: Path) -> None:
    """α, β and γ moved by hand, against what backward says; and the profile that is saved has moved too."""
    rng = np.random.default_rng(2)
    q = [make_vectors(rng, [1, 2, 2, -1], 3, 2), make_vectors(rng, [3], 3, 2)]
    d = [make_vectors(rng, [1, 1, 2, 5], 3, 2), make_vectors(rng, [3, 2, 3], 3, 2)]
    vectors = [as_text_vectors(texts) for texts in (q, d)]
    doubled = [
        replace(v, vectors=v.vectors.double(), sentences=v.sentences.double())  # type: ignore[union-attr]
        for v in vectors
    ]
    equation = BatchEquation(WEIGHED, statistics_of(d))
    start = torch.tensor([WEIGHED.alpha, WEIGHED.beta, WEIGHED.gamma], dtype=torch.float64)
    weights = torch.tensor([[1.0, -2.0], [0.5, 3.0]], dtype=torch.float64)

    def loss(change: torch.Tensor) -> torch.Tensor:
        return (equation(*doubled, first_source(2), start * change.exp()).whole * weights).sum()

    zero = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (zero,))
    loss(zero).backward()
    assert (zero.grad.abs() > 1e-3).all()  # type: ignore[union-attr]


def test_learned_factors_are_saved_in_the_profile(base: Path, tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    model = starting_model(base, WORDS, tokenizer)
    assert model.profile() == WORDS.config.profile  # to the last digit
    with torch.no_grad():
        model.log_factors.copy_(torch.tensor([0.1, -0.5, 2.0]))  # type: ignore[union-attr]
    model.save_pretrained(tmp_path)
    assert "log_factors" not in load_file(tmp_path / "heads.safetensors")
    again = CoilModel.from_pretrained(tmp_path)
    torch.testing.assert_close(again.factors(), model.factors(), rtol=1e-5, atol=0)
    expected = WEIGHED.alpha * math.exp(0.1), WEIGHED.beta * math.exp(-0.5), WEIGHED.gamma * math.exp(2.0)
    saved = again.config.profile
    assert (saved.alpha, saved.beta, saved.gamma) == pytest.approx(expected, rel=1e-5)
    assert starting_model(base, TINY, tokenizer).factors() is None  # the paper's are constants


# Gradients


def gradients(base: Path, data: PairData, options: TrainingOptions) -> dict[str, torch.Tensor]:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    model = starting_model(base, options, tokenizer)
    learner = make_learner(Setting(options, Processes("cpu"), tokenizer, data, base), model)
    learner.learn(BatchPlan(data, options, tokenizer).batch(0))
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("recipe", "changes"),
    [
        (TINY, {}),
        (TINY, {"n_c": 0}),
        (TINY, {"n_t": 0}),
        (TINY, {"n_t": 1, "n_c": 0, "non_negative": True}),
        (TINY, {"keep": 2.0, "teacher": "hybrid", "token_only": 0.5, "spans": 0.5, "pooling": "mean"}),
        (WORDS, {"keep": 2.0, "teacher": "hybrid", "token_only": 0.5, "spans": 0.5, "pooling": "mean"}),
        (WORDS, {"keep_tokens": 2.0}),
        (WORDS, {"keep_tokens": 2.0, "token_norm": "unit"}),
        (WORDS, {"n_t": 0}),
    ],
)
def test_gradients_in_micro_batches_equal_those_of_the_whole_batch(
    base: Path, pairs: list[Path], tmp_path: Path, recipe: TrainingOptions, changes: dict[str, Any]
) -> None:
    options = replace(recipe, **changes)
    data = load(pairs, tmp_path, profile=options.config.profile)
    whole = gradients(base, data, replace(options, micro_batch_tokens=10**6))
    parts = gradients(base, data, replace(options, micro_batch_tokens=60))
    assert whole.keys() == parts.keys()
    assert ("log_factors" in whole) == (recipe is WORDS)
    assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_dropout_drops_the_same_in_the_second_encoding(base_with_dropout: Path) -> None:
    """With dropout on, gradients in micro-batches are those of the very vectors the loss saw."""
    tokenizer = Tokenizer.from_file(base_with_dropout / "tokenizer.json")
    model = starting_model(base_with_dropout, TINY, tokenizer)
    model.train()
    texts = numbered(["the bank of the river", "money in a bank account now"], TINY.config.profile, tokenizer)
    layout = lay_out(texts)
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
        ids = torch.from_numpy(text.ids.astype(np.int64))[None]
        tokens, sentence = model(ids, torch.ones_like(ids))
        listed = torch.from_numpy(text.lists != NO_LIST)
        total = total + tokens[0][listed].square().sum() + sentence.square().sum()
    total.backward()
    torch.testing.assert_close(got, model.tok_proj.weight.grad)  # type: ignore[union-attr]


# List numbers


def test_a_word_has_one_mention_and_a_part_of_it_none() -> None:
    """`xyz` is spelt in three pieces: the first carries the list, and a part without it carries none."""
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    keys, numbers = ListKeys(WEIGHED, tokenizer), ListNumbers()
    [text] = number_tokens(["the xyz banks, xyz bank"], tokenizer, keys, numbers, 48)
    assert [tokenizer.token(int(i)) for i in text.ids] == [
        "the", "x", "##y", "##z", "bank", "##s", ",", "x", "##y", "##z", "bank",
    ]  # fmt: skip
    assert text.lists.tolist() == [-1, 0, -1, -1, 1, -1, -1, 0, -1, -1, 1]
    assert numbers.keys == ["xyz", "bank"]
    assert lay_out([text[2:5]]).lists.tolist() == [1]
    assert lay_out([text[2:5]]).positions.tolist() == [2]
    [again] = number_tokens(["bank of wood"], tokenizer, keys, numbers, 48)
    assert again.lists.tolist() == [1, -1, 2]  # the numbering goes on


def test_by_wordpiece_every_piece_has_its_list() -> None:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    numbers = ListNumbers()
    [text] = number_tokens(["the xyz ."], tokenizer, ListKeys(PAPER, tokenizer), numbers, 48)
    assert [numbers.keys[number] for number in text.lists] == ["the", "x", "##y", "##z", "."]


@pytest.mark.parametrize("profile", [TINY.config.profile, WEIGHED])
def test_statistics_count_the_passages_of_each_source(
    pairs: list[Path], tmp_path: Path, profile: ScoringProfile
) -> None:
    data = load(pairs, tmp_path, profile=profile)
    keys = ListKeys(profile, Tokenizer(make_tokenizer(), "tiny"))
    names = json.loads((tmp_path / "lists.json").read_text())
    assert data.statistics.n_lists == len(names)
    assert len(pairs) > 1
    for source, path in enumerate(pairs):
        texts = sorted({json.loads(line)["positive"] for line in path.read_text().splitlines()})
        listed = [[key for key in keyed.keys if key is not None] for keyed in keys.of_texts(texts, 48)]
        mean = np.mean([len(keys) for keys in listed])
        assert float(data.statistics.mean_length[source]) == pytest.approx(mean)
        for number, name in enumerate(names):
            df = sum(name in keys for keys in listed)
            expected = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            assert float(data.statistics.rarity[source, number]) == pytest.approx(expected, rel=1e-5)


def test_documents_of_a_corpus_count_for_every_source(pairs: list[Path], tmp_path: Path) -> None:
    first = json.loads(pairs[0].read_text().splitlines()[0])["positive"]
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(
        "".join(json.dumps({"_id": i, "text": t}) + "\n" for i, t in (("a", first), ("b", "bank")))
    )
    for source, path in enumerate(pairs):
        texts = {json.loads(line)["positive"] for line in path.read_text().splitlines()} | {first, "bank"}
        data = load(pairs, tmp_path / f"tokens-{source}", corpus=str(corpus), profile=WEIGHED)
        names = json.loads((tmp_path / f"tokens-{source}" / "lists.json").read_text())
        keys = ListKeys(WEIGHED, Tokenizer(make_tokenizer(), "tiny"))
        df = sum("bank" in keyed.keys for keyed in keys.of_texts(sorted(texts), 48))
        expected = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
        found = float(data.statistics.rarity[source, names.index("bank")])
        assert found == pytest.approx(expected, rel=1e-5)


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


def test_batches_are_a_function_of_the_step_and_cover_all_pairs(pairs: list[Path], tmp_path: Path) -> None:
    data = load(pairs, tmp_path)
    options = replace(TINY, one_source=True, spans=0.5, steps=11)
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    one, other = BatchPlan(data, options, tokenizer), BatchPlan(data, options, tokenizer)
    for step in (7, 0, 3):
        a, b = one.batch(step), other.batch(step)
        assert all(
            np.array_equal(x.ids, y.ids) and np.array_equal(x.lists, y.lists)
            for x, y in zip(a.passages + a.queries, b.passages + b.queries, strict=True)
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
    model = starting_model(base, replace(TINY, sentence_norm=norm), tokenizer)
    ids = torch.from_numpy(tokenizer.cut(["the river bank"], 16)[0].input_ids.astype(np.int64))[None]
    tokens, _, kept = StartingModel(model)(ids, torch.ones_like(ids))
    expected = model.eval()(ids, torch.ones_like(ids))
    torch.testing.assert_close(kept, expected[1])
    torch.testing.assert_close(tokens, expected[0])
