"""Compares search in the paper's setup with the authors' retriever, on the same vectors.

    python -m bench.authors BEIR_FOLDER --authors CHECKOUT [--saved FILE]

CHECKOUT is a clone of the authors' repository (luyug/COIL) whose extension has been compiled:
`cd retriever/retriever_ext && python setup.py build_ext --inplace`. Documents and queries are encoded with
the bundled model and the paper's profile (lists of word pieces, no weights); the vectors are written in the
authors' format, and their program searches them with one thread. It runs once with the queries and once with
the queries repeated many times; the difference is the time of the search alone.
"""

from __future__ import annotations

import argparse
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from bench.stamp import stamp, write_result
from coil.hits.rankers import NativeRanker, Selection
from coil.lists.building import SegmentBuilder
from coil.lists.segment import LiveSegment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import GRID
from coil.scores.statistics import Statistics
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.tokens.profile import PAPER
from coil.vectors.config import ModelConfig
from coil.vectors.model_files import bundled_model
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

K = 10
TIMES = 20  # how often the queries are asked in the long run
ROUNDS = 7


@dataclass(frozen=True)
class Encoded:
    """Documents and queries, encoded with the paper's profile."""

    documents: list[TokenVectors]
    queries: list[TokenVectors]


def main() -> None:
    """Measure and write bench/results/authors.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--authors", type=Path, required=True, help="compiled checkout of their repository")
    parser.add_argument("--saved", type=Path, help="file that caches the encoded texts")
    arguments = parser.parse_args()
    encoded = encode(arguments.folder, arguments.saved)
    with tempfile.TemporaryDirectory() as scratch:
        theirs, hits = measure_theirs(encoded, arguments.authors, Path(scratch))
    rows = [measure_ours(encoded, precision, hits) for precision in ("int8", "fp32")]
    result = {
        **stamp("torch"),
        "data": arguments.folder.name,
        "documents": len(encoded.documents),
        "queries": len(encoded.queries),
        "k": K,
        "theirs_us": theirs,
        "ours": rows,
    }
    for row in rows:
        row["faster"] = round(theirs["one by one"] / row["pruned_us"], 1)
        row["faster_in_batches"] = round(theirs["batches of 512"] / row["batch_us"], 1)
        print(row)
    print(theirs)
    print(write_result("authors", result))


def encode(folder: Path, saved: Path | None) -> Encoded:
    """The vectors of a collection; texts without tokens are left out."""
    if saved is not None and saved.exists():
        loaded: Encoded = pickle.loads(saved.read_bytes())  # our own file
        return loaded
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch)
        for path in bundled_model().iterdir():
            if path.name != "coil.json":
                (model / path.name).symlink_to(path)
        config = ModelConfig.load(bundled_model())
        replace(config, profile=replace(PAPER, query_length=64)).save(model)
        encoder = OnnxEncoder(model)
        documents = list(encoder.encode_documents(document.text for document in read_documents(folder)))
        queries = list(encoder.encode_queries(query.text for query in read_queries(folder)))
    made = Encoded([text for text in documents if text.keys], queries)
    if saved is not None:
        saved.write_bytes(pickle.dumps(made, protocol=5))
    return made


def measure_theirs(
    encoded: Encoded, authors: Path, scratch: Path
) -> tuple[dict[str, float], list[dict[int, float]]]:
    """Microseconds per query, one by one and in batches, and the hits with their scores."""
    numbers: dict[str, int] = {}
    shard = write_shard(scratch / "shard", encoded.documents, numbers)
    took: dict[str, float] = {}
    hits: list[dict[int, float]] = []
    for label, size in (("one by one", 1), ("batches of 512", 512)):
        seconds = {}
        for times in (1, TIMES):
            asked = write_queries(scratch / f"queries-{times}", encoded.queries * times, numbers)
            found = scratch / "found.pt"
            seconds[times] = min(_run(authors, asked, shard, found, size) for _ in range(3))
            if not hits:
                scores, ids = torch.load(found)
                pairs = zip(scores.tolist(), ids.tolist(), strict=True)
                hits = [dict(zip(of_ids, of_scores, strict=True)) for of_scores, of_ids in pairs]
        more = (TIMES - 1) * len(encoded.queries)
        took[label] = round((seconds[TIMES] - seconds[1]) / more * 1e6, 1)
    return took, hits


def write_shard(folder: Path, documents: list[TokenVectors], numbers: dict[str, int]) -> Path:
    """The documents in the authors' format."""
    folder.mkdir()
    vectors: dict[int, list[Any]] = {}
    rows: dict[int, list[int]] = {}
    for row, text in enumerate(documents):
        for key, vector in zip(text.keys, text.vectors, strict=True):
            if key is not None:
                number = numbers.setdefault(key, len(numbers))
                vectors.setdefault(number, []).append(vector)
                rows.setdefault(number, []).append(row)
    inverted, shards = {}, {}
    for number, of_list in rows.items():
        distinct, inverse = np.unique(np.array(of_list), return_inverse=True)
        inverted[number], shards[number] = torch.from_numpy(inverse), torch.from_numpy(distinct)
    torch.save(inverted, folder / "ivl_scatter_maps.pt")
    torch.save(shards, folder / "shard_scatter_maps.pt")
    torch.save({n: torch.from_numpy(np.stack(v)) for n, v in vectors.items()}, folder / "tok_reps.pt")
    torch.save(_sentences(documents), folder / "cls_reps.pt")
    torch.save(torch.arange(len(documents)), folder / "cls_ex_ids.pt")
    return folder


