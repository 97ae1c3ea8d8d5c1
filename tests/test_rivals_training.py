"""ColBERT, cross-encoder and query writer in the shared loop: learning, resuming, saving, bad input."""

from __future__ import annotations

import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from coil.cli.main import run
from coil.errors import CoilError, InputError, MissingModelFile, ModelError, OptionMismatch, WrongShape
from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import BatchPlan
from coil.training.learner import Learner, Setting
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData, load_pairs
from coil.training.prepared_pairs import prepare_pairs
from coil.training.processes import Processes
from coil.training.starting_point import starting_model
from coil.training.train import TrainingFiles, make_learner, train
from coil.vectors.config import ModelConfig
from coil.vectors.cross_encoder import CrossEncoder
from coil.vectors.late_interaction import LateInteractionModel
from coil.vectors.query_writer import QueryWriter
from tests.tiny import make_base
from tests.training_data import TINY, load

COLBERT = replace(TINY, kind="colbert", n_t=8, n_c=0, fill=10)
CROSS = replace(TINY, kind="cross-encoder")
WRITER = replace(TINY, kind="seq2seq", head_lr=3e-3)
KINDS = [COLBERT, CROSS, WRITER]
by_kind = pytest.mark.parametrize("options", KINDS, ids=lambda o: o.kind)


def learner(base: Path, pairs: list[Path], folder: Path, options: TrainingOptions) -> Learner:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    data = load(pairs, folder, held_out=options.validation_queries)
    setting = Setting(options, Processes("cpu"), tokenizer, data, base)
    return make_learner(setting, starting_model(base, options, tokenizer))


def gradients(base: Path, pairs: list[Path], folder: Path, options: TrainingOptions) -> dict[str, Any]:
    made = learner(base, pairs, folder, options)
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    plan = BatchPlan(load(pairs, folder), options, tokenizer)
    loss = made.learn(plan.batch(0))["loss"]
    found = {name: p.grad for name, p in made.model.named_parameters() if p.grad is not None}
    return {"loss": torch.tensor(loss), **found}


@by_kind
def test_gradients_in_micro_batches_equal_those_of_the_whole_batch(
    base: Path, pairs: list[Path], tmp_path: Path, options: TrainingOptions
) -> None:
    whole = gradients(base, pairs, tmp_path, replace(options, micro_batch_tokens=10**6))
    parts = gradients(base, pairs, tmp_path, replace(options, micro_batch_tokens=70))
    assert whole.keys() == parts.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in whole.values())
    for name, gradient in whole.items():
        torch.testing.assert_close(parts[name], gradient, atol=2e-5, rtol=1e-3, msg=name)


LEARNING = {"colbert": (60, 0.6, 1e-3), "cross-encoder": (150, 0.8, 2e-3), "seq2seq": (150, 0.8, 3e-3)}


