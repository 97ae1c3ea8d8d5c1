"""Measures how an index is built: time compared with encoding alone, peak memory, size on disk.

    python -m bench.indexing

The texts are the standard library's docs, which every machine has. Each measurement runs in a separate
process, in turn, and the medians are compared.

The limit set by `--memory` is measured on more tokens than a language model could encode in a minute: the
vectors are random and each token counts four times; everything else is as in a real build, and the model is
loaded.

    python -m bench.indexing --memory-only     # only that, without writing the result file
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.stamp import stamp, write_result
from coil.demo.standard_library import read_standard_library
from coil.indexes.opening import open_index
from coil.storage.memory import parse_size

ROUNDS = 3
BUDGETS = ("400M", "1G")
MANY = 40_000  # documents for the budgets: about 0.5 GB of vectors

ENCODE = """
import json, resource, sys, time
from coil.demo.standard_library import read_standard_library
from coil.vectors.onnx_encoder import OnnxEncoder
documents, encoder = read_standard_library(), OnnxEncoder()
began = time.perf_counter()
for _ in encoder.encode_documents(d.text for d in documents): pass
took = time.perf_counter() - began
print(json.dumps({"s": took, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
INDEX = """
import json, resource, sys, time
from coil.demo.standard_library import read_standard_library
from coil.indexes.opening import create
documents = read_standard_library()
index = create(sys.argv[1])
began = time.perf_counter()
index.add(documents)
took = time.perf_counter() - began
print(json.dumps({"s": took, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
BOUNDED = """
import json, sys, time
from pathlib import Path
import numpy as np
from coil.indexes.building import open_build
from coil.storage.memory import parse_size, peak_bytes
from coil.texts.corpora import read_documents
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

class MadeUp(OnnxEncoder):
    # Tokens are real, but each is there four times; vectors are slices of one random array.
    def encode_documents(self, texts):
        texts, config = list(texts), self.config
        rng = np.random.default_rng(len(texts))
        made = rng.standard_normal((4096, config.n_t)).astype(np.float32)
        for text, tokens in zip(texts, self.tokenizer.cut(texts, config.profile.document_length)):
            ids, spans = np.tile(tokens.input_ids[1:-1], 4), np.tile(tokens.spans, (4, 1))
            sentence = made.ravel()[:config.n_c].copy()
            yield TokenVectors(ids, ids, spans, made[:len(ids)].copy(), sentence, tokens.dropped)

encoder = MadeUp()
list(OnnxEncoder.encode_documents(encoder, ["the bank of a river " * 200]))
began = time.perf_counter()
index, before = open_build(sys.argv[2], encoder=encoder, memory=parse_size(sys.argv[3]))
index.build(read_documents(sys.argv[1]), "error", None, 65536)
took = time.perf_counter() - began
facts = index.inspect()
print(json.dumps({"s": took, "mb": peak_bytes() / 2**20, "segments": facts.segments,
                  "bytes": facts.bytes_lists + facts.bytes_documents}))
"""


def main() -> None:
    """Measure and write bench/results/indexing.json."""
    parser = argparse.ArgumentParser(description="Measure how an index is built: time, memory, size.")
    parser.add_argument("--memory-only", action="store_true")
    parser.add_argument("--documents", type=int, default=MANY, help="for the budgets")
    arguments = parser.parse_args()
    if arguments.memory_only:
        print(json.dumps(measure_budgets(arguments.documents), indent=2))
        return
    result = stamp()
    rounds: dict[str, list[dict[str, float]]] = {"encode": [], "index": []}
    with tempfile.TemporaryDirectory() as scratch:
        for number in range(ROUNDS):
            rounds["encode"].append(_run(ENCODE))
            rounds["index"].append(_run(INDEX, f"{scratch}/{number}.coil"))
        facts = open_index(Path(scratch) / "0.coil").inspect()
    seconds = {name: statistics.median(r["s"] for r in found) for name, found in rounds.items()}
    result |= {
        "data": f"{facts.documents:,} docstrings of the standard library",
        "rounds": rounds,
        "documents_a_second": round(facts.documents / seconds["index"], 1),
        "time_over_encoder": round(seconds["index"] / seconds["encode"], 3),
        "peak_memory_mb": round(max(r["mb"] for r in rounds["index"]), 1),
        "peak_memory_over_encoder_mb": round(
            max(r["mb"] for r in rounds["index"]) - max(r["mb"] for r in rounds["encode"]), 1
        ),
        "mentions": facts.mentions,
        "bytes_a_mention": facts.bytes_a_mention,
        "bytes_lists": facts.bytes_lists,
        "bytes_documents": facts.bytes_documents,
        "budgets": measure_budgets(arguments.documents),
    }
    path = write_result("indexing", result)
    print(json.dumps({k: v for k, v in result.items() if not isinstance(v, dict)}, indent=2))
    print(f"written to {path}")


def measure_budgets(documents: int) -> dict[str, dict[str, float]]:
    """The peak memory of a build under each budget, relative to the budget."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(scratch) / "corpus.jsonl"
        _write_corpus(corpus, documents)
        for budget in BUDGETS:
            measured = _run(BOUNDED, str(corpus), f"{scratch}/{budget}.coil", budget)
            over = measured["mb"] * 2**20 / parse_size(budget)
            found[budget] = {name: round(value, 1) for name, value in measured.items()}
            found[budget]["peak_over_budget"] = round(over, 3)
    return found


def _write_corpus(path: Path, documents: int) -> None:
    """Pieces of docstrings, so short that they never need to be split into chunks."""
    words = " ".join(document.text for document in read_standard_library()).split()
    rng = random.Random(0)
    with path.open("w", encoding="utf-8") as file:
        for number in range(documents):
            begin = rng.randrange(len(words) - 100)
            text = " ".join(words[begin : begin + 100])[:500]
            file.write(json.dumps({"id": f"d{number}", "text": text, "number": number}) + "\n")


def _run(code: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    value: dict[str, float] = json.loads(done.stdout)
    return value


if __name__ == "__main__":
    main()
