"""Damage files of an index at random and use it: a worker that tells what came of it, one line a mutation.

    python -m tests.mutations TEMPLATE WORK SEED COUNT

It is a process of its own because a wrong bound in native code would take it down.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from coil.errors import CoilError
from coil.indexes.opening import open_index
from tests.hash_encoder import QUERIES, HashEncoder

MANIFEST = "manifest.jsonl"


def mutate(folder: Path, rng: random.Random) -> str:
    """Change a file at random; some changes are covered up by digests that fit."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "writer.lock")
    path = rng.choice(paths)
    content = bytearray(path.read_bytes())
    kind = rng.choice(["flips", "cut", "more", "block", "numbers", "header", "swap", "gone"])
    at = rng.randrange(max(len(content), 1))
    if kind == "flips":
        for _ in range(rng.choice([1, 1, 3, 30])):
            if content:
                content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif kind == "cut":
        del content[at:]
    elif kind == "more":
        content += rng.randbytes(rng.choice([1, 100, 5000]))
    elif kind in ("header", "numbers", "block") and path.name == MANIFEST:
        change_manifest(folder, lambda value: _change_value(value, rng))
        return "another value in the manifest, with a digest that fits"
    elif kind == "block":
        size = rng.choice([1, 8, 64, 512])
        content[at : at + size] = rng.choice([bytes(size), b"\xff" * size, rng.randbytes(size)])
    elif kind == "numbers":  # an eight-byte number at a place where one may be
        at -= at % 8
        value = rng.choice([-1, 0, 1, 2**31, 2**62, -(2**63), len(content), rng.randrange(-99, 99)])
        content[at : at + 8] = struct.pack("<q", value)
    elif kind == "header" and path.suffix == ".lists":
        content = _change_header(content, rng)
    elif kind == "swap":
        content = bytearray(rng.choice(paths).read_bytes())
    if kind == "gone":
        path.unlink()
    else:
        path.write_bytes(content)
    covered = path.suffix in (".lists", ".documents") and path.exists() and rng.random() < 0.7
    if covered:
        cover_up(folder, path)
    return f"{kind} {path.suffix or path.name}{' with digests that fit' if covered else ''}"


def _change_header(content: bytearray, rng: random.Random) -> bytearray:
    """Say something else about an array, or about the whole."""
    length = int.from_bytes(content[:8], "little")
    try:
        header: dict[str, Any] = json.loads(content[8 : 8 + length])
    except ValueError:
        return content
    name = rng.choice(sorted(header))
    change = rng.choice(["drop", "shape", "dtype", "offsets", "value", "twice"])
    entry = header[name]
    if change == "drop":
        del header[name]
    elif change == "shape" and "shape" in entry:
        entry["shape"] = rng.choice([[], [0], [-1], [2**62, 4], [2**40], entry["shape"][::-1], ["x"]])
    elif change == "dtype" and "dtype" in entry:
        entry["dtype"] = rng.choice(["I8", "U8", "F64", "F32", "I64", "BF16", 7])
    elif change == "offsets" and "data_offsets" in entry:
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = rng.choice(
            [[end, begin], [begin + 1, end + 1], [0, end], [-8, 8], [2**60, 2**61]]
        )
    elif change == "value":
        header["__metadata__"] = rng.choice(
            [{}, {"format": "coil-lists-4", "n_t": "-1"}, [], None, {"n_t": "x"}]
        )
    else:
        header["another"] = entry
    new = json.dumps(header).encode()
    new += b" " * (-len(new) % 8)
    return bytearray(len(new).to_bytes(8, "little") + new + content[8 + length :])


def cover_up(folder: Path, path: Path) -> None:
    """A manifest that fits the damaged file."""
    content = path.read_bytes()
    facts = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    if path.suffix == ".lists":
        length = min(int.from_bytes(content[:8], "little"), len(content))
        facts["header_sha256"] = hashlib.sha256(content[8 : 8 + length]).hexdigest()

    def change(value: dict[str, Any]) -> None:
        for segment in value["segments"]:
            if segment["name"] == path.stem:
                segment["lists" if path.suffix == ".lists" else "texts"] = facts

    change_manifest(folder, change)


def _change_value(value: Any, rng: random.Random) -> None:
    """Put something else in the place of a random part of it."""
    while True:
        places = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not places:
            return
        place = rng.choice(places)
        if not isinstance(value[place], dict | list) or rng.random() < 0.3:
            others = [None, True, -1, 0, 1, 10**40, 0.5, "", "x" * 99, [], {}, [[]], {"n_t": 1}, 2**63]
            value[place] = rng.choice(others)
            return
        value = value[place]


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a manifest says, and its digest."""
    manifest = folder / MANIFEST
    value = json.loads(manifest.read_bytes().split(b"\n")[1])
    change(value)
    body = json.dumps(value).encode()
    first = json.dumps({"coil": 4, "sha256": hashlib.sha256(body).hexdigest()}).encode()
    manifest.write_bytes(first + b"\n" + body + b"\n")


def use(folder: Path) -> None:
    """Everything that a user may do with an index."""
    steps: list[BaseException] = []
    with open_index(folder, HashEncoder()) as index:
        for step in (
            lambda: index.search_many(QUERIES, k=3),
            lambda: index.search_many(QUERIES, k=1000),
            lambda: index.search("river bank", filter="year >= 3"),
            lambda: index.explain("river bank", "d5"),
            lambda: index.search("river bank", by="bm25"),
            lambda: index.rerank("river bank", ["d5", "d6"]),
            index.inspect,
            index.verify,
            lambda: index.update([{"id": "d7", "text": "money"}, {"id": "new", "text": "river"}]),
            lambda: index.delete(["d8"]),
            index.compact,
        ):
            try:
                step()
            except CoilError as error:
                steps.append(error)
    if steps:
        raise steps[0]


def main(template: str, work: str, seed: str, count: str) -> None:
    """Tell what came of each mutation: `whole`, or the name of the error; anything else ends the process."""
    rng = random.Random(int(seed))
    for number in range(int(count)):
        folder = Path(work) / f"{seed}-{number}.coil"
        shutil.copytree(template, folder)
        what = mutate(folder, rng)
        print(f"{number} {what}:", end=" ", flush=True)
        try:
            use(folder)
        except CoilError as error:
            print(type(error).__name__, flush=True)
        else:
            print("whole", flush=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
