"""Trained models as few and small files, to be carried from one machine to another.

    python -m tools.pack_models pack --base BASE --to PARTS MODEL...
    python -m tools.pack_models unpack --base BASE --out DIR PARTS

A model is packed as its small files and the weights that differ from the base model's; weights that are the
base's own, such as frozen embeddings, are only named. A weight in fp16 is stored as its distance from the
base's, counted in steps of fp16, with low and high bytes apart: training moves weights little, so that the
high bytes compress well. Each archive is cut into parts of at most --size MiB. A model is named by the last
two folders of its path. `unpack` puts every weight back, bit for bit, and refuses parts that
are damaged and a base that is another one.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save, save_file

BACKBONE_FILE, TOKENIZER_FILE = "model.safetensors", "tokenizer.json"
LEFT_OUT = {BACKBONE_FILE, TOKENIZER_FILE, "model.onnx", "model.int8.onnx"}
PLAN_FILE, CHANGED_FILE = "packed.json", "changed.safetensors"
LOW, HIGH = "#low", "#high"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["pack", "unpack"])
    parser.add_argument("paths", nargs="+", type=Path)
    parser.add_argument("--base", type=Path, required=True, help="folder of the model that all started from")
    parser.add_argument("--to", type=Path, default=Path("parts"), help="with pack: folder of the parts")
    parser.add_argument("--size", type=float, default=15.0, help="with pack: MiB of a part, at most")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="with unpack: folder of the models")
    arguments = parser.parse_args()
    if arguments.what == "pack":
        for folder in arguments.paths:
            parts = pack(folder, arguments.base, arguments.to, round(arguments.size * 2**20))
            size = sum(part.stat().st_size for part in parts)
            print(f"{folder}: {size / 2**20:.1f} MiB in {len(parts)} parts", file=sys.stderr)
        return
    for parts_folder in arguments.paths:
        for first in sorted(parts_folder.glob("*.tar.xz.000-of-*")):
            print(f"{unpack(first, arguments.base, arguments.out)}", file=sys.stderr)


def pack(folder: Path, base: Path, to: Path, size: int) -> list[Path]:
    """Write the parts of one model; returns them in order."""
    weights, start = load_file(folder / BACKBONE_FILE), load_file(base / BACKBONE_FILE)
    same: dict[str, str] = {}
    for name, weight in weights.items():
        found = next((b for b in start if _is_named(name, b) and _equal(weight, start[b])), None)
        if found is not None:
            same[name] = found
    moved = {
        name: found
        for name, weight in weights.items()
        if name not in same and (found := _counterpart(name, weight, start)) is not None
    }
    changed = {name: weight for name, weight in weights.items() if name not in same and name not in moved}
    for name, of in moved.items():
        changed[f"{name}{LOW}"], changed[f"{name}{HIGH}"] = _distance(weights[name], start[of])
    own_tokenizer = (folder / TOKENIZER_FILE).read_bytes() != (base / TOKENIZER_FILE).read_bytes()
    name = f"{folder.parent.name}/{folder.name}"
    plan = {"name": name, "same": same, "moved": moved, "digest": _digest(weights)}
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        _add(tar, PLAN_FILE, json.dumps(plan).encode())
        _add(tar, CHANGED_FILE, save(changed))
        for path in sorted(path for path in folder.iterdir() if path.is_file()):
            if path.name not in LEFT_OUT or (path.name == TOKENIZER_FILE and own_tokenizer):
                _add(tar, path.name, path.read_bytes())
    to.mkdir(parents=True, exist_ok=True)
    data = lzma.compress(archive.getvalue(), preset=2)
    parts = []
    begins = range(0, len(data), size)
    name = f"{name.replace('/', '-')}.{hashlib.sha256(data).hexdigest()[:12]}"
    for number, begin in enumerate(begins):
        part = to / f"{name}.tar.xz.{number:03d}-of-{len(begins):03d}"
        part.write_bytes(data[begin : begin + size])
        parts.append(part)
    return parts


def unpack(first: Path, base: Path, out: Path) -> Path:
    """Put a model together again; returns its folder."""
    name, _, count = first.name.partition(".tar.xz.000-of-")
    parts = [first.with_name(f"{name}.tar.xz.{number:03d}-of-{count}") for number in range(int(count))]
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        sys.exit(f"{first.parent}: missing parts of {name}: {', '.join(missing)}")
    data = b"".join(part.read_bytes() for part in parts)
    if not name.endswith(hashlib.sha256(data).hexdigest()[:12]):
        sys.exit(f"{first} and its parts are damaged: they are not what their name says")
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    plan = json.loads(files.pop(PLAN_FILE))
    start = load_file(base / BACKBONE_FILE)
    folder: Path = out / plan["name"]
    folder.mkdir(parents=True, exist_ok=True)
    changed = folder / f".{CHANGED_FILE}"
    changed.write_bytes(files.pop(CHANGED_FILE))
    try:
        weights = load_file(changed) | {name: start[of] for name, of in plan["same"].items()}
        for name, of in plan["moved"].items():
            low, high = weights.pop(f"{name}{LOW}"), weights.pop(f"{name}{HIGH}")
            weights[name] = _apply(low, high, start[of])
    except KeyError as error:
        sys.exit(f"{base} has no weight {error}: it is not the model that {plan['name']} started from")
    changed.unlink()
    if _digest(weights) != plan["digest"]:
        sys.exit(f"{base} is not the model that {plan['name']} started from: its weights are others")
    files.setdefault(TOKENIZER_FILE, (base / TOKENIZER_FILE).read_bytes())
    for name, content in files.items():
        (folder / Path(name).name).write_bytes(content)
    copies = {name: weight.clone() for name, weight in weights.items()}  # a file holds each by itself
    save_file(copies, folder / BACKBONE_FILE, metadata={"format": "pt"})
    return folder


def _is_named(name: str, base_name: str) -> bool:
    """Whether a weight may be the base's: a query writer has the base twice, as encoder and as decoder."""
    return name == base_name or name.endswith(f".{base_name}")


