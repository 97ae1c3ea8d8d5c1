"""The model that ships with the package: complete, small enough, true to its PyTorch weights, and able."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from coil.cli.main import run
from coil.errors import MissingModelFile, OptionMismatch
from coil.explanations.explanation import explain
from coil.hits.searcher import Searcher
from coil.texts.values import Document
from coil.vectors import backbone, model_files
from coil.vectors.export import export_model
from coil.vectors.model_files import bundled_model, bundled_weights, resolve_folder, resolve_weights
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from experiments.bundle import PACKAGED, RECIPE

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
BUNDLED = bundled_model()

TEXTS = [
    "The bank of the river was steep, and kingfishers nested in it.",
    "Cancel a running task and wait until it has finished.",
    "Vitamin D deficiency is associated with a higher risk of fractures in older adults.",
    "the effect of boundary layer suction on the lift of a swept wing",
]


# Query, word, a text with the word in the query's sense, one with it in another.
SENSES = [
    ("steep bank of a river", "bank", "The bank of the river was muddy.", "The bank gave me a loan."),
    ("bank account fees", "bank", "My bank charges for the account.", "We sat on the bank of the lake."),
    (
        "open an account at the bank",
        "bank",
        "The bank opened a new branch for savings accounts.",
        "Wild flowers grew on the bank of the stream.",
    ),
    (
        "python snake habitat",
        "python",
        "The python lives in wet forests.",
        "Install python with the package manager.",
    ),
    (
        "install a python package",
        "python",
        "Install python with the package manager.",
        "The python swallowed a rat in the forest.",
    ),
    (
        "what is a cabinet in government",
        "cabinet",
        "The cabinet of ministers met the prime minister.",
        "The kitchen cabinet is made of oak.",
    ),
    (
        "oak kitchen cabinet",
        "cabinet",
        "The wooden cabinet stands above the sink.",
        "The cabinet resigned after the election.",
    ),
    (
        "apple computer keyboard",
        "apple",
        "Apple sells laptops and phones.",
        "Bake the apple pie for an hour.",
    ),
    ("apple pie recipe", "apple", "Peel the apple and cut it for the cake.", "Apple released a new phone."),
    (
        "mountain pass road",
        "pass",
        "The pass over the mountains is closed in winter.",
        "You need a pass to enter the lounge.",
    ),
    (
        "airport lounge pass",
        "pass",
        "The pass gives you access to the lounge.",
        "The pass over the mountains is closed in winter.",
    ),
    (
        "cell membrane protein",
        "cell",
        "The cell is surrounded by a membrane.",
        "The prisoner was locked in his cell.",
    ),
    (
        "prison cell size",
        "cell",
        "The prisoner was locked in his cell.",
        "The cell is surrounded by a membrane.",
    ),
    (
        "baseball bat made of wood",
        "bat",
        "He hit the ball with a bat.",
        "The bat flies at night and eats insects.",
    ),
    ("bat that eats insects", "bat", "The bat flies at night.", "He hit the ball with a wooden bat."),
    (
        "thread of a screw",
        "thread",
        "The screw has a coarse thread.",
        "Start a new thread and wait for the process.",
    ),
    (
        "python thread pool",
        "thread",
        "Start a new thread in the process.",
        "Sew the button on with a thread.",
    ),
    (
        "plant cell growth",
        "plant",
        "The plant grows toward the light.",
        "The plant produces cars and trucks.",
    ),
    (
        "power plant emissions",
        "plant",
        "The plant burns coal to produce power.",
        "The plant grows toward the light.",
    ),
    (
        "interest rate of a loan",
        "interest",
        "The interest on the loan is five percent.",
        "He showed great interest in music.",
    ),
]


@pytest.fixture(scope="module")
def encoder() -> OnnxEncoder:
    return OnnxEncoder(threads=1)


def test_the_package_carries_the_int8_model_only() -> None:
    """What is in the folder goes into the wheel, as pyproject.toml says; PyTorch weights are elsewhere."""
    folder = bundled_model()
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    assert set(sizes) == {*PACKAGED, RECIPE, "README.md"}
    assert sum(sizes.values()) <= 25_000_000
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    rules = dict(re.findall(r"^((?:wheel|sdist)\.\w+) = (\[.*\])$", pyproject, re.M))
    assert json.loads(rules["wheel.packages"]) == ["coil"]
    assert "coil/models/*/model.safetensors" in json.loads(rules["wheel.exclude"])
    assert "/models" in json.loads(rules["sdist.exclude"])
    assert bundled_weights() == ROOT / "models" / "default"


def test_the_card_says_what_it_must() -> None:
    card = (bundled_model() / "README.md").read_text(encoding="utf-8")
    assert all(word in card for word in ("licence", "How it was made", "Training pairs", "Limits"))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the package's model as pip would install it; the library takes it for its own."""
    packaged = tmp_path / "site-packages" / "coil" / "models" / "default"
    shutil.copytree(bundled_model(), packaged)
    for module in (model_files, backbone):
        monkeypatch.setattr(module, "bundled_model", lambda: packaged)
    return tmp_path / "site-packages"


@pytest.mark.parametrize("name", [None, "default", bundled_model()])
def test_pytorch_finds_the_weights_in_a_checkout(name: str | Path | None) -> None:
    assert resolve_folder(name) == bundled_model()
    assert resolve_weights(name) == ROOT / "models" / "default"


def test_a_folder_named_default_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "default").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve_weights("default") == Path("default")


