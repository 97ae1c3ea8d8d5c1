"""The committed list of training runs, and its way from preparing to a comparison, with a tiny base model."""

from __future__ import annotations

import json
import lzma
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from coil.cli.main import run
from coil.comparison.config import Config, read_config
from coil.errors import InputError
from coil.training.train import TrainingFiles, train
from experiments.laboratory import CONFIGS, is_finished, main, runs_of
from experiments.parallel_comparison import main as compare_in_parallel
from tests.tiny import make_base
from tests.training_data import TINY
from tools.pack_models import _apply, _distance, pack, unpack

ROOT = Path(__file__).resolve().parent.parent


def configs(*paths: Path) -> list[Config]:
    return [
        read_config(path, {"lab": "LAB", "data": "DATA", "device": "cpu", "weights": "int8"})
        for path in paths
    ]


# The list


def test_every_system_has_the_same_training_but_for_its_shape() -> None:
    in_domain, zero_shot = configs(*CONFIGS)
    recipes = [training.recipe for config in (in_domain, zero_shot) for training in config.trainings.values()]
    assert len(recipes) == 2
    assert recipes[0] == recipes[1]
    made = [one.recipe() for one in runs_of([in_domain, zero_shot])]
    for name in (
        "steps",
        "queries",
        "hard_negatives",
        "lr",
        "head_lr",
        "lengths",
        "seed",
        "freeze",
        "epochs",
    ):
        assert len({getattr(recipe, name) for recipe in made}) == 1, name


def test_both_tables_have_every_system_of_the_paper() -> None:
    learned = {"deepct", "doct5query", "dense", "colbert", "coil-tok", "coil-full", "coil", "cross-encoder"}
    for config in configs(*CONFIGS):
        assert learned | {"bm25s", "hybrid"} <= {system["system"] for system in config.systems}
        plan = config.plan()  # which checks options, labels and trainings
        assert {entry.kind for entry in plan.entries if entry.training} == learned
    listed = runs_of(configs(*CONFIGS))
    assert len({one.name for one in listed}) == len(listed) == 20
    shapes = [(one.recipe().n_c, one.recipe().n_t) for one in listed if one.kind in ("coil-full", "coil-tok")]
    assert {(384, 32), (384, 8), (128, 32), (128, 8), (0, 32), (0, 8)} <= set(shapes)  # the paper's table 3


def test_the_tables_for_cpus_have_the_systems_of_the_larger_one() -> None:
    folder = ROOT / "experiments"
    in_domain, cpu, dimensions = configs(CONFIGS[0], folder / "cpu.toml", folder / "cpu_dimensions.toml")
    names = [
        {(system["name"], system["system"]) for system in one.systems} for one in (in_domain, cpu, dimensions)
    ]
    assert names[0] <= names[1] | names[2]
    assert cpu.plan()
    assert dimensions.plan()
    assert len(runs_of([cpu])) == 8
    trained = [one.recipe() for one in runs_of([cpu, dimensions])]
    assert len(trained) == 12
    assert len({(recipe.steps, recipe.queries, recipe.lr, recipe.lengths) for recipe in trained}) == 1
    assert cpu.trainings == dimensions.trainings  # so models and indexes of one serve the other
    assert "insuranceqa" in cpu.collections[0]["source"]  # in-domain; the others are not trained on
    for training in cpu.trainings.values():
        assert [Path(pairs).name for pairs in training.pairs] == ["insuranceqa_train.jsonl.xz"]


def test_nothing_is_trained_on_what_it_is_tested_on() -> None:
    _, zero_shot = configs(*CONFIGS)
    [mixed] = zero_shot.trainings.values()
    names = " ".join(mixed.pairs)
    assert len(mixed.pairs) == 9
    assert not any(collection["source"].split("/")[-1] in names for collection in zero_shot.collections)


# From preparing to comparing


