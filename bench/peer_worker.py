"""Another system, asked over standard input, in a virtual environment of its own.

    PYTHON -I bench/peer_worker.py bm25s|faiss|plaid FOLDER THREADS

`bench.peers` starts it and writes what it needs into FOLDER. A request is a line of JSON, such as
{"queries": [0, 1], "k": 10, "setting": {}}, the answer another: milliseconds and hits of each query. This
file imports nothing of the project, because the project is not installed where it runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Protocol

Hits = list[tuple[int, float]]  # number of the document, score
WARM_UP = 2  # queries before the clock runs, unless fewer are asked: caches, compilers, threads


class System(Protocol):
    """One system with its documents and queries."""

    packages: tuple[str, ...]

    def search(self, query: int, k: int, setting: dict[str, Any]) -> Any:
        """What is timed: all that the system's user would call for one query."""
        ...

    def hits(self, found: Any) -> Hits:
        """What was found, in one form for all systems; not timed."""
        ...


class Bm25s:
    """bm25s with the settings of the project's own BM25 runs, on either of its backends."""

    packages = ("bm25s", "numba", "PyStemmer", "snowballstemmer")

    def __init__(self, folder: Path, threads: int) -> None:
        import bm25s
        import Stemmer  # type: ignore[import-not-found]
        from snowballstemmer.english_stemmer import EnglishStemmer

        assert threads == 1
        self._bm25s = bm25s
        texts = json.loads((folder / "texts.json").read_text(encoding="utf-8"))
        self._queries = texts["queries"]
        # The same stems twice: in Python, which needs no compiler, and in C.
        self._stemmers = {
            "python": EnglishStemmer().stemWords,
            "c": Stemmer.Stemmer("english").stemWords,
        }
        # A hit is a document with its text, as COIL's is.
        self._documents = [{"number": n, "text": text} for n, text in enumerate(texts["documents"])]
        words = self._tokenize(texts["documents"], "c")
        self._indexes = {}
        for backend in ("numpy", "numba"):
            self._indexes[backend] = bm25s.BM25(method="lucene", k1=0.9, b=0.4, backend=backend)
            self._indexes[backend].index(words, show_progress=False)

    def _tokenize(self, texts: list[str], stemmer: str) -> Any:
        return self._bm25s.tokenize(
            texts, stopwords="en", stemmer=self._stemmers[stemmer], show_progress=False
        )

    def search(self, query: int, k: int, setting: dict[str, Any]) -> Any:
        words = self._tokenize([self._queries[query]], setting["stemmer"])
        index = self._indexes[setting["backend"]]
        return index.retrieve(words, corpus=self._documents, k=k, show_progress=False)

    def hits(self, found: Any) -> Hits:
        pairs = zip(found.documents[0].tolist(), found.scores[0].tolist(), strict=True)
        return [(document["number"], score) for document, score in pairs if score > 0]


class Faiss:
    """faiss' flat inner product over random unit vectors: the time does not depend on what is in them."""

    packages = ("faiss-cpu", "numpy")

    def __init__(self, folder: Path, threads: int) -> None:
        import faiss  # type: ignore[import-not-found]
        import numpy as np

        faiss.omp_set_num_threads(threads)
        size = json.loads((folder / "faiss.json").read_text(encoding="utf-8"))
        documents, dim = size["documents"], size["dim"]
        rng = np.random.default_rng(0)
        self._flat = faiss.IndexFlatIP(dim)
        # One query on one flat index uses one thread; two halves searched at once are faiss' way to use two.
        self._shards = faiss.IndexShards(dim, True, True)
        halves = [faiss.IndexFlatIP(dim) for _ in range(2)] if threads > 1 else []
        for begin in range(0, documents, 50_000):
            vectors = rng.standard_normal((min(50_000, documents - begin), dim), dtype=np.float32)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            self._flat.add(vectors)
            if halves:
                halves[begin >= documents // 2].add(vectors)
        for half in halves:
            self._shards.add_shard(half)
        self._halves = halves  # the shards do not own them
        queries = rng.standard_normal((size["queries"], dim), dtype=np.float32)
        self._queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)

    def search(self, query: int, k: int, setting: dict[str, Any]) -> Any:
        index = self._shards if setting["index"] == "shards" else self._flat
        return index.search(self._queries[query : query + 1], k)

    def hits(self, found: Any) -> Hits:
        scores, numbers = found
        return list(zip(numbers[0].tolist(), scores[0].tolist(), strict=True))


class Plaid:
    """fast-plaid over the token vectors that it is given, one matrix a document and a query."""

    packages = ("fast-plaid", "torch", "numpy")

    def __init__(self, folder: Path, threads: int) -> None:
        import numpy as np
        import torch
        from fast_plaid.search import FastPlaid  # type: ignore[import-not-found]

        torch.set_num_threads(threads)
        vectors = dict(np.load(folder / "plaid.npz"))
        self._queries = _matrices(torch.from_numpy(vectors["queries"]), vectors["query_lengths"].tolist())
        # An index is kept for these very vectors; the file that is written last says that it is whole.
        digest = hashlib.sha256(vectors["documents"].tobytes()).hexdigest()[:12]
        made = folder / f"plaid-{digest}"
        whole = made / "whole"
        self._index = FastPlaid(index=str(made), device="cpu")
        if not whole.exists():
            documents = _matrices(torch.from_numpy(vectors["documents"]), vectors["lengths"].tolist())
            self._index.create(documents_embeddings=documents)
            whole.touch()

    def search(self, query: int, k: int, setting: dict[str, Any]) -> Any:
        return self._index.search(
            queries_embeddings=self._queries[query][None],
            top_k=k,
            show_progress=False,
            n_processes=1,
            **setting,
        )

    def hits(self, found: Any) -> Hits:
        return [(int(number), float(score)) for number, score in found[0]]


def _matrices(rows: Any, lengths: list[int]) -> list[Any]:
    return list(rows.split(lengths))


SYSTEMS: dict[str, type[Any]] = {"bm25s": Bm25s, "faiss": Faiss, "plaid": Plaid}


def answer(system: System, queries: list[int], k: int, setting: dict[str, Any]) -> dict[str, Any]:
    """Times and hits of some queries, one after another."""
    if len(queries) > WARM_UP:
        for query in queries[:WARM_UP]:
            system.search(query, k, setting)
    ms, hits = [], []
    cpu = 0.0
    for query in queries:
        busy = time.process_time()
        began = time.perf_counter()
        found = system.search(query, k, setting)
        ms.append((time.perf_counter() - began) * 1000)
        cpu += time.process_time() - busy
        hits.append(system.hits(found))
    return {"ms": ms, "cores": cpu * 1000 / sum(ms), "hits": hits}


def main() -> None:
    """Answer requests until the input ends."""
    name, folder, threads = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints must not stand among the answers
    began = time.perf_counter()
    system = SYSTEMS[name](folder, threads)
    versions = {package: importlib.metadata.version(package) for package in system.packages}
    ready = {"versions": versions, "ready_s": round(time.perf_counter() - began, 1)}
    print(json.dumps(ready), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(system, **json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
