"""Test collections: documents, queries and judgements that belong together, in the usual layouts.

| layout | documents | queries | judgements |
|---|---|---|---|
| `irds:NAME` | the dataset's | the dataset's | the dataset's |
| BEIR folder | corpus.jsonl | queries.jsonl | qrels/SPLIT.tsv, SPLIT being `test` unless named |
| MS MARCO passages, `dev` | collection.tsv | queries.dev.small.tsv | qrels.dev.small.tsv |
| the same, `trec-dl-2019` | collection.tsv | msmarco-test2019-queries.tsv | 2019qrels-pass.txt |
| MS MARCO documents, `dev` | msmarco-docs.tsv | msmarco-docdev-queries.tsv | msmarco-docdev-qrels.tsv |
| the same, `trec-dl-2019` | msmarco-docs.tsv | msmarco-test2019-queries.tsv | 2019qrels-docs.txt |

Each file may be compressed. The split `train` works the same way, with MS MARCO's file names. Queries and
judgements may also be passed separately, and then need not be in the folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coil.errors import InputError, how_many
from coil.texts.corpora import CORPUS_FILE, Documents, read_documents
from coil.texts.irds import IRDS, is_irds
from coil.texts.judgements import Judgements, read_judgements
from coil.texts.opening import name_of
from coil.texts.queries import QUERIES_FILE, read_queries
from coil.texts.records import find_in_folder
from coil.texts.values import Query

Splits = Mapping[str, tuple[str, str]]
_PASSAGES: Splits = {
    "dev": ("queries.dev.small.tsv", "qrels.dev.small.tsv"),
    "train": ("queries.train.tsv", "qrels.train.tsv"),
    "trec-dl-2019": ("msmarco-test2019-queries.tsv", "2019qrels-pass.txt"),
}
_DOCUMENTS: Splits = {
    "dev": ("msmarco-docdev-queries.tsv", "msmarco-docdev-qrels.tsv"),
    "train": ("msmarco-doctrain-queries.tsv", "msmarco-doctrain-qrels.tsv"),
    "trec-dl-2019": ("msmarco-test2019-queries.tsv", "2019qrels-docs.txt"),
}
MARCO: dict[str, Splits] = {"collection.tsv": _PASSAGES, "msmarco-docs.tsv": _DOCUMENTS}
"""File of documents → split → files of queries and judgements."""

_SHOWN = 3  # ids named in a message


@dataclass(frozen=True)
class JudgedCollection:
    """The sources of the three parts of a collection."""

    name: str
    corpus: str
    queries: str
    qrels: str

    def documents(self) -> Documents:
        """The documents, in order."""
        return read_documents(self.corpus)

    def judged(self) -> tuple[list[Query], Judgements]:
        """The judged queries, in order, and the judgements.

        Queries without judgements are left out. A judged query that is missing from the queries is an error:
        it would count as unanswered for every system.
        """
        judgements = read_judgements(self.qrels)
        queries = [query for query in read_queries(self.queries) if query.query_id in judgements]
        known = {query.query_id for query in queries}
        unknown = [query_id for query_id in judgements if query_id not in known]
        if unknown:
            shown = ", ".join(repr(query_id[:80]) for query_id in unknown[:_SHOWN])
            raise InputError(
                f"{how_many(len(unknown), 'query')} judged in {name_of(self.qrels)} "
                f"{'is' if len(unknown) == 1 else 'are'} not in {name_of(self.queries)}: {shown}"
                + (", ..." if len(unknown) > _SHOWN else ""),
                "pass the queries that the judgements belong to, or remove the other judgements",
            )
        return queries, judgements


def find_collection(
    source: str, split: str | None = None, queries: str | None = None, qrels: str | None = None
) -> JudgedCollection:
    """The collection of a source; `queries` and `qrels` replace its own."""
    if is_irds(source):
        if split is not None:
            raise InputError(f"{source} has no splits to choose from", f"use {source}/{split}, if it exists")
        return JudgedCollection(source.removeprefix(IRDS), source, queries or source, qrels or source)
    folder = Path(source)
    if not folder.is_dir():
        if queries is None or qrels is None:
            raise InputError(
                f"{name_of(source)} is {'a file' if folder.exists() else 'missing'}; expected a folder "
                "with documents, queries and judgements, or irds:NAME",
                "for a file of documents, pass the queries and the qrels as well",
            )
        return JudgedCollection(folder.name, source, queries, qrels)
    name = folder.resolve().name
    corpus = find_in_folder(folder, CORPUS_FILE)
    if corpus is not None:
        of_split = f"qrels/{split or 'test'}.tsv"
        return JudgedCollection(
            name if split in (None, "test") else f"{name}/{split}",
            str(corpus),
            queries or _in(folder, QUERIES_FILE),
            qrels or _in(folder, of_split),
        )
    for documents, splits in MARCO.items():
        corpus = find_in_folder(folder, documents)
        if corpus is None:
            continue
        chosen = split or "dev"
        if chosen not in splits:
            raise InputError(f"{name_of(source)} has no split {chosen!r}", f"choose {', '.join(splits)}")
        of_queries, of_qrels = splits[chosen]
        return JudgedCollection(
            f"{name}/{chosen}",
            str(corpus),
            queries or _in(folder, of_queries),
            qrels or _in(folder, of_qrels),
        )
    raise InputError(
        f"the folder {name_of(source)} contains none of {CORPUS_FILE}, {', '.join(MARCO)}",
        "pass a BEIR folder, a folder with MS MARCO's files, or irds:NAME",
    )


def _in(folder: Path, name: str) -> str:
    path = find_in_folder(folder, name)
    if path is None:
        raise InputError(
            f"the folder {name_of(folder)} contains no {name}", "put it there, or pass another file"
        )
    return str(path)
