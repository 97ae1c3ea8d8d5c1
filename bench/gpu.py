"""Compares the PyTorch ranker on a GPU with NumPy, bit for bit, and measures its latency.

    python -m bench.gpu OUT.json [--device cuda]

Requires the `gpu` extra but no model: the lists are synthetic, as in `coil bench`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from bench.stamp import stamp
from coil.hits.rankers import Selection, rank_with_scorer
from coil.hits.torch_ranker import TorchRanker
from coil.metrics import speed
from coil.scores.scorer import score_with_numpy

ROUNDS = 20


def main() -> None:
    """Compare, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--documents", type=int, default=1_000_000)
    arguments = parser.parse_args()
    import torch

    rng = np.random.default_rng(0)
    segments = speed.make_segments(rng, arguments.documents)
    result = stamp("torch")
    result["device"] = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else "cpu"
    result["data"] = f"{arguments.documents:,} synthetic documents, n_t 32, n_c 256, int8"
    ranker = TorchRanker(segments, arguments.device)
    few = segments[:2]
    small = TorchRanker(few, arguments.device)
    result["equal_to_numpy"] = {}
    result["latency"] = []
    for name, sentence in (("COIL-tok", False), ("COIL-full", True)):
        queries = [speed.make_query(rng, sentence) for _ in range(64)]
        ours = small.rank(queries[:4], Selection(1000))
        theirs = rank_with_scorer(score_with_numpy, queries[:4], few, Selection(1000))
        result["equal_to_numpy"][name] = [a for a, _ in ours] == [b for b, _ in theirs]
        for batch in (1, 64):
            for k in (10, 1000):
                times = []
                for number in range(ROUNDS):
                    some = [queries[(number + i) % 64] for i in range(batch)]
                    began = time.perf_counter()
                    ranker.rank(some, Selection(k))
                    times.append((time.perf_counter() - began) * 1000 / batch)
                row = {"system": name, "batch": batch, "k": k, "ms_a_query": statistics.median(times[3:])}
                result["latency"].append(row)
                print(row)
    print("equal to NumPy:", result["equal_to_numpy"], "on", result["device"])
    arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