@pytest.fixture
def small(tmp_path: Path, pairs: list[Path]) -> Path:
    """A list of two systems, and its data."""
    (tmp_path / "data" / "train").mkdir(parents=True)
    for path in pairs:
        with lzma.open(tmp_path / "data" / "train" / f"{path.stem}.jsonl.xz", "wt") as file:
            file.write(path.read_text())
    recipe = {
        name: getattr(TINY, name)
        for name in ("queries", "hard_negatives", "query_length", "document_length", "validation_queries")
    }
    value = {
        "training": {
            "both": {
                "pairs": ["{lab}/pairs/first.jsonl.xz", "{lab}/pairs/second.jsonl.xz"],
                "negatives": ["{lab}/negatives/both.jsonl"],
                "base": "{lab}/base",
                "recipe": {**recipe, "steps": 6, "lr": 1e-3, "half": True, "freeze": "embeddings"},
            }
        },
        "system": [
            {"name": "BM25", "system": "bm25s"},
            {"name": "ColBERT", "system": "colbert", "training": "both", "n_t": 8, "fill": 8},
            {"name": "weights", "system": "deepct", "training": "both"},
            {"name": "weights again", "system": "deepct", "training": "both", "candidates": "BM25"},
            {"name": "written", "system": "doct5query", "training": "both", "length": 48, "longest": 8},
        ],
    }  # fmt: skip
    (tmp_path / "small.json").write_text(json.dumps(value))
    make_base(tmp_path / "tiny")
    return tmp_path


def arguments(folder: Path, what: str, *more: str) -> list[str]:
    found = [what, *more, "--lab", str(folder / "lab"), "--config", str(folder / "small.json")]
    return [*found, "--out", str(folder / "runs"), "--device", "cpu"]


