"""Running systems: training, indexing and searching, unless the results are cached.

Queries are run one at a time, and the time of each part is stored with the answer. One query is run
beforehand, untimed, to load the models.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from coil.comparison.document_store import DocumentStore, store_documents
from coil.comparison.plan import Entry, Plan
from coil.comparison.progress import Progress
from coil.comparison.training import Trainer, identity
from coil.comparison.work_folder import Kept, WorkFolder, digest_of
from coil.errors import CoilError, InputError, how_many
from coil.metrics.machine import describe_machine
from coil.systems.system import Answered
from coil.texts.collections import JudgedCollection
from coil.texts.judgements import Judgements
from coil.texts.values import Query

ANSWERS_FILE = "answers.jsonl"


@dataclass(frozen=True, eq=False)
class Ready:
    """A collection that has been read and checked."""

    name: str
    kept: Kept
    digest: str
    documents: int
    queries: list[Query]
    judgements: Judgements
    notes: tuple[str, ...]  # about the data, for readers of the report


@dataclass(frozen=True)
class SystemRun:
    """The answers of a system, and their cost.

    The index size excludes stored texts and includes the indexes of systems that this one builds on.
    """

    entry: Entry
    answers: list[Answered]
    key: str
    index_bytes: int
    index_seconds: float
    training: dict[str, Any]  # of a model trained in this comparison: seconds, steps, base
    machine: dict[str, Any]  # on which the times were measured


class Laboratory:
    """Runs the systems of a plan on collections, with one work folder."""

    def __init__(self, plan: Plan, work: WorkFolder, progress: Progress) -> None:
        self._plan, self._work, self._progress = plan, work, progress
        self._trainer = Trainer(work, progress)
        self._models: dict[str, tuple[str | None, str | None]] = {}

    def train(self) -> None:
        """Train all models of the plan."""
        for entry in self._plan.entries:
            self._model(entry)

    def read(self, collection: JudgedCollection) -> Ready:
        """Read and check a collection, unless it is cached."""
        queries, judgements = collection.judged()
        kept = self._work.kept("collections", identity(collection))
        if not kept.is_complete:
            with (
                kept.making() as (folder, facts),
                self._progress.stage(f"{collection.name}: reading", None, "documents") as done,
            ):
                facts.update(store_documents(collection.documents(), folder, done))
        facts = kept.facts()
        with closing(DocumentStore(kept.content)) as store:
            judged = {doc_id for of_query in judgements.values() for doc_id in of_query}
            absent = len(judged) - len(store.places(judged))
        if absent == len(judged):
            raise InputError(
                f"none of the {how_many(absent, 'judged document')} is in the collection {collection.name}",
                "pass the judgements of this collection; ids are case-sensitive",
            )
        notes = []
        if absent:
            notes.append(
                f"{how_many(absent, 'judged document')} not in the collection: no system can find "
                f"{'it' if absent == 1 else 'them'}"
            )
        if facts["empty"]:
            notes.append(f"{how_many(facts['empty'], 'document')} without text")
        unjudged = sum(1 for of in judgements.values() if max(of.values(), default=0) <= 0)
        if unjudged:
            count = how_many(unjudged, "judged query")
            notes.append(f"{count} without a relevant document: 0 for every system")
        return Ready(
            collection.name, kept, facts["digest"], facts["documents"], queries, judgements, tuple(notes)
        )

    def run(self, collection: Ready) -> list[SystemRun]:
        """Run all systems of the plan; returns those to show, in the order given."""
        runs: dict[str, SystemRun] = {}
        with closing(DocumentStore(collection.kept.content)) as store:
            for entry in self._plan.entries:
                runs[entry.label] = self._run(entry, collection, store, runs)
        return [runs[entry.label] for entry in self._plan.shown]

    def _model(self, entry: Entry) -> tuple[str | None, str | None]:
        if entry.label not in self._models:
            self._models[entry.label] = self._trainer.model_of(entry, self._plan.trainings)
        return self._models[entry.label]

    def _run(
        self, entry: Entry, collection: Ready, store: DocumentStore, runs: dict[str, SystemRun]
    ) -> SystemRun:
        model, digest = self._model(entry)
        system = entry.make(model)
        below = [runs[label] for label in entry.inputs]
        index = None
        if hasattr(system, "index") and (not entry.inputs or hasattr(system, "rerank_stored")):
            index = self._index(entry, system, digest, collection, store)
        kept = self._work.kept(
            "runs",
            {
                "collection": collection.digest,
                "queries": digest_of([[query.query_id, query.text] for query in collection.queries]),
                "k": self._plan.k,
                "system": entry.kind,
                "options": entry.option_texts,
                "model": digest,
                "index": index.key if index is not None else None,
                "below": [run.key for run in below],
                "depth": entry.depth if entry.reranks else None,
            },
        )
        if not kept.is_complete:
            self._answer(entry, system, kept, collection, store, below, index)
        training = {}
        if entry.training is not None:
            training = self._trainer.find(entry, self._plan.trainings[entry.training]).facts()
        return SystemRun(
            entry,
            list(read_answers(kept.content / ANSWERS_FILE)),
            kept.key,
            sum(run.index_bytes for run in below) + (_index_bytes(system, index) if index else 0),
            sum(run.index_seconds for run in below) + (index.facts()["seconds"] if index is not None else 0),
            training,
            kept.facts()["machine"],
        )

    def _index(
        self, entry: Entry, system: Any, model: str | None, collection: Ready, store: DocumentStore
    ) -> Kept:
        depends = (
            system.index_inputs()
            if hasattr(system, "index_inputs")
            else {
                "system": entry.kind,
                "options": entry.option_texts,
            }
        )
        kept = self._work.kept(
            "indexes", {"collection": collection.digest, "model": model, "depends": depends}
        )
        if not kept.is_complete:
            what = f"{collection.name}: indexing for {entry.label}"
            with (
                kept.making(goes_on=getattr(system, "continues_index", False)) as (folder, _),
                self._progress.stage(what, collection.documents, "documents") as done,
            ):
                system.index(_counted(store.documents(), done), folder)
        return kept

    def _answer(
        self,
        entry: Entry,
        system: Any,
        kept: Kept,
        collection: Ready,
        store: DocumentStore,
        below: Sequence[SystemRun],
        index: Kept | None,
    ) -> None:
        """Run all queries that an interrupted attempt has not answered."""
        verb = "reranking" if entry.reranks else "merging" if entry.inputs else "searching"
        what = f"{collection.name}: {verb} with {entry.label}"
        with (
            kept.making(goes_on=True) as (folder, facts),
            self._progress.stage(what, len(collection.queries), "queries") as done,
        ):
            path = folder / ANSWERS_FILE
            known = _cut_torn_line(path)
            done(known)
            left = collection.queries[known:]
            if left and not (entry.inputs and not entry.reranks):
                warm = _ask(system, entry, left[:1], self._plan.k, store, below, index)
                for _ in warm:
                    pass
            answers = _ask(system, entry, left, self._plan.k, store, below, index)
            with path.open("a", encoding="utf-8") as file:
                for query, answer in zip(left, answers, strict=True):
                    _check_answer(entry, query, answer)
                    file.write(json.dumps(asdict(answer)) + "\n")
                    file.flush()
                    done(1)
            facts["machine"] = describe_machine()


def _ask(
    system: Any,
    entry: Entry,
    queries: Sequence[Query],
    k: int,
    store: DocumentStore,
    below: Sequence[SystemRun],
    index: Kept | None,
) -> Iterator[Answered]:
    """Search, rerank or merge, depending on the entry."""
    if not entry.inputs:
        assert index is not None
        yield from system.search(queries, k, index.content)
        return
    found = [{answer.query_id: answer for answer in run.answers} for run in below]
    if not entry.reranks:
        for query in queries:
            answers = [of_run[query.query_id] for of_run in found]
            places = store.places(doc_id for answer in answers for doc_id in answer.doc_ids)
            yield system.fuse(answers, k, places.__getitem__)
        return
    [first] = found
    candidates = {query.query_id: first[query.query_id].doc_ids[: entry.depth] for query in queries}
    reranked = (
        system.rerank_stored(queries, candidates, index.content)
        if index is not None
        else system.rerank(queries, candidates, store)
    )
    for answer in reranked:
        parts = dict(first[answer.query_id].parts_ms)
        for part, took in answer.parts_ms.items():
            parts[part] = parts.get(part, 0.0) + took
        # Ties are in the order of the collection, not in that of the candidates.
        places = store.places(answer.doc_ids)
        ranked = sorted(
            zip(answer.doc_ids, answer.scores, strict=True),
            key=lambda pair: (-pair[1], places.get(pair[0], 0)),
        )[:k]
        yield Answered(answer.query_id, [one for one, _ in ranked], [score for _, score in ranked], parts)


def read_answers(path: Path) -> Iterator[Answered]:
    """The answers of a run."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield Answered(**json.loads(line))