def _counterpart(name: str, weight: torch.Tensor, start: dict[str, torch.Tensor]) -> str | None:
    """The base's weight that a weight in fp16 has most likely started from."""
    if weight.dtype != torch.float16:
        return None
    likely = [b for b in start if _is_named(name, b) and start[b].dtype == weight.dtype]
    return next((b for b in sorted(likely, key=len, reverse=True) if start[b].shape == weight.shape), None)


def _distance(weight: torch.Tensor, base: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many steps of fp16 lie between two weights, as low and high bytes; small ones in both directions
    have a high byte of 0."""
    steps = (_places(weight) - _places(base)).astype(np.int16).astype(np.int32)  # modulo 2 ** 16
    folded = np.where(steps < 0, -2 * steps - 1, 2 * steps).astype(np.uint16)
    shape = weight.shape
    low, high = (folded & 255).astype(np.uint8), (folded >> 8).astype(np.uint8)
    return torch.from_numpy(low).view(shape), torch.from_numpy(high).view(shape)


def _apply(low: torch.Tensor, high: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The weight at that distance."""
    folded = low.numpy().astype(np.int32) | (high.numpy().astype(np.int32) << 8)
    steps = np.where(folded & 1, -(folded + 1) // 2, folded // 2)
    places = ((_places(base).reshape(folded.shape) + steps) & 0xFFFF).astype(np.int32)
    bits = np.where(places >= 0x8000, places - 0x8000, 0xFFFF - places).astype(np.uint16)
    return torch.from_numpy(bits.view(np.float16).reshape(low.shape))


def _places(weight: torch.Tensor) -> NDArray[np.int32]:
    """Numbers of fp16 by their place in ascending order, from 0 to 65535."""
    bits = weight.contiguous().numpy().view(np.uint16).astype(np.int32)
    return np.where(bits < 0x8000, bits + 0x8000, 0xFFFF - bits)


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Bit for bit: −0 is not 0."""
    same_kind = one.dtype == other.dtype and one.shape == other.shape
    return same_kind and torch.equal(_bytes(one), _bytes(other))


def _bytes(weight: torch.Tensor) -> torch.Tensor:
    return weight.contiguous().flatten().view(torch.uint8)


def _digest(weights: dict[str, torch.Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(weights):
        found.update(name.encode() + _bytes(weights[name]).numpy().tobytes())
    return found.hexdigest()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


if __name__ == "__main__":
    main()
