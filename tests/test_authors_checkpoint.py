"""The authors' checkpoints become models whose scores are those of their equation; what lies is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModel

from coil.adapters.authors_checkpoint import import_checkpoint, load_tensors
from coil.cli.main import run
from coil.errors import MissingModelFile, ModelError, OptionMismatch, OutputError, WrongShape
from coil.scores.oracle import CountedRows, score
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from tests.authors_files import WIDTH, make_checkpoint
from tests.tiny import make_tokenizer, random_texts

LENGTHS = {"query_length": 16, "document_length": 64}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("authors") / "checkpoint")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


class Theirs:
    """The authors' equation, as their code batches it: all products of two texts, masked by equal token ids,
    the maximum of each query token (a mask has zeros, so it is never below 0), and sentence vectors."""

    def __init__(self, folder: Path) -> None:
        self._heads = torch.load(folder / "model.pt", weights_only=True)
        state = torch.load(folder / "pytorch_model.bin", weights_only=True)
        self._backbone = AutoModel.from_config(AutoConfig.from_pretrained(folder)).eval()
        known = set(self._backbone.state_dict())
        named = {name.removeprefix("bert."): weight for name, weight in state.items()}
        self._backbone.load_state_dict({name: w for name, w in named.items() if name in known})
        self._tokenizer = make_tokenizer()

    @torch.no_grad()
    def encode(self, text: str, length: int) -> tuple[list[int], torch.Tensor, torch.Tensor]:
        heads, tokenizer = self._heads, self._tokenizer
        ids = tokenizer.encode(text, add_special_tokens=False).ids[: length - 2]
        both = [tokenizer.token_to_id("[CLS]"), *ids, tokenizer.token_to_id("[SEP]")]
        hidden = self._backbone(input_ids=torch.tensor([both])).last_hidden_state[0]
        tokens = hidden @ heads["tok_proj.weight"].T + heads["tok_proj.bias"]
        sentence = hidden[0] @ heads["cls_proj.weight"].T + heads["cls_proj.bias"]
        if "ln_cls.weight" in heads:
            sentence = torch.nn.functional.layer_norm(
                sentence, sentence.shape, heads["ln_cls.weight"], heads["ln_cls.bias"]
            )
        return ids, tokens[1:-1], sentence

    def score(self, query: str, document: str, parts: str) -> float:
        query_ids, query_tokens, query_sentence = self.encode(query, LENGTHS["query_length"])
        ids, tokens, sentence = self.encode(document, LENGTHS["document_length"])
        match = torch.tensor(query_ids)[:, None] == torch.tensor([*ids, -1])[None]  # one that never matches
        products = query_tokens @ torch.cat([tokens, torch.zeros(1, tokens.shape[1])]).T
        token_part = float((products * match).max(dim=1).values.sum())
        sentence_part = float(query_sentence @ sentence)
        return {"full": token_part + sentence_part, "tok": token_part, "dense": sentence_part}[parts]


@pytest.mark.parametrize(
    ("parts", "norm", "options"),
    [
        ("full", False, {}),
        ("full", True, {}),
        ("tok", False, {"no_cls": True}),
        ("dense", False, {"cls_only": True}),
    ],
)
def test_scores_are_those_of_the_authors(
    tmp_path: Path, parts: str, norm: bool, options: dict[str, bool]
) -> None:
    folder = make_checkpoint(tmp_path / "checkpoint", norm=norm, seed=len(parts))
    config = import_checkpoint(folder, tmp_path / "model", **LENGTHS, **options)
    assert config.kind == {"full": "COIL-full", "tok": "COIL-tok", "dense": "dense"}[parts]
    assert config.sentence_norm == ("layer" if norm else "none")
    encoder = TorchEncoder(tmp_path / "model")
    queries, documents = random_texts(4, 20, seed=1), random_texts(6, 70, seed=2)
    encoded = list(encoder.encode_documents(documents))
    theirs, seen = Theirs(folder), 0.0
    for query, vectors in zip(queries, encoder.encode_queries(queries), strict=True):
        for document, of_document in zip(documents, encoded, strict=True):
            ours = score(vectors, of_document, config.profile, CountedRows(encoded))
            assert ours == pytest.approx(theirs.score(query, document, parts), rel=1e-4, abs=1e-4)
            seen = max(seen, abs(ours))
    assert seen > 1.0


def test_the_command_makes_a_model_that_indexes_and_searches(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lengths = ["--query-length", "16", "--document-length", "64"]
    out = tmp_path / "models" / "coil"
    assert run(["import-checkpoint", str(checkpoint), "--out", str(out), *lengths]) == 0
    assert "COIL-full, token vectors 4 wide, sentence vector 6 wide" in capsys.readouterr().out
    assert OnnxEncoder(out, "fp32").config.profile.list_key == "wordpiece"
    corpus = tmp_path / "corpus.tsv"
    corpus.write_text("1\tthe bank of the river\n2\tmoney and loan\n")
    assert run(["index", str(corpus), "--model", str(out), "--out", str(tmp_path / "a.coil")]) == 0
    capsys.readouterr()
    assert run(["search", str(tmp_path / "a.coil"), "river", "--json"]) == 0
    assert {json.loads(line)["doc_id"] for line in capsys.readouterr().out.splitlines()} == {"1", "2"}
    assert [path.name for path in out.parent.iterdir()] == ["coil"]  # nothing unfinished is left


def test_newer_weights_and_a_tokenizer_from_elsewhere(copy: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    import_checkpoint(copy, tmp_path / "old", **LENGTHS)
    save_file(load_tensors(copy / "pytorch_model.bin"), copy / "model.safetensors")
    (copy / "pytorch_model.bin").unlink()
    (copy / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with pytest.raises(MissingModelFile, match=r"no tokenizer \(tokenizer.json or vocab.txt\)"):
        import_checkpoint(copy, tmp_path / "none", **LENGTHS)
    assert not (tmp_path / "none").exists()
    import_checkpoint(copy, tmp_path / "new", tokenizer=tmp_path / "tokenizer.json", **LENGTHS)
    assert TorchEncoder(tmp_path / "new").fingerprint == TorchEncoder(tmp_path / "old").fingerprint


def _set(name: str, value: Any) -> Callable[[Path], None]:
    """Change a weight of model.pt, or with None remove it."""

    def change(folder: Path) -> None:
        heads = torch.load(folder / "model.pt", weights_only=True)
        if value is None:
            del heads[name]
        else:
            heads[name] = value
        torch.save(heads, folder / "model.pt")

    return change


class _Harmful:
    """What a hostile file would hold: something to run when it is loaded."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _run, ()


