"""Does the contextual similarity prefer the right sense of a word?

    python -m experiments.senses [MODEL] [--open-only] [--save]

Each item of experiments/senses.json has a word, a query that uses it in one sense, a sentence with the same
sense and one with the other. An item is correct if the product of the word's vectors is larger for the same
sense. Ten items are held out: with --open-only, as while choosing among models, they are not measured.
--save writes experiments/results/senses.json. MODEL is the bundled one by default.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.stamp import stamp, write_result
from coil.errors import InputError
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

HERE = Path(__file__).resolve().parent
ITEMS = HERE / "senses.json"


@dataclass(frozen=True)
class Sense:
    """One word in two senses."""

    word: str
    query: str
    same: str
    other: str
    held: bool


def main() -> None:
    """Measure, print and, if asked to, write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--open-only", action="store_true")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    if arguments.save and arguments.open_only:
        parser.error("--save requires all items")
    encoder = OnnxEncoder(arguments.model)
    found = measure(encoder, [item for item in read_items() if not (arguments.open_only and item.held)])
    for name, part in found.items():
        print(f"{name}: {part['right']} of {part['items']} prefer the right sense")
    for word, (same, other) in found["open"]["similarities"].items():
        print(f"  {word:8} same sense {same:6.3f}, other {other:6.3f}{'' if same > other else '  wrong'}")
    if arguments.save:
        result = {**stamp(), "model": {"fingerprint": encoder.fingerprint}, "senses": found}
        print(f"wrote {write_result('senses', result, HERE / 'results' / 'senses.json')}")


def read_items() -> list[Sense]:
    """The committed items."""
    return [Sense(**item) for item in json.loads(ITEMS.read_text(encoding="utf-8"))]


def measure(encoder: Encoder, items: Sequence[Sense]) -> dict[str, Any]:
    """How many open and held items are right, and both similarities of each."""
    queries = encoder.encode_queries(item.query for item in items)
    same = encoder.encode_documents(item.same for item in items)
    other = encoder.encode_documents(item.other for item in items)
    parts: dict[str, dict[str, Any]] = {}
    for item, *encoded in zip(items, queries, same, other, strict=True):
        query, right, wrong = (
            mention(encoder, item.word, text, vectors)
            for text, vectors in zip((item.query, item.same, item.other), encoded, strict=True)
        )
        part = parts.setdefault("held" if item.held else "open", {"items": 0, "right": 0, "similarities": {}})
        products = [round(float(query @ vector), 4) for vector in (right, wrong)]
        part["items"] += 1
        part["right"] += int(query @ right > query @ wrong)
        part["similarities"][item.word] = products
    return parts


def mention(encoder: Encoder, word: str, text: str, vectors: TokenVectors) -> NDArray[np.float32]:
    """The vector of the one mention of a word, found by the list that the word is in."""
    [keyed] = encoder.keys.of_texts([word], encoder.config.profile.query_length)
    places = [i for i, key in enumerate(vectors.keys) if key is not None and (key,) == keyed.keys]
    if len(places) != 1:
        raise InputError(f"{text!r} has {len(places)} mentions of {word!r}; expected one")
    return vectors.vectors[places[0]]


if __name__ == "__main__":
    main()
