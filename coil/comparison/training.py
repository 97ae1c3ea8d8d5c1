"""Training of models, each once, with preparation of pairs and negatives if necessary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from glob import glob
from pathlib import Path
from typing import Any

from coil.comparison.plan import Entry, Training
from coil.comparison.progress import Progress
from coil.comparison.work_folder import Kept, WorkFolder, digest_of_file, digest_of_folder
from coil.errors import InputError, require
from coil.systems.registry import system_class
from coil.systems.system import TrainingData
from coil.texts.collections import JudgedCollection, find_collection
from coil.texts.irds import is_irds
from coil.vectors.model_files import resolve_folder, resolve_weights

NEGATIVES_FILE = "negatives.jsonl"


class Trainer:
    """Trains models in a work folder."""

    def __init__(self, work: WorkFolder, progress: Progress) -> None:
        self._work, self._progress = work, progress
        self._digests: dict[Path, str] = {}

    def model_of(self, entry: Entry, trainings: Mapping[str, Training]) -> tuple[str | None, str | None]:
        """The folder of the model that an entry uses, and its digest; both None if it uses none."""
        if entry.training is not None:
            kept = self.train(entry, trainings[entry.training])
            return str(kept.content), kept.key
        if not any(field.name == "model" for field in fields(system_class(entry.kind))):
            return None, None
        folder = resolve_folder(entry.model)
        if folder not in self._digests:
            self._digests[folder] = digest_of_folder(folder)
        return entry.model, self._digests[folder]

    def find(self, entry: Entry, training: Training) -> Kept:
        """The cached model of an entry, which may not exist yet."""
        return self._kept(entry, training, self._data(training))

    def train(self, entry: Entry, training: Training) -> Kept:
        """The trained model of an entry."""
        data = self._data(training)
        kept = self._kept(entry, training, data)
        if kept.is_complete:
            return kept
        recipe = data.recipe
        length = f"{recipe.steps} steps" if recipe.steps else f"{recipe.epochs:g} epochs"
        self._progress.say(f"training {entry.label} ({length})")
        with kept.making(goes_on=True) as (folder, facts):
            entry.make().fit(data, folder, self._progress.say)
            facts.update(steps=recipe.steps, epochs=0 if recipe.steps else recipe.epochs, base=training.base)
        return kept

    def _kept(self, entry: Entry, training: Training, data: TrainingData) -> Kept:
        system = entry.make()
        shape = (
            system.training_inputs()
            if hasattr(system, "training_inputs")
            else {"system": entry.kind, "options": entry.option_texts}
        )
        base = resolve_weights(training.base)
        if base not in self._digests:
            self._digests[base] = digest_of_folder(base)
        inputs = {
            **shape,
            "base": self._digests[base],
            "pairs": [digest_of_file(path) for path in data.pairs],
            "names": [path.name for path in data.pairs],  # references in negatives begin with them
            "negatives": [digest_of_file(path) for path in data.negatives],
            "corpus": data.corpus,
            "recipe": data.recipe.to_json(),
        }
        return self._work.kept("models", inputs)

    def _data(self, training: Training) -> TrainingData:
        pairs = [path for source in training.pairs for path in self._pairs(source)]
        negatives = [_file(name, "negatives") for name in training.negatives]
        if training.mine:
            negatives.append(self._mined(pairs))
        # Documents of a corpus are not part of prepared pairs.
        prepared = self._work.path / "prepared" if training.corpus is None else None
        return TrainingData(
            pairs, training.base, negatives, training.corpus, training.recipe, training.device, prepared
        )

    def _pairs(self, source: str) -> Iterator[Path]:
        """The pairs files of a source; the judgements of a collection are converted to pairs."""
        if not is_irds(source) and not Path(source).is_dir():
            found = sorted(Path(name) for name in glob(source)) if "*" in source else []
            yield from found or [_file(source, "pairs")]
            return
        collection = find_collection(source, None if is_irds(source) else "train")
        kept = self._work.kept("pairs", {"pairs": identity(collection)})
        name = f"{collection.name.replace('/', '-')}.jsonl"
        if not kept.is_complete:
            with (
                kept.making() as (folder, facts),
                self._progress.stage(f"pairs of {source}", None, "documents") as done,
                (folder / name).open("w", encoding="utf-8") as file,
            ):
                count = 0
                for pair in _judged_pairs(collection):
                    file.write(json.dumps(pair) + "\n")
                    count += 1
                    done(1)
                facts["pairs"] = count
        yield kept.content / name

    def _mined(self, pairs: list[Path]) -> Path:
        from coil.training.mine import Mining, mine, rank_with_bm25

        require("bm25s", "train")
        mining = Mining()
        inputs = {
            "negatives": asdict(mining),
            "pairs": [[path.name, digest_of_file(path)] for path in pairs],
        }
        kept = self._work.kept("pairs", inputs)
        if not kept.is_complete:
            self._progress.say("mining negatives with BM25")
            with kept.making() as (folder, facts):
                facts["queries"] = mine(pairs, folder / NEGATIVES_FILE, rank_with_bm25, mining, "BM25")
        return kept.content / NEGATIVES_FILE


def identity(collection: JudgedCollection) -> dict[str, Any]:
    """Paths, sizes and timestamps of a collection's files, to detect changes without reading them."""
    parts: dict[str, Any] = {}
    for part in ("corpus", "queries", "qrels"):
        source: str = getattr(collection, part)
        if is_irds(source):
            parts[part] = [source, str(require("ir_datasets", "irds").__version__)]
            continue
        path = Path(source)
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        parts[part] = [
            [str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns]
            for file in files
            if file.is_file()
        ]
    return parts


def _judged_pairs(collection: JudgedCollection) -> Iterator[dict[str, str]]:
    """Pairs of a query and a relevant document, in the order of the documents."""
    queries, judgements = collection.judged()
    asked: dict[str, list[str]] = {}
    for query in queries:
        for doc_id, relevance in judgements[query.query_id].items():
            if relevance > 0 and query.text.strip():
                asked.setdefault(doc_id, []).append(query.text)
    for document in collection.documents():
        if document.doc_id in asked and document.text.strip():
            for text in asked[document.doc_id]:
                yield {"query": text, "positive": document.text}


def _file(name: str, what: str) -> Path:
    path = Path(name)
    if not path.is_file():
        raise InputError(
            f"{what} file not found: {name}", "check the path; placeholders in a config are set with --set"
        )
    return path
