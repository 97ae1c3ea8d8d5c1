"""Compares reranking by COIL and by a cross-encoder on the same candidates.

    python -m bench.rerank COLLECTION [--queries 12] [--depth 100] [--index INDEX.coil] [--output FILE]

The candidates are the first documents that BM25 finds in a BEIR folder. Each query is reranked by all
systems in turn, so that other load affects all alike:

- COIL from its index: the documents are already encoded, as in production, and only the query is encoded;
- COIL from texts: the candidates are encoded for every query, as a cross-encoder has to do;
- a cross-encoder of the bundled model's size (6 layers, 384 wide, the same tokenizer, 512 tokens), fp32, in
  PyTorch, in batches of similar lengths. Its weights are random: the time does not depend on them.

On a busy machine, compare the CPU times: they count the work of all threads and no waiting. --index names an
index of the collection built with the bundled model; without it, one is built. Writes
bench/results/rerank.json.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tqdm import tqdm
from transformers import BertConfig, BertForSequenceClassification

from bench.stamp import stamp, write_result
from coil.hits.reranker import rerank
from coil.indexes.opening import open_index
from coil.systems.bm25s import Bm25s
from coil.systems.coil import Coil
from coil.texts.collections import find_collection
from coil.texts.values import Document, Query
from coil.vectors.model_files import TOKENIZER_FILE, bundled_model
from coil.vectors.onnx_encoder import OnnxEncoder

LENGTH = 512
BATCH = 32
FIRST = "COIL, from its index"


class CrossEncoder:
    """A BERT that reads a query and a document together and gives one number; not trained."""

    def __init__(self) -> None:
        self._tokenizer = Tokenizer.from_file(str(bundled_model() / TOKENIZER_FILE))
        self._tokenizer.enable_truncation(LENGTH, strategy="only_second")
        torch.manual_seed(0)
        config = BertConfig(
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
            num_labels=1,
        )
        self._model = BertForSequenceClassification(config).eval()
        self.parameters = sum(weight.numel() for weight in self._model.parameters())

    @torch.inference_mode()
    def rerank(self, query: str, documents: Sequence[Document]) -> list[tuple[float, str]]:
        """All documents with their scores, best first."""
        read = self._tokenizer.encode_batch([(query, document.text) for document in documents])
        order = sorted(range(len(documents)), key=lambda n: len(read[n].ids))
        scores = [0.0] * len(documents)
        for begin in range(0, len(order), BATCH):
            some = order[begin : begin + BATCH]
            width = max(len(read[n].ids) for n in some)
            padded = [
                [
                    (*values, *[0] * (width - len(values)))
                    for values in (read[n].ids, read[n].attention_mask, read[n].type_ids)
                ]
                for n in some
            ]
            ids, mask, kinds = torch.tensor(padded).transpose(0, 1)
            found = self._model(input_ids=ids, attention_mask=mask, token_type_ids=kinds).logits[:, 0]
            for place, score in zip(some, found.tolist(), strict=True):
                scores[place] = score
        ranked = zip(scores, (document.doc_id for document in documents), strict=True)
        return sorted(ranked, key=lambda pair: -pair[0])


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collection")
    parser.add_argument("--queries", type=int, default=12)
    parser.add_argument("--depth", type=int, default=100)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    collection = find_collection(arguments.collection)
    documents = {document.doc_id: document for document in collection.documents()}
    queries = collection.judged()[0][: arguments.queries]
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(queries, documents, arguments.depth, arguments.index, Path(scratch))
    result = {
        **stamp("torch", "transformers", "bm25s"),
        "collection": collection.name,
        "documents": len(documents),
        "queries": len(queries),
        "depth": arguments.depth,
        "threads": os.cpu_count(),
        **found,
    }
    print(f"wrote {write_result('rerank', result, arguments.output)}")


def measure(
    queries: Sequence[Query], documents: dict[str, Document], depth: int, index: Path | None, scratch: Path
) -> dict[str, Any]:
    """The median milliseconds per query of each system, and the ratio to the first."""
    (scratch / "bm25").mkdir()
    bm25 = Bm25s()
    bm25.index(documents.values(), scratch / "bm25")
    candidates = {a.query_id: a.doc_ids for a in bm25.search(queries, depth, scratch / "bm25")}
    if index is None:
        index = scratch / "coil"
        index.mkdir()
        Coil().index(tqdm(documents.values(), desc="indexing", disable=None), index)
    encoder, cross = OnnxEncoder(), CrossEncoder()
    with ExitStack() as stack:
        opened = stack.enter_context(open_index(index, encoder, threads=os.cpu_count() or 1))

        def from_texts(query: Query, some: Sequence[Document]) -> Any:
            ids = {query.query_id: [document.doc_id for document in some]}
            return rerank(encoder, {query.query_id: query.text}, ids, some)

        ways: dict[str, Callable[[Query, Sequence[Document]], Any]] = {
            FIRST: lambda query, some: opened.rerank(query.text, [document.doc_id for document in some]),
            "COIL, from texts": from_texts,
            "cross-encoder": lambda query, some: cross.rerank(query.text, some),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        used: dict[str, list[float]] = {name: [] for name in ways}  # CPU time of all threads
        counts = []
        for number, query in enumerate(tqdm([queries[0], *queries], desc="reranking", disable=None)):
            some = [documents[doc_id] for doc_id in candidates[query.query_id]]
            for name, way in ways.items():
                began, idle = time.perf_counter(), time.process_time()
                way(query, some)
                if number:  # the first round loads and warms
                    times[name].append(1000 * (time.perf_counter() - began))
                    used[name].append(1000 * (time.process_time() - idle))
            if number:
                counts.append(len(some))
    rows = {}
    for name, took in times.items():
        rows[name] = {
            "median_ms": round(statistics.median(took), 2),
            "median_cpu_ms": round(statistics.median(used[name]), 2),
            "candidates_per_second": round(1000 * sum(counts) / sum(took), 1),
            "times_the_first": _ratio(took, times[FIRST]),
            "cpu_times_the_first": _ratio(used[name], used[FIRST]),
        }
        print(f"{name:24} {rows[name]}")
    return {
        "cross_encoder_parameters": cross.parameters,
        "mean_candidates": statistics.mean(counts),
        "mean_characters": statistics.mean(
            len(documents[doc_id].text) for of in candidates.values() for doc_id in of
        ),
        "ways": rows,
    }


def _ratio(times: Sequence[float], first: Sequence[float]) -> float:
    """The median over queries: the times of a pair were measured one after the other."""
    return round(statistics.median(a / b for a, b in zip(times, first, strict=True)), 2)


if __name__ == "__main__":
    main()