def write_queries(folder: Path, queries: list[TokenVectors], numbers: dict[str, int]) -> Path:
    """The queries in the authors' format, without words that no document contains."""
    folder.mkdir(exist_ok=True)
    offsets, vectors = [], []
    for text in queries:
        of_query = []
        for key, vector in zip(text.keys, text.vectors, strict=True):
            if key in numbers:
                of_query.append((numbers[key], len(vectors)))
                vectors.append(vector)
        offsets.append(of_query)
    torch.save(torch.from_numpy(np.stack(vectors)), folder / "tok_reps.pt")
    torch.save(offsets, folder / "offsets.pt")
    torch.save(_sentences(queries), folder / "cls_reps.pt")
    return folder


def _sentences(texts: list[TokenVectors]) -> torch.Tensor:
    sentences = [text.sentence for text in texts]
    return torch.from_numpy(np.stack([vector for vector in sentences if vector is not None]))


def _run(authors: Path, queries: Path, shard: Path, found: Path, batch: int) -> float:
    command = [sys.executable, "retriever-fast.py", "--query", queries, "--doc_shard", shard, "--top", K]
    command += ["--save_to", found, "--batch_size", batch]
    before = _processor_time()
    subprocess.run(list(map(str, command)), cwd=authors / "retriever", check=True, capture_output=True)
    return _processor_time() - before


def _processor_time() -> float:
    """CPU seconds of finished child processes, which depend least on other work on the machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure_ours(encoded: Encoded, precision: Any, hits: list[dict[int, float]]) -> dict[str, Any]:
    """Microseconds per query, and the number of queries with the same hits as theirs."""
    first = encoded.documents[0]
    assert first.sentence is not None
    builder = SegmentBuilder(PAPER, first.vectors.shape[1], len(first.sentence), precision)
    for ordinal, text in enumerate(encoded.documents):
        builder.add(ordinal, (0, 1), text)
    segments = [LiveSegment(builder.finish(), None)]
    statistics = Statistics(segments)
    queries = [PreparedQuery.of(query, PAPER, statistics) for query in encoded.queries]
    ranker = NativeRanker(segments)
    least = dict.fromkeys(("pruned", "exhaustive", "batch"), float("inf"))
    for _ in range(ROUNDS):
        for name in least:
            began = time.process_time()
            if name == "batch":
                ranker.rank(queries, Selection(K))
            else:
                for query in queries:
                    ranker.rank([query], Selection(K), prune=name == "pruned")
            least[name] = min(least[name], (time.process_time() - began) / len(queries))
    same, largest = 0, 0.0
    for query, expected in zip(queries, hits, strict=True):
        found = {int(r.ordinal): r.grid_score / GRID for r in ranker.rank([query], Selection(K))[0][0]}
        same += list(found) == list(expected)
        largest = max([largest, *(abs(found[n] - expected[n]) for n in found if n in expected)])
    return {
        "precision": precision,
        **{f"{name}_us": round(seconds * 1e6, 1) for name, seconds in least.items()},
        "same_hits_in_the_same_order": same,
        "largest_difference": largest,
    }


if __name__ == "__main__":
    main()