def _run() -> None:
    _Harmful.ran = True


def _cut(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-200])  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        (_set("tok_proj.weight", None), WrongShape, "no weight 'tok_proj.weight'"),
        (_set("cls_proj.bias", None), WrongShape, "no weight 'cls_proj.bias'"),
        (_set("tok_proj.weight", torch.zeros(4, WIDTH + 1)), WrongShape, r"\[4, 33\]; expected \[n, 32\]"),
        (_set("tok_proj.weight", torch.zeros(4)), WrongShape, r"has the shape \[4\]"),
        (_set("tok_proj.weight", torch.zeros(0, WIDTH)), WrongShape, r"has the shape \[0, 32\]"),
        (_set("cls_proj.bias", torch.zeros(7)), WrongShape, r"shape \[7\]; expected \[6\]"),
        (_set("tok_proj.bias", torch.full((4,), np.nan)), ModelError, "NaN or infinite"),
        (_set("ln_cls.weight", torch.zeros(6)), WrongShape, "no weight 'cls_norm.bias'"),
        (_set("ln_tok.weight", torch.zeros(4)), ModelError, "normalises token vectors"),
        (_set("other.weight", torch.zeros(4)), ModelError, "unknown weight 'other.weight'"),
        (_set("tok_proj.bias", [1.0]), ModelError, "does not contain a dictionary of weights"),
        (_set("tok_proj.bias", _Harmful()), ModelError, "objects other than tensors"),
        (_cut("model.pt"), ModelError, "model.pt is damaged"),
        (_cut("pytorch_model.bin"), ModelError, "pytorch_model.bin is damaged"),
        (lambda f: (f / "model.pt").unlink(), MissingModelFile, "not a checkpoint of the authors"),
        (lambda f: (f / "pytorch_model.bin").unlink(), MissingModelFile, "neither model.safetensors nor"),
        (lambda f: (f / "config.json").unlink(), MissingModelFile, "config.json is missing"),
        (lambda f: (f / "config.json").write_text("{}"), WrongShape, "no valid hidden_size"),
        (
            lambda f: torch.save({"bert.embeddings.word_embeddings.weight": torch.zeros(900, WIDTH)},
                                 f / "pytorch_model.bin"),
            WrongShape,
            "word_embeddings.weight",
        ),
    ],
)  # fmt: skip
def test_a_checkpoint_that_lies_is_refused(
    copy: Path, tmp_path: Path, change: Callable[[Path], object], kind: type[Exception], message: str
) -> None:
    change(copy)
    with pytest.raises(kind, match=message):
        import_checkpoint(copy, tmp_path / "model", **LENGTHS)
    assert not _Harmful.ran
    assert not (tmp_path / "model").exists()


def test_options_and_places_that_cannot_be(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionMismatch, match="exclude each other"):
        import_checkpoint(copy, tmp_path / "model", no_cls=True, cls_only=True)
    with pytest.raises(OptionMismatch, match="supports only 160"):
        import_checkpoint(copy, tmp_path / "model", document_length=512)
    with pytest.raises(OutputError, match="already exists"):
        import_checkpoint(copy, copy, **LENGTHS)


@pytest.mark.parametrize("verb", ["import-checkpoint", "index"])
def test_a_name_of_the_hub_is_not_downloaded(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"import-checkpoint": ["luyug/coil"], "index": [__file__, "--model", "luyug/coil"]}[verb]
    assert run([verb, *given, "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert (
        "'luyug/coil' is not a folder; models from the Hugging Face hub must be downloaded first" in message
    )
    assert "hf download luyug/coil --local-dir coil" in message
