"""How an index is built: time against the encoder's own, peak memory, size on disk.

    python -m bench.indexing

The texts are the standard library's docs, which every machine has. Each measurement is a process of its own,
in turns, and the medians are compared.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.stamp import stamp, write_result
from coil.index import open_index

ROUNDS = 3

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
from coil.index import create
documents = read_standard_library()
index = create(sys.argv[1])
began = time.perf_counter()
index.add(documents)
took = time.perf_counter() - began
print(json.dumps({"s": took, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""


def main() -> None:
    """Measure and write bench/results/indexing.json."""
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
        "bytes_segments": facts.bytes_segments,
        "bytes_catalog": facts.bytes_catalog,
    }
    path = write_result("indexing", result)
    print(json.dumps({k: v for k, v in result.items() if not isinstance(v, dict)}, indent=2))
    print(f"written to {path}")


def _run(code: str, *arguments: str) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    value: dict[str, float] = json.loads(done.stdout)
    return value


if __name__ == "__main__":
    main()