@pytest.mark.parametrize("name", [None, "default"])
def test_an_installed_package_says_how_to_get_the_weights(installed: Path, name: str | None) -> None:
    with pytest.raises(MissingModelFile, match="PyTorch weights of the bundled model") as caught:
        TorchEncoder(name)
    assert "models/default" in caught.value.remedy
    with pytest.raises(MissingModelFile, match=r"model\.safetensors is missing") as caught:
        export_model(resolve_folder(name), ["int8"])
    assert "models/default" in caught.value.remedy
    assert OnnxEncoder(name, threads=1).fingerprint == OnnxEncoder(BUNDLED, threads=1).fingerprint


@pytest.mark.parametrize("name", model_files.SHARED_FILES)
def test_weights_of_another_model_are_refused(installed: Path, name: str) -> None:
    folder = installed / "models" / "default"
    shutil.copytree(ROOT / "models" / "default", folder)
    assert resolve_weights("default") == folder
    with (folder / name).open("ab") as file:
        file.write(b" ")
    with pytest.raises(OptionMismatch, match=f"different models: {name}"):
        resolve_weights("default")


def test_training_starts_from_the_bundled_model_by_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = tmp_path / "pairs.jsonl"
    pairs.write_text("".join(json.dumps({"query": t[:20], "positive": t}) + "\n" for t in TEXTS))
    flags = ["train", "--pairs", str(pairs), "--device", "cpu", "--epochs", "0", "--base", "default"]
    assert run([*flags, "--out", str(tmp_path / "model")]) == 0
    for name in ("coil.json", "heads.safetensors", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "model" / name).read_bytes() == (ROOT / "models" / "default" / name).read_bytes()


def test_training_without_the_weights_says_how_to_get_them(
    installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["train", "--pairs", str(tmp_path / "pairs.jsonl"), "--base", "default", "--device", "cpu"]
    assert run([*flags, "--out", str(tmp_path / "model")]) == 1
    said = capsys.readouterr().err
    assert "PyTorch weights of the bundled model are not installed" in said
    assert "models/default" in said
    assert not (tmp_path / "model").exists()


def test_int8_is_true_to_the_pytorch_weights(encoder: OnnxEncoder) -> None:
    exact = TorchEncoder()
    for ours, theirs in zip(encoder.encode_documents(TEXTS), exact.encode_documents(TEXTS), strict=True):
        assert ours.keys == theirs.keys
        products = (ours.vectors * theirs.vectors).sum(1)
        lengths = np.linalg.norm(ours.vectors, axis=1) * np.linalg.norm(theirs.vectors, axis=1)
        assert (products / lengths).mean() > 0.99
        assert ours.sentence is not None
        assert theirs.sentence is not None
        assert ours.sentence.shape == (256,)


def test_the_figures_in_the_docs_belong_to_this_model(encoder: OnnxEncoder) -> None:
    result = json.loads((RESULTS / "default-model.json").read_text(encoding="utf-8"))
    assert result["models"]["COIL"]["fingerprint"] == encoder.fingerprint
    senses = json.loads((RESULTS / "senses.json").read_text(encoding="utf-8"))
    assert senses["model"]["fingerprint"] == encoder.fingerprint


def test_the_bar_is_met_by_the_committed_figures() -> None:
    result = json.loads((RESULTS / "default-model.json").read_text(encoding="utf-8"))
    names = ("scifact", "cranfield", "vaswani")
    ndcg = {
        system: np.array([of[name]["systems"][system]["means"]["nDCG@10"] for name in names])
        for of in (result["collections"],)
        for system in of["scifact"]["systems"]
    }
    assert ndcg["COIL"][0] >= 0.735
    assert ndcg["COIL"].mean() >= 0.555
    hybrid = max((scores for name, scores in ndcg.items() if name.startswith("hybrid")), key=np.mean)
    assert (ndcg["COIL"] >= hybrid - 0.01).all()
    assert ndcg["token part"].mean() >= ndcg["BM25"].mean() + 0.02
    senses = json.loads((RESULTS / "senses.json").read_text(encoding="utf-8"))["senses"]
    assert sum(part["right"] for part in senses.values()) >= 16


def test_a_word_mostly_matches_its_own_sense_better(encoder: OnnxEncoder) -> None:
    """The paper's case study: one word, two meanings, two similarities. By chance, half would be right."""
    margins = []
    for query, word, right, wrong in SENSES:
        similarity = []
        for text in (right, wrong):
            explanation = explain(encoder, query, Document("d", text))
            similarity.append(next(m.similarity for m in explanation.matches if m.query_token == word))
        margins.append(similarity[0] - similarity[1])
    assert sum(margin > 0 for margin in margins) >= 14
    assert np.mean(margins) > 0.05


def test_word_forms_share_a_list(encoder: OnnxEncoder) -> None:
    explanation = explain(encoder, "cancelling tasks", Document("d", "How a task is cancelled."))
    assert {match.query_token for match in explanation.matches} >= {"tasks"}


def test_words_with_and_without_accents_share_a_list(encoder: OnnxEncoder) -> None:
    """As docs/semantics.md says of the bundled model."""
    [vectors] = encoder.encode_documents(["na\u00efve naive caf\u00e9 cafe E0277 libxml2"])
    assert vectors.keys == ("naiv", "naiv", "cafe", "cafe", "e0277", "libxml2")


@pytest.mark.parametrize("text", ["", "   ", "\x00\x00", "😀😀", "\ud800 broken", "word " * 100_000])
def test_odd_texts_have_a_clear_result(encoder: OnnxEncoder, text: str) -> None:
    searcher = Searcher.build(encoder, [Document("odd", text), Document("plain", "a word about rivers")])
    assert searcher.search("rivers", k=5)[0].doc_id == "plain"
    for hit in searcher.search(text, k=5):
        assert np.isfinite(hit.score)
