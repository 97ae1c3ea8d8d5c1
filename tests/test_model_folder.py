"""Model folders: saving, fingerprints, exporting, and every way a folder can lie."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from coil.errors import (
    MissingExtra,
    MissingModelFile,
    ModelError,
    OptionMismatch,
    OutputError,
    TokenizerMismatch,
    WrongShape,
)
from coil.indexes.opening import create
from coil.vectors.export import export_model
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder
from coil.vectors.torch_model import CoilModel
from tests.tiny import difference, make_tokenizer, random_texts

# ---- saving and fingerprints


def test_a_saved_model_comes_back_the_same(full: Path, tmp_path: Path) -> None:
    CoilModel.from_pretrained(full).save_pretrained(tmp_path / "again")
    shutil.copy(full / "tokenizer.json", tmp_path / "again")
    texts = random_texts(5, seed=6)
    first, second = (TorchEncoder(folder) for folder in (full, tmp_path / "again"))
    assert first.config == second.config
    assert difference(list(first.encode_documents(texts)), list(second.encode_documents(texts))) == 0
    assert first.fingerprint == second.fingerprint


def test_the_fingerprint_is_that_of_the_content(full: Path, copy: Path) -> None:
    os.utime(copy / "tokenizer.json", (0, 0))
    (copy / "README.md").write_text("not part of the model")
    renamed = copy.rename(copy.with_name("renamed"))
    assert OnnxEncoder(renamed).fingerprint == OnnxEncoder(full, threads=1, batch_tokens=7).fingerprint
    assert TorchEncoder(renamed).fingerprint == TorchEncoder(full).fingerprint


@pytest.mark.parametrize("name", ["model.int8.onnx", "heads.safetensors", "tokenizer.json", "config.json"])
def test_a_file_without_read_permission_is_not_called_damaged(copy: Path, name: str) -> None:
    (copy / name).chmod(0)
    code = (
        "import sys, coil.errors as e; from coil.vectors.model_files import ModelFiles\n"
        "from coil.vectors.onnx_encoder import OnnxEncoder; from pathlib import Path\n"
        "try: ModelFiles.load(Path(sys.argv[1])).sentence_projection; OnnxEncoder(sys.argv[1])\n"
        "except e.ModelError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(copy)]
    if os.geteuid() == 0:  # root may read everything, unless it gives that right up
        rights = "-dac_override,-dac_read_search,-fowner"
        command = ["setpriv", "--inh-caps=-all", f"--bounding-set={rights}", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    remedy = "check the permissions of the file and its folder"
    assert done.stdout == f"{copy / name} cannot be read: permission denied\n  try: {remedy}\n", done.stderr


def _edit_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def _edit_profile(folder: Path, **fields: object) -> None:
    profile = json.loads((folder / "coil.json").read_text())["profile"]
    _edit_json(folder / "coil.json", profile=profile | fields)


def _edit_tensor(path: Path, name: str, change: float) -> None:
    tensors = load_file(path)
    tensors[name] = tensors[name] + np.float32(change)
    save_file(tensors, path)


def _other_tokenizer(folder: Path) -> None:
    value = json.loads((folder / "tokenizer.json").read_text())
    value["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(value))


CHANGES = {
    "backbone": lambda f: _edit_tensor(f / "model.safetensors", "embeddings.word_embeddings.weight", 0.01),
    "heads": lambda f: _edit_tensor(f / "heads.safetensors", "tok_proj.bias", 0.01),
    "pooling": lambda f: _edit_json(f / "coil.json", pooling="cls"),
    "profile": lambda f: _edit_profile(f, floor=False),
    "tokenizer": _other_tokenizer,
    "list key": lambda f: _edit_profile(f, list_key="word"),
    "gamma": lambda f: _edit_profile(f, gamma=2.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_fingerprint_changes_with_what_decides_the_vectors(full: Path, copy: Path, change: str) -> None:
    CHANGES[change](copy)
    assert TorchEncoder(copy).fingerprint != TorchEncoder(full).fingerprint
    if change not in ("backbone", "heads"):  # the ONNX files carry their own weights
        assert OnnxEncoder(copy).fingerprint != OnnxEncoder(full).fingerprint


def test_the_onnx_fingerprint_changes_with_the_precision_and_the_weights(full: Path, copy: Path) -> None:
    before = {OnnxEncoder(full, p).fingerprint for p in ("fp32", "int8")}  # type: ignore[arg-type]
    _edit_tensor(copy / "heads.safetensors", "tok_proj.bias", 0.01)
    export_model(copy)
    after = {OnnxEncoder(copy, p).fingerprint for p in ("fp32", "int8")}  # type: ignore[arg-type]
    assert len(before | after) == 4


# ---- loud errors


def _drop_tensor(path: Path, name: str) -> None:
    save_file({key: value for key, value in load_file(path).items() if key != name}, path)


def _reshape_tensor(path: Path, name: str) -> None:
    tensors = load_file(path)
    tensors[name] = np.zeros((5, tensors[name].shape[1]), dtype=np.float32)
    save_file(tensors, path)


def _larger_tokenizer(folder: Path) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["entirely", "new", "words"])
    tokenizer.save(str(folder / "tokenizer.json"))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


BROKEN = {
    "no heads": (lambda f: (f / "heads.safetensors").unlink(), MissingModelFile, "heads.safetensors"),
    "no backbone": (lambda f: (f / "model.safetensors").unlink(), MissingModelFile, "model.safetensors"),
    "no tok_proj.bias": (
        lambda f: _drop_tensor(f / "heads.safetensors", "tok_proj.bias"),
        WrongShape,
        "heads.safetensors.*tok_proj.bias",
    ),
    "no cls_proj.weight": (
        lambda f: _drop_tensor(f / "heads.safetensors", "cls_proj.weight"),
        WrongShape,
        "heads.safetensors.*cls_proj.weight",
    ),
    "other shape": (
        lambda f: _reshape_tensor(f / "heads.safetensors", "tok_proj.weight"),
        WrongShape,
        r"heads.safetensors.*\[5, 32\].*\[8, 32\]",
    ),
    "backbone without a weight": (
        lambda f: _drop_tensor(f / "model.safetensors", "encoder.layer.1.output.dense.weight"),
        WrongShape,
        "model.safetensors.*encoder.layer.1",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), MissingModelFile, "tokenizer.json"),
    "damaged tokenizer": (lambda f: _truncate(f / "tokenizer.json"), TokenizerMismatch, "tokenizer.json"),
    "larger tokenizer": (_larger_tokenizer, TokenizerMismatch, "tokenizer.json.*config.json"),
    "no coil.json": (lambda f: (f / "coil.json").unlink(), MissingModelFile, "coil.json"),
    "no config.json": (lambda f: (f / "config.json").unlink(), MissingModelFile, "config.json"),
    "coil.json is no JSON": (lambda f: _truncate(f / "coil.json"), ModelError, "coil.json"),
    "unknown field": (
        lambda f: _edit_json(f / "coil.json", colour="red"),
        OptionMismatch,
        "coil.json.*colour",
    ),
    "unknown profile field": (lambda f: _edit_profile(f, colour=1), OptionMismatch, "coil.json.*colour"),
    "other n_t": (lambda f: _edit_json(f / "coil.json", n_t=9), WrongShape, "heads.safetensors"),
    "other pooling": (
        lambda f: _edit_json(f / "coil.json", pooling="max"),
        OptionMismatch,
        "coil.json.*pooling",
    ),
    "n_t is text": (lambda f: _edit_json(f / "coil.json", n_t="8"), OptionMismatch, "coil.json.*n_t"),
    "too long": (lambda f: _edit_profile(f, document_length=81), OptionMismatch, "config.json.*80"),
    "truncated heads": (lambda f: _truncate(f / "heads.safetensors"), ModelError, "heads.safetensors"),
    "truncated backbone": (lambda f: _truncate(f / "model.safetensors"), ModelError, "model.safetensors"),
    "alpha is text": (lambda f: _edit_profile(f, alpha="1"), OptionMismatch, "coil.json.*alpha"),
    "gamma is negative": (lambda f: _edit_profile(f, gamma=-1.0), OptionMismatch, "coil.json.*gamma"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_folder_is_refused(copy: Path, case: str) -> None:
    damage, error, message = BROKEN[case]
    damage(copy)
    with pytest.raises(error, match=f"(?s){message}"):
        TorchEncoder(copy)
    if "heads" not in message and "model.safetensors" not in message:  # those, ONNX does not read
        with pytest.raises(error, match=f"(?s){message}"):
            OnnxEncoder(copy)


ONNX_BROKEN = {
    "missing": (lambda f: [(f / n).unlink() for n in ("model.onnx", "model.int8.onnx")], MissingModelFile),
    "truncated": (lambda f: _truncate(f / "model.int8.onnx"), ModelError),
    "other n_t": (lambda f: _edit_json(f / "coil.json", n_t=9), WrongShape),
    "other n_c": (lambda f: _edit_json(f / "coil.json", n_c=9), WrongShape),
    "no tokens wanted": (lambda f: _edit_json(f / "coil.json", n_t=0), WrongShape),
}


@pytest.mark.parametrize("case", ONNX_BROKEN)
def test_an_onnx_file_that_does_not_fit_is_refused(copy: Path, case: str) -> None:
    damage, error = ONNX_BROKEN[case]
    damage(copy)
    with pytest.raises(error, match=r"model\.int8\.onnx") as caught:
        OnnxEncoder(copy)
    assert "coil export" in caught.value.remedy


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(MissingModelFile, match="nowhere"):
        OnnxEncoder(tmp_path / "nowhere")


# ---- the export itself


def test_a_graph_that_differs_is_not_written(
    sharp: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(sharp, tmp_path / "model"))
    before = (copy / "model.int8.onnx").read_bytes()
    monkeypatch.setattr("coil.vectors.export.MATRIX_LEVELS", 1)  # weights of −1, 0 and 1 are too coarse
    with pytest.raises(ModelError, match=r"model.int8.onnx.*PyTorch.*cosine 0\.\d+ of tokens") as caught:
        export_model(copy, ["int8"])
    assert "--no-check" in caught.value.remedy
    assert (copy / "model.int8.onnx").read_bytes() == before
    (report,) = export_model(copy, ["int8"], check=False)
    assert report.max_error is None
    assert (copy / "model.int8.onnx").read_bytes() != before
    assert not list(copy.glob(".*"))


def test_an_fp32_graph_that_differs_is_not_written(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from onnx import numpy_helper

    from coil.vectors import export

    genuine = export.fuse

    def wrong(graph: Any, model: CoilModel) -> Any:
        fused = genuine(graph, model)
        for constant in fused.graph.initializer:
            if constant.name.endswith("tok_proj.bias"):
                moved = numpy_helper.to_array(constant) + np.float32(0.001)
                constant.CopyFrom(numpy_helper.from_array(moved, constant.name))
        return fused

    (copy / "model.onnx").unlink()
    monkeypatch.setattr(export, "fuse", wrong)
    with pytest.raises(ModelError, match=r"model.onnx.*largest difference 0\.001"):
        export_model(copy, ["fp32"])
    assert not (copy / "model.onnx").exists()


def test_export_says_when_it_cannot_write(copy: Path) -> None:
    (copy / "model.onnx").unlink()
    (copy / "model.onnx").mkdir()
    with pytest.raises(OutputError, match=r"model\.onnx"):
        export_model(copy, ["fp32"], check=False)
    assert not list(copy.glob(".*"))


def test_export_says_what_to_install(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from coil.cli.export import command

    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.delitem(sys.modules, "coil.vectors.export")
    with pytest.raises(MissingExtra, match="onnx") as caught:
        command.main([str(copy)], standalone_mode=False)
    assert caught.value.remedy == "pip install 'coil-ir[train]'"


def test_the_verb_reports(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from coil.cli.main import run

    assert run(["export", str(copy), "--precision", "both"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "model.onnx" in lines[0]
    assert "largest difference" in lines[0]
    assert "model.int8.onnx" in lines[1]
    assert "mean cosine 0.99" in lines[1] or "mean cosine 1.0" in lines[1]
    (copy / "heads.safetensors").unlink()
    assert run(["export", str(copy)]) == 1
    assert "heads.safetensors" in capsys.readouterr().err


# Files that change while a process has them loaded


@pytest.mark.parametrize("name", ["model.int8.onnx", "tokenizer.json", "coil.json"])
def test_the_fingerprint_is_that_of_the_files_that_were_loaded(copy: Path, tmp_path: Path, name: str) -> None:
    """Otherwise an index of old vectors got the fingerprint of a new model, and was searched with that."""
    encoder = OnnxEncoder(copy)
    replacement = tmp_path / "new"
    replacement.write_bytes((copy / name).read_bytes() + (b" " if name.endswith("json") else b""))
    replacement.replace(copy / name)
    with pytest.raises(ModelError, match=f"{name} has changed since it was read"):
        _ = encoder.fingerprint
    with pytest.raises(ModelError, match="has changed"):
        create(tmp_path / "a.coil", encoder=encoder)
    known = OnnxEncoder(copy)
    before = known.fingerprint
    os.utime(copy / name, ns=(1, 1))
    assert known.fingerprint == before  # it is known already
    assert OnnxEncoder(copy).fingerprint == before


def test_an_onnx_file_with_weights_in_other_files_is_refused(copy: Path) -> None:
    """The fingerprint would not tell when they change."""
    path = copy / "model.int8.onnx"
    model = onnx.load(path)
    path.unlink()
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    with pytest.raises(ModelError, match="has weights in other files"):
        OnnxEncoder(copy)
