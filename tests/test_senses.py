"""experiments/senses.json: fixed items in which shared words give nothing away."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coil.explanations.explanation import explain
from coil.texts.values import Document
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.model_files import bundled_model
from coil.vectors.onnx_encoder import OnnxEncoder
from experiments.senses import measure, read_items

PATH = Path(__file__).resolve().parent.parent / "experiments" / "senses.json"
ITEMS: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
DIGEST = "f932b302a509efb487c0925391436604a029744c3690e1f6404eca932362e1f3"
SENTENCES = ("query", "same", "other")


def test_half_of_twenty_are_held_and_none_has_changed() -> None:
    assert len({item["word"] for item in ITEMS}) == len(ITEMS) == 20
    assert sum(item["held"] for item in ITEMS) == 10
    # A figure is worth something only as long as nobody touches what it was measured on.
    assert (
        hashlib.sha256(PATH.read_bytes()).hexdigest()
        == "f932b302a509efb487c0925391436604a029744c3690e1f6404eca932362e1f3"
    )


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item["word"])
def test_shared_words_do_not_point_to_the_right_sense(item: dict[str, Any]) -> None:
    folder = bundled_model()
    keys = ListKeys(ModelConfig.load(folder).profile, Tokenizer.from_file(folder / "tokenizer.json"))
    words = {name: re.findall(r"\w+", item[name]) for name in SENTENCES}
    assert all(words[name].count(item["word"]) == 1 for name in SENTENCES)
    for of in (_plain, _listed(keys)):
        query, same, other = (of(item[name]) - of(item["word"]) for name in SENTENCES)
        assert len(query & same) <= len(query & other)
    query, same, _ = (_listed(keys)(item[name]) for name in SENTENCES)
    assert len(query & same) == 1, "the word itself, and no other list"


def test_similarities_are_those_of_a_search() -> None:
    encoder = OnnxEncoder(threads=1)
    items = read_items()[:4]
    found = measure(encoder, items)
    assert {name: part["items"] for name, part in found.items()} == {"open": 2, "held": 2}
    right = 0
    for item in items:
        searched = [_searched(encoder, item.query, text, item.word) for text in (item.same, item.other)]
        part = found["held" if item.held else "open"]
        assert part["similarities"][item.word] == pytest.approx(searched, rel=0.03, abs=0.03)  # int8 lists
        right += searched[0] > searched[1]
    assert right == sum(part["right"] for part in found.values())


def _searched(encoder: OnnxEncoder, query: str, text: str, word: str) -> float:
    matches = explain(encoder, query, Document("d", text)).matches
    [similarity] = [match.similarity for match in matches if match.query_token == word]
    return similarity


def _plain(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _listed(keys: ListKeys) -> Callable[[str], set[str]]:
    """The lists of a text: stop words have none."""

    def found(text: str) -> set[str]:
        [keyed] = keys.of_texts([text], 64)
        return {key for key in keyed.keys if key is not None}

    return found
