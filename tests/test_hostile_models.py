"""Model folders that are damaged or made to harm: refused by name, without a traceback or much memory."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from coil.errors import CoilError, ModelError
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.torch_encoder import TorchEncoder

ROUNDS = int(os.environ.get("COIL_FUZZ_ROUNDS", "300"))
JSON_FILES = ("coil.json", "config.json", "tokenizer.json")
TENSOR_FILES = ("heads.safetensors", "model.safetensors")
ALL_FILES = (*JSON_FILES, *TENSOR_FILES, "model.int8.onnx")
ODD = (
    None,
    True,
    -1,
    0,
    1,
    3,
    2**31,
    2**63,
    10**30,
    1e300,
    float("nan"),
    "",
    "x",
    "8",
    [],
    [1],
    {},
    {"a": 1},
)


def encode(folder: Path) -> None:
    """Load and use the model both ways."""
    for make in (OnnxEncoder, TorchEncoder):
        encoder = make(folder)
        assert len(list(encoder.encode_documents(["river bank", "", "a " * 100]))) == 3
        assert encoder.fingerprint


def _header(path: Path, **tensors: object) -> None:
    text = json.dumps(tensors).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)


def _edit(path: Path, change: Callable[[dict[str, np.ndarray]], None]) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def _huge(name: str) -> Callable[[Path], None]:
    """A header that declares terabytes."""
    entry = {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}
    return lambda folder: _header(folder / name, **{"tok_proj.weight": entry})


def _loop(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).symlink_to(folder / name)


def _directory(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()


def _set(name: str, **fields: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / name
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _set_profile(**fields: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        value = json.loads((folder / "coil.json").read_text())
        value["profile"].update(fields)
        (folder / "coil.json").write_text(json.dumps(value))

    return change


def _not_a_number(name: str) -> Callable[[Path], object]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for tensor in tensors.values():
            tensor[..., 0] = np.nan

    return lambda folder: _edit(folder / name, change)


CASES: dict[str, Callable[[Path], object]] = {
    **{f"empty {name}": lambda f, n=name: (f / n).write_bytes(b"") for name in ALL_FILES},  # type: ignore[misc]
    **{f"no {name}": lambda f, n=name: (f / n).unlink() for name in ALL_FILES},  # type: ignore[misc]
    **{f"{name} is a folder": lambda f, n=name: _directory(f, n) for name in ALL_FILES},  # type: ignore[misc]
    **{f"{name} is a loop": lambda f, n=name: _loop(f, n) for name in ALL_FILES},  # type: ignore[misc]
    **{f"{name} is a list": lambda f, n=name: (f / n).write_text("[1]") for name in JSON_FILES},  # type: ignore[misc]
    **{f"{name} is deep": lambda f, n=name: (f / n).write_text("[" * 10**5) for name in JSON_FILES},  # type: ignore[misc]
    **{f"{name} is Latin-1": lambda f, n=name: (f / n).write_bytes(b'{"a": "\xe9"}') for name in JSON_FILES},  # type: ignore[misc]
    **{f"{name} is huge": _huge(name) for name in TENSOR_FILES},
    **{f"{name} is not a number": _not_a_number(name) for name in TENSOR_FILES},
    "a sparse coil.json": lambda f: os.truncate(f / "coil.json", 1 << 36),
    "a sparse tokenizer.json": lambda f: os.truncate(f / "tokenizer.json", 1 << 36),
    "n_t huge": _set("coil.json", n_t=2**40),
    "n_c negative": _set("coil.json", n_c=-5),
    "n_t true": _set("coil.json", n_t=True),
    "pooling a list": _set("coil.json", pooling=["cls"]),
    "length huge": _set_profile(document_length=10**12),
    "length beyond": _set_profile(query_length=10**40),
    "list_key a dict": _set_profile(list_key={}),
    "list_key of another version": _set_profile(list_key="stem"),
    "alpha huge": _set_profile(alpha=1e300),
    "beta infinite": _set_profile(beta=float("inf")),
    "gamma a list": _set_profile(gamma=[8]),
    "k1 not a number": _set_profile(k1=float("nan")),
    "b above 1": _set_profile(b=1.5),
    "weight without floor": _set_profile(weight="bm25", floor=False),
    "hidden huge": _set("config.json", hidden_size=2**40),
    "hidden negative": _set("config.json", hidden_size=-32),
    "hidden text": _set("config.json", hidden_size="32"),
    "layers huge": _set("config.json", num_hidden_layers=10**9),
    "heads zero": _set("config.json", num_attention_heads=0),
    "vocabulary text": _set("config.json", vocab_size="many"),
    "vocabulary huge": _set("config.json", vocab_size=2**40),
    "positions text": _set("config.json", max_position_embeddings="80"),
    "model type a list": _set("config.json", model_type=["bert"]),
    "foreign code": _set("config.json", auto_map={"AutoModel": "evil.Evil"}, model_type="evil"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_folder_is_refused_by_name(copy: Path, case: str) -> None:
    (copy / "model.onnx").unlink()  # which would do in place of the other
    CASES[case](copy)
    before = _peak()
    with pytest.raises(ModelError) as caught:
        encode(copy)
    assert str(copy) in str(caught.value), "the message says where"
    assert caught.value.remedy
    assert len(str(caught.value)) < 600 + len(str(copy))
    assert _peak() - before < 300 << 20


def _peak() -> int:
    from coil.storage.memory import peak_bytes

    return peak_bytes()


def _flip(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 4, 64])):
        changed[rng.randrange(min(len(changed), rng.choice([16, 300, 10**9])))] = rng.randrange(256)
    return bytes(changed)


def _edit_json(data: bytes, rng: random.Random) -> bytes:
    """One value somewhere replaced by an odd one, or a key dropped."""
    value = json.loads(data)
    inside = value
    while True:
        keys = list(inside) if isinstance(inside, dict) else list(range(len(inside)))
        key = rng.choice(keys)
        if isinstance(inside[key], dict | list) and inside[key] and rng.random() < 0.7:
            inside = inside[key]
            continue
        if rng.random() < 0.2:
            del inside[key]
        else:
            inside[key] = rng.choice(ODD)
        return json.dumps(value).encode()


def test_any_damage_is_survived_or_named(full: Path, tmp_path: Path) -> None:
    """COIL_FUZZ_ROUNDS=5000 for a soak; a round's number reproduces it."""
    refused = 0
    for number in range(ROUNDS):
        rng = random.Random(number)
        folder = Path(shutil.copytree(full, tmp_path / str(number)))
        name = rng.choice(ALL_FILES)
        data = (folder / name).read_bytes()
        kinds: list[Callable[[bytes, random.Random], bytes]] = [
            _flip,
            lambda data, rng: data[: rng.randrange(len(data))],
            lambda data, rng: data + rng.randbytes(9),
        ]
        kinds += [_edit_json] * 4 if name in JSON_FILES else []
        (folder / name).write_bytes(rng.choice(kinds)(data, rng))
        try:
            encode(folder)
        except CoilError:
            refused += 1
        except BaseException as error:
            raise AssertionError(f"round {number}, {name}") from error
        shutil.rmtree(folder)
    assert refused > ROUNDS // 3
