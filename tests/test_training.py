"""Training: the batch equation against the oracle, chunked gradients, masks, resuming, several processes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from coil.cli.main import run
from coil.errors import BadLine, InputError, OptionMismatch, OutputError
from coil.scores import reference
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.training.batch_scores import TextVectors, sentence_scores, token_scores
from coil.training.batches import BatchPlan
from coil.training.grad_cache import CachedTexts, lay_out, text_vectors
from coil.training.losses import Targets, contrast, divergence
from coil.training.options import PRESETS, TrainingOptions
from coil.training.pair_data import PairData, load_pairs
from coil.training.processes import Processes
from coil.training.starting_point import starting_model
from coil.training.step import Step
from coil.training.teachers import BatchBM25, StartingModel, hybrid, z_scores
from coil.training.train import TrainingFiles, train
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import WORDS, make_base, make_keys, make_tokenizer, make_vectors

TINY = TrainingOptions(
    n_t=4, n_c=6, queries=4, hard_negatives=2, steps=6, lr=1e-3, query_length=16, document_length=48,
    validation_queries=4, validation_passages=16, validate_every=0, checkpoint_every=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def base_with_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), dropout=0.2)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng, files = tmp_path_factory.mktemp("pairs"), random.Random(5), []
    for name in ("first", "second"):
        path = folder / f"{name}.jsonl"
        with path.open("w") as file:
            for _ in range(24):
                words = [rng.choice(WORDS) for _ in range(25)]
                file.write(json.dumps({"query": " ".join(words[3:8]), "positive": " ".join(words)}) + "\n")
        files.append(path)
    return files


@pytest.fixture(scope="module")
def negatives(pairs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mined") / "negatives.jsonl"
    assert run(["mine", "--out", str(out), *(a for p in pairs for a in ("--pairs", str(p)))]) == 0
    return out


def load(pairs: list[Path], folder: Path, negatives: list[Path] | None = None, **options: int) -> PairData:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    return load_pairs(folder, pairs, tokenizer, (16, 48), options.get("held_out", 4), 13, negatives or [])


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
    expected = [[reference.score(a, b, profile, keys) for b in d] for a in q]
    np.testing.assert_allclose(scores.numpy(), np.array(expected), atol=1e-4)


def test_a_scorer_that_forgets_a_second_mention_is_caught() -> None:
    """The comparison above can fail: dropping all but the first mention gives other scores."""
    rng = np.random.default_rng(1)
    keys = ListKeys(np.arange(8, dtype=np.int32))
    query, passage = make_vectors(rng, [1], 3, 0), make_vectors(rng, [1, 1, 1, 1], 3, 0)
    best = int(np.argmax(passage.vectors @ query.vectors[0]))
    worst_first = np.argsort(passage.vectors @ query.vectors[0])
    cut = TokenVectors(
        passage.token_ids[:1],
        passage.positions[:1],
        passage.spans[:1],
        passage.vectors[worst_first[:1]],
        None,
    )
    assert best != worst_first[0]
    wrong = token_scores(as_text_vectors([query], keys), as_text_vectors([cut], keys), False)
    assert abs(float(wrong[0, 0]) - reference.score(query, passage, ScoringProfile(floor=False), keys)) > 1e-3


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
def test_chunked_gradients_equal_unchunked_ones(
    base: Path, pairs: list[Path], tmp_path: Path, changes: dict[str, object]
) -> None:
    data = load(pairs, tmp_path)
    whole = gradients(base, data, replace(TINY, chunk_tokens=10**6, **changes))
    chunked = gradients(base, data, replace(TINY, chunk_tokens=60, **changes))
    assert whole.keys() == chunked.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(chunked[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


def test_dropout_drops_the_same_in_the_second_encoding(base_with_dropout: Path) -> None:
    """With dropout on, chunked gradients are those of the very vectors the loss saw."""
    tokenizer = Tokenizer.from_file(base_with_dropout / "tokenizer.json")
    model, keys = starting_model(base_with_dropout, TINY, tokenizer)
    model.train()
    texts = [t.input_ids for t in tokenizer.cut(["the bank of the river", "money in a bank account now"], 48)]
    layout = lay_out(texts, keys, (1, 1))
    torch.manual_seed(3)
    cached = CachedTexts(texts, layout, model, 8, torch.device("cpu"))  # 8 tokens: two chunks
    vectors = text_vectors(layout, cached.vectors, cached.sentences)
    (vectors.vectors.square().sum() + vectors.sentences.square().sum()).backward()  # type: ignore[union-attr]
    cached.backward()
    got = model.tok_proj.weight.grad.clone()  # type: ignore[union-attr]
    model.zero_grad()
    torch.manual_seed(3)
    total = torch.zeros(())
    for text in sorted(texts, key=len, reverse=True):  # the order in which chunks are made
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


# The command


def arguments(pairs: list[Path], base: Path, out: Path, **changes: object) -> list[str]:
    found = ["train", "--preset", "paper", "--base", str(base), "--out", str(out), "--device", "cpu"]
    options = {
        "n-t": 4, "n-c": 6, "queries": 4, "hard-negatives": 2, "steps": 12, "lr": 1e-3, "query-length": 16,
        "document-length": 48, "validation-queries": 4, "validation-passages": 16, "validate-every": 6,
        "checkpoint-every": 4, **changes,
    }  # fmt: skip
    for name, value in options.items():
        found += [f"--{name}", str(value)]
    return found + [a for p in pairs for a in ("--pairs", str(p))]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {**load_file(folder / "model.safetensors"), **load_file(folder / "heads.safetensors")}


def test_training_learns_and_writes_its_metrics(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    command = arguments(pairs, base, out, steps=60, **{"validation-queries": 12})
    assert run([*command, "--negatives", str(negatives), "--tensorboard"]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert [line["step"] for line in lines if "validation_mrr_at_10" in line] == list(range(6, 61, 6))
    assert list((out / "tensorboard").glob("events*"))
    assert json.loads((out / "recipe.json").read_text())["steps"] == 60


def test_resuming_after_a_kill_gives_the_same_weights(
    base_with_dropout: Path, pairs: list[Path], tmp_path: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert run(arguments(pairs, base_with_dropout, straight)) == 0
    command = [sys.executable, "-m", "coil.cli.main", *arguments(pairs, base_with_dropout, killed)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((killed / "checkpoints").glob("step-*")) and time.monotonic() < deadline:
        assert process.poll() is None, "ended before its first checkpoint"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (killed / "model.safetensors").exists()
    assert run([*arguments(pairs, base_with_dropout, killed), "--resume"]) == 0
    expected, got = weights(straight), weights(killed)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    steps = [json.loads(line)["step"] for line in (killed / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)


def test_resuming_with_other_options_is_refused(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    assert run(arguments(pairs, base, tmp_path / "m", steps=4)) == 0
    files = TrainingFiles(pairs, str(base), tmp_path / "m")
    with pytest.raises(OptionMismatch, match="lr was"):
        train(files, replace(TINY, steps=4, lr=0.5), "cpu", resume=True)


def test_two_processes_train_like_one(base: Path, pairs: list[Path], negatives: Path, tmp_path: Path) -> None:
    """Negatives cross processes: the joined batch gives the same weights, whoever encodes which half."""
    one, two = tmp_path / "one", tmp_path / "two"
    extra = ["--negatives", str(negatives), "--teacher", "hybrid", "--keep", "1.0", "--chunk-tokens", "100"]
    assert run([*arguments(pairs, base, one, steps=5), *extra]) == 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = []
    for rank in range(2):
        environment = {
            **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true",
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "coil.cli.main", *arguments(pairs, base, two, steps=5), *extra]
        processes.append(subprocess.Popen(command, env=environment))
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    expected, got = weights(one), weights(two)
    start = {name: w for name, w in load_file(base / "model.safetensors").items() if name in expected}
    moved = max(float((expected[name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-3
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, atol=2e-5, rtol=1e-3, msg=name)


def test_a_second_round_starts_from_the_first_model(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    first, mined = tmp_path / "first", tmp_path / "second.jsonl"
    assert run(arguments(pairs, base, first, steps=4)) == 0
    flags = [a for p in pairs for a in ("--pairs", str(p))]
    assert run(["mine", "--model", str(first), "--device", "cpu", "--out", str(mined), *flags]) == 0
    assert run([*arguments(pairs, first, tmp_path / "second", steps=2), "--negatives", str(mined)]) == 0
    with pytest.raises(OptionMismatch, match="n_t=8"):
        train(TrainingFiles(pairs, str(first), tmp_path / "odd"), replace(TINY, n_t=8), "cpu")


def test_a_teacher_file_is_read_and_used(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    scores = tmp_path / "teacher.jsonl"
    lines = [
        {"at": f"first:{i}", "scores": {f"first:{i}": 5.0, f"first:{i % 24 + 1}": 1.0}} for i in range(1, 25)
    ]
    scores.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [*arguments(pairs[:1], base, tmp_path / "m", steps=10, queries=20), "--teacher", "file"]
    assert run([*command, "--teacher-scores", str(scores)]) == 0
    lines = [json.loads(line) for line in (tmp_path / "m" / "metrics.jsonl").read_text().splitlines()]
    assert [line["teacher"] > 0 for line in lines if "loss" in line] == [True]
    scores.write_text('{"at": "first:1", "scores": {"first:999": 1}}\n')
    with pytest.raises(BadLine, match=r"teacher.jsonl, line 1: .*first:999"):
        train(
            TrainingFiles(pairs[:1], str(base), tmp_path / "n", teacher=scores),
            replace(TINY, teacher="file"),
            "cpu",
        )


def test_the_paper_preset_is_the_papers_recipe() -> None:
    paper = PRESETS["paper"]
    assert (paper.n_t, paper.n_c, paper.pooling, paper.sentence_norm) == (32, 768, "cls", "none")
    assert (paper.lr, paper.epochs, paper.warmup, paper.queries, paper.hard_negatives) == (
        3e-6,
        5.0,
        0.1,
        8,
        7,
    )
    assert (paper.document_length, paper.validation_queries, paper.list_key, paper.unlisted) == (
        512, 512, "wordpiece", "nothing",
    )  # fmt: skip
    assert (paper.keep, paper.teacher, paper.spans, paper.token_only, paper.one_source, paper.freeze) == (
        0.0, "none", 0.0, 0.0, False, "nothing",
    )  # fmt: skip


# Negatives


def test_mined_negatives_are_never_positives(pairs: list[Path], negatives: Path) -> None:
    lines = [json.loads(line) for line in negatives.read_text().splitlines()]
    texts = {
        f"{p.stem}:{i}": json.loads(line)
        for p in pairs
        for i, line in enumerate(p.read_text().splitlines(), 1)
    }
    positives: dict[str, set[str]] = {}
    for pair in texts.values():
        positives.setdefault(pair["query"], set()).add(pair["positive"])
    assert len(lines) == 1 + 48
    for line in lines[1:]:
        assert line["negatives"]
        assert not {texts[n]["positive"] for n in line["negatives"]} & positives[texts[line["at"]]["query"]]
        assert {n.split(":")[0] for n in line["negatives"]} == {line["at"].split(":")[0]}


def test_negatives_from_a_run(pairs: list[Path], base: Path, tmp_path: Path) -> None:
    flags = [a for p in pairs for a in ("--pairs", str(p))]
    assert run(["mine", "--collection", str(tmp_path / "set"), *flags]) == 0
    ids = [json.loads(line)["_id"] for line in (tmp_path / "set" / "corpus.jsonl").read_text().splitlines()]
    queries = [
        json.loads(line)["_id"] for line in (tmp_path / "set" / "queries.jsonl").read_text().splitlines()
    ]
    rows = [f"{q} Q0 {d} {r} {10 - r} mine" for q in queries for r, d in enumerate(ids[:5], 1)]
    (tmp_path / "a.run").write_text("\n".join(rows) + "\n")
    out = tmp_path / "n.jsonl"
    assert run(["mine", "--run", str(tmp_path / "a.run"), "--out", str(out), *flags]) == 0
    found = {n for line in out.read_text().splitlines()[1:] for n in json.loads(line)["negatives"]}
    assert found == set(ids[:5])
    (tmp_path / "a.run").write_text("nobody Q0 first:1 1 2.0 mine\n")
    assert run(["mine", "--run", str(tmp_path / "a.run"), "--out", str(out), *flags]) == 1
    assert found == {n for line in out.read_text().splitlines()[1:] for n in json.loads(line)["negatives"]}


def test_negatives_of_other_pairs_are_refused(pairs: list[Path], negatives: Path, tmp_path: Path) -> None:
    changed = tmp_path / "first.jsonl"
    changed.write_text(pairs[0].read_text() + '{"query": "one more", "positive": "line"}\n')
    with pytest.raises(InputError, match="another first"):
        load([changed, pairs[1]], tmp_path / "d", [negatives])
    other = tmp_path / "third.jsonl"
    other.write_text(pairs[0].read_text())
    with pytest.raises(InputError, match="covers the pairs of third"):
        load([*pairs, other], tmp_path / "d", [negatives])


# Bad input


def test_a_broken_line_is_named_and_nothing_is_written(
    base: Path, pairs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text(pairs[0].read_text() + '{"query": "half a li\n')
    assert run(["mine", "--pairs", str(broken), "--out", str(tmp_path / "n.jsonl")]) == 1
    assert "broken.jsonl, line 25" in capsys.readouterr().err
    assert not list(tmp_path.glob("n.jsonl*"))
    assert run(arguments([broken], base, tmp_path / "m")) == 1
    assert "broken.jsonl, line 25" in capsys.readouterr().err
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_an_output_folder_in_use_or_unwritable_is_refused(
    base: Path, pairs: list[Path], tmp_path: Path
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("keep me")
    with pytest.raises(OutputError, match="not empty"):
        train(TrainingFiles(pairs, str(base), tmp_path / "full"), TINY, "cpu")
    assert (tmp_path / "full" / "precious.txt").read_text() == "keep me"
    (tmp_path / "file").write_text("a file, not a folder")
    with pytest.raises(OutputError, match="cannot be written"):
        train(TrainingFiles(pairs, str(base), tmp_path / "file" / "model"), TINY, "cpu")


def test_a_missing_extra_gives_the_pip_command(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    hide = "import sys; sys.modules['torch'] = None; from coil.cli.main import main; main()"
    command = [sys.executable, "-c", hide, *arguments(pairs, base, tmp_path / "m")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "pip install 'coil-ir[train]'" in result.stderr
    assert "Traceback" not in result.stderr


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(OptionMismatch, match="at least one"):
        _ = replace(TINY, n_t=0, n_c=0).config
    with pytest.raises(OptionMismatch, match="n_c = 0"):
        replace(TINY, n_c=0, keep=1.0)
    with pytest.raises(OptionMismatch, match="share between"):
        replace(TINY, spans=1.5)
