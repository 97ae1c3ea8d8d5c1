"""COIL's side of `bench.peers`: an index of SciFact, and one of a million synthetic documents."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from coil.errors import CoilError
from coil.hits.rankers import NativeRanker, Selection
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.scores.prepared import PreparedQuery
from coil.storage.snapshot import open_snapshot
from coil.texts.corpora import read_documents
from coil.texts.judgements import Judgements, read_judgements
from coil.texts.queries import read_queries
from coil.texts.values import Document, Query
from coil.tokens.profile import By
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

Parts = dict[str, float]  # milliseconds of one query, by part; "total" is always there
Contestant = Callable[[list[int]], list[Parts]]  # answers these queries, one at a time
Run = dict[str, dict[str, float]]  # query → document → score
WARM_UP = 2  # queries before the clock runs, as the peers have them


@dataclass(frozen=True)
class SciFact:
    """The collection, and COIL's index of it, searched with one thread or with two."""

    documents: list[Document]
    queries: list[Query]
    judgements: Judgements
    indexes: dict[int, Index]

    @classmethod
    def open(cls, folder: Path, work: Path, most: int | None) -> SciFact:
        """Read the collection; its index is made where there is none that can be used."""
        judged = read_judgements(folder)
        documents = list(read_documents(folder))
        queries = [query for query in read_queries(folder) if query.query_id in judged][:most]
        place, encoder = work / "scifact.coil", OnnxEncoder(threads=1)
        if not _usable(place, encoder, len(documents)):
            _build(place, documents)
        return cls(
            documents,
            queries,
            {query.query_id: judged[query.query_id] for query in queries},
            {threads: open_index(place, encoder=encoder, threads=threads) for threads in (1, 2)},
        )

    def contestant(self, threads: int, k: int, by: By = "coil") -> tuple[Contestant, Run]:
        """COIL, and the run that it fills as it answers."""
        index = self.indexes[threads]
        run: Run = {}

        def search(numbers: list[int]) -> list[Parts]:
            for number in numbers[:WARM_UP]:
                index.search(self.queries[number].text, k, by=by)
            costs = []
            for number in numbers:
                query = self.queries[number]
                began = time.perf_counter()
                [answer] = index.answer_many([query.text], k, by=by, texts=True, plain=True)
                total = (time.perf_counter() - began) * 1000
                stats = answer.stats
                # What is not encoding is searching: scores, the texts of the hits, and all the rest.
                parts = {"encode": stats.encode_ms, "search": total - stats.encode_ms}
                parts |= {"score": stats.score_ms, "fetch": stats.fetch_ms}
                costs.append({"total": total, **parts})
                run[query.query_id] = {hit.doc_id: hit.score for hit in answer.hits}
            return costs

        return search, run

    def write_matrices(self, path: Path) -> str:
        """One matrix a text, of the tokens that have a list: what a MaxSim engine is given; their digest.

        Documents as the index stores them, at length 1, which such engines expect; queries as they are, since
        the length of a query's vector only says how much its token counts.
        """
        index = self.indexes[1]
        with index.pinned() as pinned:
            live = [live.segment for live in pinned.searcher.collection.segments]
        vectors = np.concatenate([segment.vectors[: segment.n_mentions].decode() for segment in live])
        ordinals = np.concatenate(
            [segment.row_documents[segment.mention_rows().astype(np.int64)] for segment in live]
        )
        order = np.argsort(ordinals, kind="stable")
        # The index was made from these documents in this order: ordinals ascend as their numbers do.
        first = min(int(segment.row_documents[0]) for segment in live)
        lengths = np.bincount(ordinals - first, minlength=len(self.documents))
        queries = [
            self._listed(query) for query in index.encoder.encode_queries(q.text for q in self.queries)
        ]
        if not lengths.all() or not all(len(query) for query in queries):
            raise CoilError(
                "a text has no token with a list", "leave it out: an empty matrix cannot be ranked"
            )
        arrays: dict[str, NDArray[Any]] = {
            "documents": _unit(vectors[order]),
            "lengths": lengths,
            "queries": np.concatenate(queries),
            "query_lengths": np.array([len(query) for query in queries]),
        }
        np.savez(path, **arrays)  # type: ignore[arg-type]
        digest = hashlib.sha256()
        for array in arrays.values():
            digest.update(array.tobytes())
        return digest.hexdigest()[:12]

    def _listed(self, query: TokenVectors) -> NDArray[np.float32]:
        return query.vectors[[place for place, key in enumerate(query.keys) if key is not None]]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit: NDArray[np.float32] = np.divide(vectors, np.maximum(lengths, 1e-9), dtype=np.float32)
    return unit


def _usable(place: Path, encoder: OnnxEncoder, documents: int) -> bool:
    """Whether an index is there, whole, and of the model and format of today."""
    if not place.exists():
        return False
    try:
        with open_index(place, encoder=encoder) as index:
            index.search("one search tells", 1)
            return len(index) == documents
    except CoilError as error:
        print(f"{place} is made again: {error}", file=sys.stderr, flush=True)
        return False


def _build(place: Path, documents: list[Document]) -> None:
    shutil.rmtree(place, ignore_errors=True)
    unfinished = place.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    with create(unfinished) as index:
        index.add(tqdm(documents, desc="indexing", unit=" documents", disable=None))
        index.compact()
    os.replace(unfinished, place)


@dataclass(frozen=True)
class Million:
    """Synthetic documents: lists with Zipf's lengths and random vectors, in COIL's own files."""

    queries: list[PreparedQuery]
    rankers: dict[int, NativeRanker]  # by threads

    def contestant(self, threads: int, k: int, tok_only: bool) -> Contestant:
        """COIL with or without the sentence vector; queries are encoded already, as faiss has them."""
        queries = [replace(query, sentence=None) if tok_only else query for query in self.queries]
        ranker, selection = self.rankers[threads], Selection(k)

        def search(numbers: list[int]) -> list[Parts]:
            for number in numbers[:WARM_UP]:
                ranker.rank([queries[number % len(queries)]], selection)
            costs = []
            for number in numbers:
                began = time.perf_counter()
                ranker.rank([replace(queries[number % len(queries)])], selection)  # nothing cached
                costs.append({"total": (time.perf_counter() - began) * 1000})
            return costs

        return search


def ours(documents: int, work: Path, n_t: int = 32, n_c: int = 256) -> Million | None:
    """Our side of a comparison over so many documents; None where bench.synthetic is not there to make them.

    The widths are those of the bundled model.
    """
    try:
        from bench import synthetic
    except ImportError:
        return None
    place = work / f"synthetic-{documents}.coil"
    try:
        snapshot = open_snapshot(place)
    except (CoilError, OSError) as error:
        print(f"{place} is made: {error}", file=sys.stderr, flush=True)
        shutil.rmtree(place, ignore_errors=True)
        unfinished = place.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        synthetic.write_index(unfinished, documents, n_t, n_c)
        os.replace(unfinished, place)
        snapshot = open_snapshot(place)
    rankers = {n: NativeRanker(snapshot.segments, n) for n in (1, 2)}
    return Million(synthetic.make_queries(8, synthetic.QUERY, n_t, n_c, snapshot.segments), rankers)
