"""Train several recipes side by side and search collections with each: how the default recipe was chosen.

    python -m experiments.compare_recipes VARIANTS.json --pairs F... --base DIR --collections DIR... --out DIR

VARIANTS.json maps a name to the options that differ from the default preset. A variant may also give
"pairs": [names] to train on some of the pairs files only, so that the others serve as unseen collections.
Runs are written to OUT/runs/COLLECTION/NAME.run.gz; `coil evaluate` measures them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from coil.lists.segment import Segment
from coil.scores.scorer import score_with_numpy, sentence_scores
from experiments.systems import Collection, ranking, say

SENTENCE_FACTORS = (0.0, 0.5, 0.7, 1.0, 1.4, 2.0)


def main() -> None:
    """Train all variants, a few at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", type=Path)
    parser.add_argument("--pairs", nargs="+", type=Path, default=[])
    parser.add_argument("--negatives", nargs="*", type=Path, default=[])
    parser.add_argument("--base")
    parser.add_argument("--collections", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--search", metavar="NAME", help="only search with the trained model of this name")
    arguments = parser.parse_args()
    if arguments.search:
        search(arguments.out, arguments.search, arguments.collections, arguments.device, arguments.k)
        return
    variants = json.loads(arguments.variants.read_text())
    with ThreadPoolExecutor(arguments.at_once) as pool:
        list(pool.map(lambda item: one(item[0], dict(item[1]), arguments), variants.items()))


def one(name: str, options: dict[str, object], arguments: argparse.Namespace) -> None:
    """Train one variant and search with it, in processes of their own."""
    wanted = options.pop("pairs", None)
    pairs = [p for p in arguments.pairs if wanted is None or p.name.split(".")[0] in wanted]
    out = arguments.out / "models" / name
    command = [sys.executable, "-m", "coil.cli.main", "train", "--base", arguments.base, "--out", str(out)]
    command += ["--device", arguments.device, "--checkpoint-every", "0"]
    for path in pairs:
        command += ["--pairs", str(path)]
    for path in arguments.negatives:
        command += ["--negatives", str(path)]
    for key, value in options.items():
        flag = "--" + key.replace("_", "-")
        if isinstance(value, bool):
            command.append(flag if value else "--no-" + flag[2:])
        else:
            command += [flag, str(value)]
    started = time.monotonic()
    log = arguments.out / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    search_command = [
        sys.executable,
        "-m",
        "experiments.compare_recipes",
        str(arguments.variants),
        "--search",
        name,
    ]
    search_command += ["--out", str(arguments.out), "--device", arguments.device, "-k", str(arguments.k)]
    search_command += ["--collections", *map(str, arguments.collections)]
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    with log.open("w") as file:
        trained = subprocess.run(command, stdout=file, stderr=file, env=environment, check=False)
        took = time.monotonic() - started
        if trained.returncode == 0:
            subprocess.run(search_command, stdout=file, stderr=file, env=environment, check=False)
    last = log.read_text().strip().splitlines()[-3:]
    say(f"{name}: trained in {took:.0f} s, all in {time.monotonic() - started:.0f} s: {' | '.join(last)}")


def search(out: Path, name: str, collections: list[Path], device: str, k: int) -> None:
    """Write runs for every collection; `NAME@F` weighs the sentence part with F."""
    from coil.vectors.torch_encoder import TorchEncoder

    encoder = TorchEncoder(out / "models" / name, device=device, autocast=device.startswith("cuda"))
    config = encoder.config
    factors = SENTENCE_FACTORS if config.n_t and config.n_c else (1.0,)
    for folder in collections:
        collection = Collection.read(folder)
        texts = (document.text for document in collection.documents)
        segment = Segment.build(encoder.encode_documents(texts), encoder.keys, config.n_t, config.n_c)
        (out / "runs" / collection.name).mkdir(parents=True, exist_ok=True)
        lines: dict[float, list[str]] = {factor: [] for factor in factors}
        vectors = encoder.encode_queries(q.text for q in collection.queries)
        for query, of_query in zip(collection.queries, vectors, strict=True):
            sentences = sentence_scores(of_query, segment)
            tokens = score_with_numpy(replace(of_query, sentence=None), segment, config.profile, encoder.keys)
            for factor in factors:
                ranked = ranking(collection, tokens + np.float32(factor) * sentences, k, config.n_c == 0)
                lines[factor] += [
                    f"{query.query_id} Q0 {doc_id} {rank} {score:.6f} {name}\n"
                    for rank, (doc_id, score) in enumerate(ranked.items(), start=1)
                ]
        for factor, found in lines.items():
            label = name if factor == 1.0 else f"{name}@{factor:g}"
            with gzip.open(
                out / "runs" / collection.name / f"{label}.run.gz", "wt", encoding="utf-8"
            ) as file:
                file.writelines(found)


if __name__ == "__main__":
    main()
