"""The training commands: learning, resuming, several processes, second rounds, negatives, bad input."""

from __future__ import annotations

import json
import os
import shutil
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
from safetensors.torch import load_file

from coil.cli.main import run
from coil.errors import BadLine, InputError, OptionMismatch, OutputError
from coil.tokens.profile import PAPER, WORDS
from coil.training.options import PRESETS
from coil.training.train import TrainingFiles, train
from coil.vectors.config import ModelConfig
from coil.vectors.torch_encoder import TorchEncoder
from tests.training_data import TINY, load

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


BY_WORD = {
    "list-key": "word", "unlisted": "stopwords", "weight": "bm25", "alpha": 1.0, "beta": 0.2, "gamma": 2.0,
    "gamma-rule": "root", "factor-lr": 0.05,
}  # fmt: skip


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All weights, and the factors that are saved in the profile."""
    profile = ModelConfig.load(folder).profile
    factors = torch.tensor([profile.alpha, profile.beta, profile.gamma])
    found = {**load_file(folder / "model.safetensors"), **load_file(folder / "heads.safetensors")}
    return {**found, "factors": factors}


def test_training_learns_and_writes_its_metrics(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    command = arguments(pairs, base, out, steps=60, **{"validation-queries": 12})
    assert run([*command, "--negatives", str(negatives), "--tensorboard"]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    assert [line["step"] for line in lines if "validation_mrr_at_10" in line] == list(range(0, 61, 6))
    assert list((out / "tensorboard").glob("events*"))
    assert json.loads((out / "recipe.json").read_text())["steps"] == 60
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in out.rglob("*") if path.is_file()}
    assert {"model.safetensors", "heads.safetensors", "weights.safetensors", "tokenizer.json"} < modes.keys()
    assert set(modes.values()) == {modes["recipe.json"]}  # safetensors makes its files private


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_language_model_is_averaged_with_its_start(
    base: Path, pairs: list[Path], tmp_path: Path, interrupted: bool
) -> None:
    """The mean of start and end, also when the run was resumed; the projections stay as trained."""
    files = TrainingFiles(pairs, str(base), tmp_path / "end")
    options = replace(TINY, checkpoint_every=3)
    train(files, options, "cpu")
    start, end = load_file(base / "model.safetensors"), weights(tmp_path / "end")
    averaging, mean_files = replace(options, average=0.25), replace(files, out=tmp_path / "mean")
    if interrupted:
        train(mean_files, averaging, "cpu")
        for path in (tmp_path / "mean").glob("checkpoints/*6*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    train(mean_files, averaging, "cpu", resume=interrupted)
    mean = weights(tmp_path / "mean")
    moved = 0
    for name, weight in end.items():
        expected = weight
        if name in start and start[name].shape == weight.shape:
            expected = 0.25 * start[name] + 0.75 * weight
            moved += not torch.allclose(expected, weight, atol=1e-6)
        torch.testing.assert_close(mean[name], expected, atol=1e-5, rtol=1e-5)
    assert moved > 10


def test_training_by_word_learns_the_factors_too(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    command = arguments(pairs, base, out, steps=60, **{**BY_WORD, "queries": 16})
    assert run([*command, "--negatives", str(negatives)]) == 0
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.8 * losses[0]
    learned = weights(out)["factors"]
    shown = [lines[-1 - ("validation_mrr_at_10" in lines[-1])][name] for name in ("alpha", "beta", "gamma")]
    assert shown == pytest.approx(learned.tolist(), rel=1e-4)
    assert (learned > 0).all()
    assert ((learned / torch.tensor([1.0, 0.2, 2.0])).log().abs() > 0.02).all()
    assert json.loads((out / "recipe.json").read_text())["alpha"] == 1.0  # where it started


def test_no_epochs_write_the_model_as_it_starts(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "start"
    command = arguments(pairs, base, out, **{**BY_WORD, "n-t": 4})
    command[command.index("--steps") : command.index("--steps") + 2] = ["--epochs", "0"]
    flags = ["--pooling", "mean", "--sentence-norm", "unit", "--sentence-init", "principal"]
    assert run([*command, *flags, "--token-init", "principal"]) == 0
    found, start = weights(out), load_file(base / "model.safetensors")
    assert all(torch.equal(found[name], start[name]) for name in start if name in found)
    assert found["factors"].tolist() == pytest.approx([1.0, 0.2, 2.0], rel=1e-6)
    sentence, token = found["cls_proj.weight"], found["tok_proj.weight"]
    torch.testing.assert_close(sentence @ sentence.T, torch.eye(6), atol=1e-5, rtol=0)
    scale = (token @ token.T)[0, 0]
    torch.testing.assert_close(token @ token.T, scale * torch.eye(4), atol=1e-4 * float(scale), rtol=0)
    assert not (out / "checkpoints").exists()
    encoder = TorchEncoder(out)
    vectors = torch.from_numpy(
        np.concatenate([t.vectors for t in encoder.encode_documents(p["positive"] for p in read(pairs))])
    )
    assert 0.5 < float(vectors.square().sum(1).mean().sqrt()) < 2.0  # of length 1 on average


def read(pairs: list[Path]) -> list[dict[str, str]]:
    return [json.loads(line) for path in pairs for line in path.read_text().splitlines()]


def test_more_directions_than_there_are_are_refused(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    """The tiny language model is 32 wide."""
    for name, changes in (
        ("n-c", {"sentence_init": "principal", "n_c": 33}),
        ("n-t", {"token_init": "principal", "n_t": 33}),
    ):
        files = TrainingFiles(pairs, str(base), tmp_path / name)
        with pytest.raises(OptionMismatch, match="33 principal directions are not available") as caught:
            train(files, replace(TINY, epochs=0.0, steps=0, **changes), "cpu")  # type: ignore[arg-type]
        assert caught.value.remedy == f"set --{name} to at most 32"


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
    assert steps.count(0) == 1


def test_an_interruption_saves_a_checkpoint_to_go_on_from(
    base: Path, pairs: list[Path], tmp_path: Path
) -> None:
    out = tmp_path / "model"
    flags = arguments(pairs, base, out, steps=100_000, **{"checkpoint-every": 0, "validate-every": 0})
    process = subprocess.Popen(
        [sys.executable, "-m", "coil.cli.main", *flags], stderr=subprocess.PIPE, text=True
    )
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.is_file() and '"loss"' in metrics.read_text()) and time.monotonic() < deadline:
        assert process.poll() is None, "ended before its tenth step"
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "continue with --resume" in said
    assert "Traceback" not in said
    [checkpoint] = (out / "checkpoints").glob("step-*")
    assert int(checkpoint.name.removeprefix("step-")) >= 10


def test_resuming_with_other_options_is_refused(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    assert run(arguments(pairs, base, tmp_path / "m", steps=4)) == 0
    files = TrainingFiles(pairs, str(base), tmp_path / "m")
    with pytest.raises(OptionMismatch, match="lr was"):
        train(files, replace(TINY, steps=4, lr=0.5), "cpu", resume=True)


@pytest.mark.parametrize("recipe", [{}, BY_WORD], ids=["paper", "words"])
def test_two_processes_train_like_one(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path, recipe: dict[str, object]
) -> None:
    """Negatives cross processes: the joined batch gives the same weights, whoever encodes which half."""
    one, two = tmp_path / "one", tmp_path / "two"
    extra = [
        "--negatives",
        str(negatives),
        "--teacher",
        "hybrid",
        "--keep",
        "1.0",
        "--micro-batch-tokens",
        "100",
    ]
    assert run([*arguments(pairs, base, one, steps=5, **recipe), *extra]) == 0
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
        flags = arguments(pairs, base, two, steps=5, **recipe)
        command = [sys.executable, "-m", "coil.cli.main", *flags, *extra]
        processes.append(subprocess.Popen(command, env=environment))
    assert [process.wait(timeout=240) for process in processes] == [0, 0]
    expected, got = weights(one), weights(two)
    start = {name: w for name, w in load_file(base / "model.safetensors").items() if name in expected}
    moved = max(float((expected[name] - start[name]).abs().max()) for name in start)
    assert moved > 1e-3
    for name, weight in expected.items():
        torch.testing.assert_close(got[name], weight, atol=2e-5, rtol=1e-3, msg=name)


@pytest.mark.parametrize("recipe", [{}, BY_WORD], ids=["paper", "words"])
def test_a_second_round_starts_from_the_first_model(
    base: Path, pairs: list[Path], tmp_path: Path, recipe: dict[str, object]
) -> None:
    first, mined = tmp_path / "first", tmp_path / "second.jsonl"
    assert run(arguments(pairs, base, first, steps=4, **recipe)) == 0
    flags = [a for p in pairs for a in ("--pairs", str(p))]
    assert run(["mine", "--model", str(first), "--device", "cpu", "--out", str(mined), *flags]) == 0
    second = arguments(pairs, first, tmp_path / "second", steps=2, **recipe)
    assert run([*second, "--negatives", str(mined)]) == 0
    rates = {"head-lr": 1e-12, "factor-lr": 1e-12}
    still = arguments(pairs, first, tmp_path / "still", steps=1, lr=0, **{**recipe, **rates})
    assert run([*still, "--sentence-init", "principal"]) == 0
    before, after = weights(first), weights(tmp_path / "still")
    assert all(torch.allclose(before[name], after[name], atol=1e-6) for name in before)
    for options, message in ((replace(TINY, n_t=8), "n_t=8"), (replace(TINY, gamma=3.0), "gamma=3.0")):
        with pytest.raises(OptionMismatch, match=message):
            train(TrainingFiles(pairs, str(first), tmp_path / "odd"), options, "cpu")


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
    assert paper.config.profile == PAPER
    assert paper.validation_queries == 512
    assert (paper.keep, paper.teacher, paper.spans, paper.token_only, paper.one_source, paper.freeze) == (
        0.0, "none", 0.0, 0.0, False, "nothing",
    )  # fmt: skip


def test_the_default_preset_is_the_words_profile() -> None:
    config = PRESETS["default"].config
    factors = {"alpha": WORDS.alpha, "beta": WORDS.beta, "gamma": WORDS.gamma}
    assert replace(config.profile, **factors) == WORDS  # type: ignore[arg-type]
    assert (config.n_t, config.n_c, config.pooling, config.sentence_norm) == (32, 256, "mean", "unit")


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
    with pytest.raises(InputError, match="a different version of first"):
        load([changed, pairs[1]], tmp_path / "d", [negatives])
    other = tmp_path / "third.jsonl"
    other.write_text(pairs[0].read_text())
    with pytest.raises(InputError, match="covers the pairs of third"):
        load([*pairs, other], tmp_path / "d", [negatives])


@pytest.mark.parametrize("line", ['{"query": "a"}', '{"format": "coil-negatives-1", "pairs": ["first"]}', ""])
def test_what_is_no_negatives_file_is_named(pairs: list[Path], tmp_path: Path, line: str) -> None:
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(f"{line}\n")
    with pytest.raises(BadLine, match=r"wrong\.jsonl, line 1: not the first line of a negatives file"):
        load(pairs, tmp_path / "d", [wrong])


@pytest.mark.parametrize("depth", ["0", "-5"])
def test_a_depth_of_nothing_is_refused(pairs: list[Path], tmp_path: Path, depth: str) -> None:
    out = tmp_path / "n.jsonl"
    assert run(["mine", "--pairs", str(pairs[0]), "--out", str(out), "--depth", depth]) == 2
    assert not out.exists()


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
    mining = ["mine", "--pairs", str(pairs[0]), "--out", str(tmp_path / "n.jsonl")]
    for command in (arguments(pairs, base, tmp_path / "m"), mining):
        result = subprocess.run(
            [sys.executable, "-c", hide, *command], capture_output=True, text=True, check=False
        )
        assert result.returncode == 1
        assert "pip install 'coil-ir[train]'" in result.stderr
        assert "Traceback" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": -1}, {"lr": -1.0}, {"lr": float("nan")}, {"dropout": 2.0}, {"teacher": "hybird"},
        {"n_t": "x"}, {"contrast": 0.0}, {"validation_queries": -1}, {"bf16": 1}, {"head_lr": float("inf")},
        {"weight": "idf"}, {"alpha": -1.0}, {"b": 2.0}, {"gamma": "8"},
    ],
)  # fmt: skip
def test_values_that_make_no_sense_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(
        OptionMismatch, match=next(iter(changes)) if "contrast" not in changes else "all loss weights are 0"
    ):
        replace(TINY, **changes)  # type: ignore[arg-type]


def test_a_diverged_training_stops_and_saves_no_model(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "m"
    assert run(arguments(pairs, base, out, lr=1e30, clip=0)) == 1
    assert not (out / "model.safetensors").exists()


def test_resuming_on_other_pairs_is_refused(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    assert run(arguments(pairs, base, tmp_path / "m", steps=4)) == 0
    assert run([*arguments(pairs[:1], base, tmp_path / "m", steps=4), "--resume"]) == 1


def test_contradicting_options_are_refused() -> None:
    with pytest.raises(OptionMismatch, match="both must be at least 0"):
        _ = replace(TINY, n_t=0, n_c=0).config
    with pytest.raises(OptionMismatch, match="n_c is 0"):
        replace(TINY, n_c=0, keep=1.0)
    with pytest.raises(OptionMismatch, match="share between"):
        replace(TINY, spans=1.5)
    with pytest.raises(OptionMismatch, match="alpha, beta and gamma are 0"):
        replace(TINY, alpha=0.0, beta=0.0, gamma=0.0)
    with pytest.raises(OptionMismatch, match="the score has no parts"):
        replace(TINY, n_t=0, gamma=0.0)