def test_models_are_prepared_trained_written_with_and_installed(
    small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    main(arguments(small, "prepare", str(small / "data"), "--base", str(small / "tiny")))
    main(arguments(small, "train", "--at-once", "3"))
    said = capsys.readouterr()
    for name in ("both/colbert-n_t8", "both/deepct", "both/doct5query"):
        assert is_finished(small / "runs" / name), said.err
        assert not (small / "runs" / name / "checkpoints").exists()
        assert re.search(rf"\| {name} \| 6 \| \d+ \| [01]\.\d+ \| [01]\.\d+ \| \d", said.out)
    main(arguments(small, "train"))
    assert "3 of 3 runs are finished" in capsys.readouterr().err
    collection = small / "set"
    collection.mkdir()
    (collection / "corpus.jsonl").write_text('{"_id": "a", "text": "the river bank"}\n')
    main(arguments(small, "write", "--collections", str(collection)))
    assert "both/doct5query: set, 1 documents" in capsys.readouterr().err
    assert list((small / "runs" / "both" / "doct5query.queries").glob("*.jsonl"))
    work = small / "work"
    main(arguments(small, "install", "--work", str(work)))
    models = [path for path in (work / "models").iterdir() if (path / "kept.json").is_file()]
    assert len(models) == 3
    for model in models:
        facts = json.loads((model / "kept.json").read_text())["facts"]
        assert facts["steps"] == 6
        assert facts["seconds"] > 0
        exported = (model / "content" / "coil.json").is_file()
        assert exported == (model / "content" / "model.int8.onnx").is_file()
    # `coil compare` finds all of them: it has nothing to train.
    monkeypatch.setattr("coil.systems.fitting.fit_model", None)
    compare = ["compare", "--config", str(small / "small.json"), "--set", f"lab={small / 'lab'}"]
    assert run([*compare, "--work", str(work), "--train-only"]) == 0
    monkeypatch.undo()
    compare_both_ways(small, collection, work, capsys)


def compare_both_ways(small: Path, collection: Path, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every model in a process of its own gives what one process gives, and leaves nothing to do."""
    (collection / "queries.jsonl").write_text('{"_id": "1", "text": "river"}\n')
    (collection / "qrels").mkdir()
    (collection / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n")
    config = small / "compared.json"
    value = {**json.loads((small / "small.json").read_text()), "collection": [{"source": "{data}/set"}]}
    config.write_text(json.dumps(value))
    settings = ["--set", f"lab={small / 'lab'}", "--set", f"data={small}"]
    shutil.copytree(work / "models", small / "alone" / "models")
    capsys.readouterr()
    apart = [str(config), *settings, "--work", str(work), "--out", str(small / "apart")]
    compare_in_parallel([*apart, "--at-once", "2"])
    said = capsys.readouterr().err
    assert said.count("done after") == 4  # three models and the collection
    assert len(list((work / "runs").iterdir())) == 5
    assert not list((work / "parts").iterdir())
    logs = (small / "apart" / "logs" / "set--all-systems.txt").read_text()
    assert "set: indexing for" not in logs
    assert "set: searching with" not in logs
    alone = ["compare", "--config", str(config), *settings, "--work", str(small / "alone")]
    assert run([*alone, "--out", str(small / "together")]) == 0
    names = ("per_query.jsonl", "runs/colbert.trec", "runs/weights-again.trec", "runs/written.trec")
    for name in names:
        assert (small / "apart" / "set" / name).read_text() == (small / "together" / name).read_text()


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_list_stops_at_checkpoints(small: Path, how: signal.Signals) -> None:
    """Also when the process that started the runs is killed."""
    value = json.loads((small / "small.json").read_text())
    value["training"]["both"]["recipe"] |= {"steps": 100_000, "checkpoint_every": 5}
    value["system"] = value["system"][1:2]
    (small / "small.json").write_text(json.dumps(value))
    main(arguments(small, "prepare", str(small / "data"), "--base", str(small / "tiny")))
    command = [sys.executable, "-m", "experiments.laboratory", *arguments(small, "train")]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    folder = small / "runs" / "both" / "colbert-n_t8"
    deadline = time.monotonic() + 240
    while not list((folder / "checkpoints").glob("step-*")) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(how)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == (0 if how == signal.SIGINT else -9)
    assert ("(unfinished)" in said) == (how == signal.SIGINT)
    while not (folder / "training.json").is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.2)
    facts = json.loads((folder / "training.json").read_text())
    assert facts["interrupted"]
    assert facts["steps"] >= 5
    assert not is_finished(folder)
    [checkpoint] = sorted((folder / "checkpoints").iterdir())[-1:]
    assert checkpoint.name == f"step-{facts['steps']:07d}"


def test_a_missing_source_is_named(small: Path) -> None:
    with pytest.raises(InputError, match=r"first\.jsonl\.xz"):
        main(arguments(small, "prepare", str(small / "nowhere"), "--base", str(small / "tiny")))


# Carrying


@pytest.mark.parametrize("kind", ["cross-encoder", "seq2seq"])
def test_a_packed_model_comes_back_bit_for_bit(
    base: Path, pairs: list[Path], tmp_path: Path, kind: str
) -> None:
    half = Path(shutil.copytree(base, tmp_path / "base"))
    weights = {name: w.half() for name, w in load_file(base / "model.safetensors").items()}
    save_file(weights, half / "model.safetensors", metadata={"format": "pt"})
    model = tmp_path / "runs" / "both" / kind
    options = replace(TINY, kind=kind, steps=2, half=True, freeze="embeddings")  # type: ignore[arg-type]
    train(TrainingFiles(pairs, str(half), model), options, "cpu")
    parts = pack(model, half, tmp_path / "parts", 20_000)
    assert len(parts) > 1
    assert max(part.stat().st_size for part in parts) <= 20_000
    packed = sum(part.stat().st_size for part in parts)
    embeddings = sum(2 * w.numel() for name, w in weights.items() if "embeddings" in name)
    assert packed < sum(path.stat().st_size for path in model.glob("*.safetensors")) - embeddings / 2 + 40_000
    back = unpack(parts[0], half, tmp_path / "again")
    assert back == tmp_path / "again" / "both" / kind
    names = {path.name for path in model.iterdir() if path.is_file()}
    assert {path.name for path in back.iterdir()} == names
    for name in names - {"model.safetensors"}:
        assert (back / name).read_bytes() == (model / name).read_bytes()
    one, other = load_file(model / "model.safetensors"), load_file(back / "model.safetensors")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) and one[name].dtype == other[name].dtype for name in one)
    # Another base, and a part too few
    name = next(name for name in weights if "word_embeddings" in name)
    save_file({**weights, name: weights[name] + 1}, half / "model.safetensors")
    with pytest.raises(SystemExit, match="not the model that both"):
        unpack(parts[0], half, tmp_path / "wrong")
    parts[1].write_bytes(b"")
    with pytest.raises(SystemExit, match="damaged"):
        unpack(parts[0], half, tmp_path / "wrong")
    parts[-1].unlink()
    with pytest.raises(SystemExit, match="missing parts"):
        unpack(parts[0], half, tmp_path / "wrong")


def test_any_weight_is_restored_from_its_distance() -> None:
    """All numbers of fp16, negative zero, infinities and NaN too, from any other."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.uint16).view(torch.float16)
    for seed in range(3):
        start = every[torch.randperm(1 << 16, generator=torch.Generator().manual_seed(seed))]
        again = _apply(*_distance(every, start), start)
        assert torch.equal(again.view(torch.uint16).int(), every.view(torch.uint16).int())
    low, high = _distance(every[1000:1100], every[1010:1110])
    assert int(high.max()) == 0
    assert int(low.max()) <= 20