def _cut_torn_line(path: Path) -> int:
    """Count the answers, and remove an incomplete last line, left by a kill."""
    if not path.is_file():
        return 0
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    if end < len(data):
        with path.open("r+b") as file:
            file.truncate(end)
    return data[:end].count(b"\n")


def _check_answer(entry: Entry, query: Query, answer: Answered) -> None:
    """Refuse an answer that violates the protocol."""
    wrong = ""
    if answer.query_id != query.query_id:
        wrong = f"answered {answer.query_id!r} instead"
    elif len(answer.doc_ids) != len(answer.scores):
        wrong = f"returned {len(answer.doc_ids)} documents but {len(answer.scores)} scores"
    elif len(set(answer.doc_ids)) < len(answer.doc_ids):
        wrong = "returned a document twice"
    elif not all(math.isfinite(score) for score in answer.scores):
        wrong = "returned a score that is not a finite number"
    elif any(a < b for a, b in zip(answer.scores, answer.scores[1:], strict=False)):
        wrong = "returned scores that are not in descending order"
    elif not answer.parts_ms or not all(math.isfinite(took) for took in answer.parts_ms.values()):
        wrong = "did not report its time"
    if wrong:
        raise CoilError(
            f"the system {entry.label!r} ({entry.kind}) {wrong} for the query {query.query_id!r:.80}",
            "this is a bug in the system's code, not in the data",
        )


def _index_bytes(system: Any, index: Kept) -> int:
    texts = system.text_bytes(index.content) if hasattr(system, "text_bytes") else 0
    return index.bytes() - int(texts)


def _counted(documents: Iterator[Any], done: Any) -> Iterator[Any]:
    for document in documents:
        yield document
        done(1)