@by_kind
def test_training_lowers_the_loss_and_improves_on_the_start(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path, options: TrainingOptions
) -> None:
    """Measured on the pairs that were trained on: so few texts teach nothing about others."""
    steps, share, rate = LEARNING[options.kind]
    options = replace(options, steps=steps, queries=16, lr=rate, validation_queries=0)
    files = TrainingFiles(pairs, str(base), tmp_path / "model", [negatives])
    report = train(files, options, "cpu")
    assert report.outcome is None  # nothing is held out
    lines = [json.loads(line) for line in (tmp_path / "model" / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < share * losses[0]
    before = ranks_of_training_pairs(base, pairs, tmp_path / "before", options)
    after = ranks_of_training_pairs(tmp_path / "model", pairs, tmp_path / "after", options)
    assert after > before + 0.1, (before, after)


def ranks_of_training_pairs(base: Path, pairs: list[Path], folder: Path, options: TrainingOptions) -> float:
    """The validation's own measure, on queries that were not held out."""
    made = learner(base, pairs, folder, replace(options, validation_queries=1000))
    return float(made.reciprocal_ranks().mean())


@by_kind
def test_a_resumed_run_equals_an_uninterrupted_one(
    base_with_dropout: Path, pairs: list[Path], tmp_path: Path, options: TrainingOptions
) -> None:
    options = replace(options, checkpoint_every=3)
    weights = {}
    for name in ("straight", "resumed"):
        files = TrainingFiles(pairs, str(base_with_dropout), tmp_path / name)
        train(files, options, "cpu")
        if name == "resumed":
            shutil.rmtree(tmp_path / name / "checkpoints" / "step-0000006")
            (tmp_path / name / "model.safetensors").unlink()
            train(files, options, "cpu", resume=True)
        weights[name] = load_file(tmp_path / name / "model.safetensors")
    assert weights["straight"].keys() == weights["resumed"].keys()
    assert all(torch.equal(w, weights["resumed"][name]) for name, w in weights["straight"].items())
    start = load_file(base_with_dropout / "model.safetensors")
    moved = [name for name, w in weights["straight"].items() if not equal(w, start.get(own_name(name)))]
    assert len(moved) > 10


def own_name(name: str) -> str:
    """The name of a weight in the base model: a query writer has that model twice."""
    return name.removeprefix("encoder.") if name.startswith("encoder.e") else name


def equal(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and torch.equal(one, other)


@by_kind
def test_validation_is_the_same_before_and_after_saving(
    base: Path, pairs: list[Path], tmp_path: Path, options: TrainingOptions
) -> None:
    """What is saved is what was trained: `train` measures its model, then the saved one is measured anew."""
    options = replace(options, steps=20, validation_queries=1000)
    report = train(TrainingFiles(pairs, str(base), tmp_path / "model"), options, "cpu")
    assert report.outcome is not None
    again = learner(tmp_path / "model", pairs, tmp_path / "again", options).reciprocal_ranks()
    np.testing.assert_array_equal(again, report.outcome.end)
    assert len(again) == 4  # a tenth of the queries
    lines = (tmp_path / "model" / "metrics.jsonl").read_text()
    assert "validation_mrr_at_10" in lines
    saved = TrainingOptions.from_json(json.loads((tmp_path / "model" / "recipe.json").read_text()), "recipe")
    assert saved == options


def test_half_precision_is_read_back_as_fp32(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    for options, kind in ((COLBERT, LateInteractionModel), (CROSS, CrossEncoder), (WRITER, QueryWriter)):
        out = tmp_path / options.kind
        train(TrainingFiles(pairs, str(base), out), replace(options, half=True, steps=1), "cpu")
        assert {w.dtype for w in load_file(out / "model.safetensors").values()} == {torch.float16}
        model = kind.from_pretrained(out)
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


# The command


@pytest.mark.parametrize(
    ("kind", "more"),
    [("colbert", ["--n-t", "8", "--n-c", "0"]), ("cross-encoder", []), ("seq2seq", [])],
)
def test_the_command_trains_every_kind(
    base: Path, pairs: list[Path], tmp_path: Path, kind: str, more: list[str]
) -> None:
    command = [
        "train",
        "--preset",
        "paper",
        "--kind",
        kind,
        "--base",
        str(base),
        "--out",
        str(tmp_path / "m"),
    ]
    command += ["--pairs", str(pairs[0]), "--steps", "2", "--queries", "4", "--document-length", "48"]
    assert run([*command, "--device", "cpu", *more]) == 0
    with pytest.raises(MissingModelFile, match="is not a COIL model"):
        ModelConfig.load(tmp_path / "m")


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        (COLBERT, {"n_c": 8}), (COLBERT, {"keep": 1.0}), (COLBERT, {"teacher": "hybrid"}),
        (CROSS, {"token_only": 1.0}), (CROSS, {"token_init": "principal"}), (CROSS, {"non_negative": True}),
        (WRITER, {"teacher": "file"}),
        (WRITER, {"sentence_init": "principal"}), (WRITER, {"freeze_sentence": True}),
    ],
)  # fmt: skip
def test_options_of_another_kind_are_refused(options: TrainingOptions, changes: dict[str, Any]) -> None:
    with pytest.raises(OptionMismatch, match=f"{options.kind}.*--{next(iter(changes)).replace('_', '-')}"):
        replace(options, **changes)


# Second rounds and starts


def test_a_second_round_checks_the_shape(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    for options, changed, said in (
        (COLBERT, {"n_t": 4}, "n_t=4"),
        (CROSS, {"pooling": "mean"}, "pooling='mean'"),
    ):
        first = tmp_path / options.kind
        train(TrainingFiles(pairs, str(base), first), replace(options, steps=1), "cpu")
        second = TrainingFiles(pairs, str(first), tmp_path / f"{options.kind}-second")
        train(second, replace(options, steps=1), "cpu")
        with pytest.raises(OptionMismatch, match=said):
            train(replace(second, out=tmp_path / f"{options.kind}-odd"), replace(options, **changed), "cpu")


def test_colbert_starts_at_principal_directions(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    made = learner(base, pairs, tmp_path, replace(COLBERT, token_init="principal"))
    weight = made.model.tok_proj.weight.detach()  # type: ignore[union-attr, operator]
    product = weight @ weight.T
    torch.testing.assert_close(
        product, product[0, 0] * torch.eye(8), atol=1e-4 * float(product[0, 0]), rtol=0
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "mpnet", "distilbert"])
@pytest.mark.parametrize("options", [COLBERT, CROSS], ids=lambda o: o.kind)
def test_any_language_model_of_any_width_can_be_trained(
    pairs: list[Path], tmp_path: Path, kind: str, options: TrainingOptions
) -> None:
    wide = make_base(tmp_path / "base", kind, width=48)
    report = train(TrainingFiles(pairs, str(wide), tmp_path / "m"), replace(options, steps=2), "cpu")
    assert report.steps == 2


@pytest.mark.parametrize(
    ("kind", "writes"), [("bert", True), ("roberta", True), ("mpnet", False), ("distilbert", False)]
)
def test_queries_are_written_by_models_that_can_be_decoders(
    pairs: list[Path], tmp_path: Path, kind: str, writes: bool
) -> None:
    wide = make_base(tmp_path / "base", kind, width=48)
    files = TrainingFiles(pairs, str(wide), tmp_path / "m")
    if writes:
        assert train(files, replace(WRITER, steps=2), "cpu").steps == 2
    else:
        with pytest.raises(OptionMismatch, match=f"{kind} model cannot write queries"):
            train(files, replace(WRITER, steps=2), "cpu")


# Bad folders


@pytest.fixture(scope="module")
def trained(base: Path, pairs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    for options in KINDS:
        train(TrainingFiles(pairs, str(base), folder / options.kind), replace(options, steps=1), "cpu")
    return folder


LOADERS = {"colbert": LateInteractionModel, "cross-encoder": CrossEncoder, "seq2seq": QueryWriter}


@pytest.mark.parametrize(
    ("kind", "file", "key", "value", "said"),
    [
        ("colbert", "colbert.json", "n_t", 9, "tok_proj"),
        ("colbert", "colbert.json", "n_t", "8", "n_t is 8; it must be of type int"),
        ("colbert", "colbert.json", "odd", 1, "exactly the keys"),
        ("colbert", "colbert.json", "format", 2, "format"),
        ("cross-encoder", "cross_encoder.json", "pooling", "max", "one of cls, mean"),
        ("cross-encoder", "cross_encoder.json", "length", 4, "length 4"),
    ],
)
def test_a_shape_that_contradicts_the_weights_is_refused(
    trained: Path, tmp_path: Path, kind: str, file: str, key: str, value: object, said: str
) -> None:
    folder = shutil.copytree(trained / kind, tmp_path / "copy")
    shape = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**shape, key: value}))
    with pytest.raises(ModelError, match=said):
        LOADERS[kind].from_pretrained(folder)


@pytest.mark.parametrize("kind", LOADERS)
def test_missing_files_and_weights_are_named(trained: Path, tmp_path: Path, kind: str) -> None:
    for file in ("model.safetensors", "config.json", *(["heads.safetensors"] if kind != "seq2seq" else [])):
        folder = shutil.copytree(trained / kind, tmp_path / f"without-{file}")
        (folder / file).unlink()
        with pytest.raises(CoilError, match=file):
            LOADERS[kind].from_pretrained(folder)
    folder = shutil.copytree(trained / kind, tmp_path / "one-less")
    file = "model.safetensors" if kind == "seq2seq" else "heads.safetensors"
    weights = load_file(folder / file)
    dropped = next(name for name in weights if "crossattention" in name or kind != "seq2seq")
    save_file({n: w for n, w in weights.items() if n != dropped}, folder / file, metadata={"format": "pt"})
    with pytest.raises(WrongShape, match=dropped):
        LOADERS[kind].from_pretrained(folder)


@pytest.mark.parametrize("kind", LOADERS)
def test_a_folder_of_another_kind_is_named(trained: Path, base: Path, kind: str) -> None:
    for other in (base, *(trained / name for name in LOADERS if name != kind)):
        with pytest.raises(ModelError, match="not a") as caught:
            LOADERS[kind].from_pretrained(other)
        assert caught.value.remedy


def test_texts_of_the_wrong_length_are_refused(base: Path, pairs: list[Path], tmp_path: Path) -> None:
    """The tiny model takes 80 tokens: a pair is cut to them, a passage of its own must fit."""
    files = TrainingFiles(pairs, str(base), tmp_path / "m")
    with pytest.raises(OptionMismatch, match="supports only 80"):
        train(files, replace(COLBERT, document_length=90), "cpu")
    train(files, replace(CROSS, document_length=78, steps=1), "cpu")
    assert CrossEncoder.from_pretrained(tmp_path / "m").shape.length == 80


# Prepared pairs


def test_prepared_pairs_train_the_same_model_and_are_made_once(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(TINY, steps=4, validation_queries=4)
    weights = []
    for name, prepared in (("plain", None), ("first", tmp_path / "kept"), ("second", tmp_path / "kept")):
        if name == "second":  # nothing is tokenized any more
            monkeypatch.setattr("coil.training.prepared_pairs.load_pairs", None)
        files = TrainingFiles(pairs, str(base), tmp_path / name, [negatives], prepared=prepared)
        train(files, options, "cpu")
        weights.append(load_file(tmp_path / name / "model.safetensors"))
    for other in weights[1:]:
        assert all(torch.equal(weight, other[name]) for name, weight in weights[0].items())


def test_prepared_pairs_are_told_apart_and_damage_is_named(
    base: Path, pairs: list[Path], negatives: Path, tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    kept = tmp_path / "kept"
    prepare_pairs(kept, pairs, [negatives], base, tokenizer, TINY)
    for changes in (
        {},
        {"lr": 1.0},
        {"n_t": 9},
        {"kind": "cross-encoder"},
    ):  # which the tokens do not depend on
        prepare_pairs(kept, pairs, [negatives], base, tokenizer, replace(TINY, **changes))  # type: ignore[arg-type]
        assert len(list(kept.iterdir())) == 1
    for changes in ({"seed": 1}, {"list_key": "word"}, {"document_length": 40}, {"validation_queries": 2}):
        before = len(list(kept.iterdir()))
        prepare_pairs(kept, pairs, [negatives], base, tokenizer, replace(TINY, **changes))  # type: ignore[arg-type]
        assert len(list(kept.iterdir())) == before + 1
    prepare_pairs(kept, pairs, [], base, tokenizer, TINY)
    assert len(list(kept.iterdir())) == 6
    for arrays in kept.glob("*/pairs.safetensors"):
        arrays.write_bytes(arrays.read_bytes()[:100])
    with pytest.raises(InputError, match="damaged") as caught:
        prepare_pairs(kept, pairs, [negatives], base, tokenizer, TINY)
    assert "delete this folder" in caught.value.remedy
    with pytest.raises(InputError, match=r"none\.jsonl cannot be read"):
        prepare_pairs(kept, [tmp_path / "none.jsonl"], [], base, tokenizer, TINY)


def test_the_seed_matters_to_prepared_pairs_only_if_queries_are_held_out(
    base: Path, pairs: list[Path], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    for seed in (1, 2):
        options = replace(TINY, validation_queries=0, seed=seed)
        prepare_pairs(tmp_path / "kept", pairs, [], base, tokenizer, options)
    assert len(list((tmp_path / "kept").iterdir())) == 1


def test_pairs_can_be_prepared_by_several_runs_at_once(
    base: Path, pairs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    both = threading.Barrier(2, timeout=60)

    def load_at_once(*given: Any) -> PairData:
        data = load_pairs(*given)
        both.wait()  # neither is finished when the other begins
        return data

    monkeypatch.setattr("coil.training.prepared_pairs.load_pairs", load_at_once)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(
            lambda _: prepare_pairs(tmp_path / "kept", pairs, [], base, tokenizer, TINY), range(2)
        )
    assert len(list((tmp_path / "kept").iterdir())) == 1
    assert first.digest == second.digest
    assert len(first.passages) == len(second.passages) > 0
