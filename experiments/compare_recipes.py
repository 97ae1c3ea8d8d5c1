"""Train several recipes side by side and search collections with each: how the default recipe was chosen.

    python -m experiments.compare_recipes VARIANTS.json --pairs F... --base DIR --collections DIR... --out DIR

VARIANTS.json maps a name to the options that differ from the default preset. A variant may also give
"pairs": [names] to train on some of the pairs files only, so that the others serve as unseen collections.
Runs are written to OUT/runs/COLLECTION/NAME.run.gz. `--judge RESULT` then measures them against the
judgements of the collections and writes experiments/results/RESULT.json.
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

from experiments.systems import Collection, Encoded, ranking, say

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
    parser.add_argument("--judge", metavar="RESULT", help="only measure the runs that are there")
    arguments = parser.parse_args()
    if arguments.judge:
        judge(arguments)
        return
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
    profile = encoder.config.profile
    factors = SENTENCE_FACTORS if encoder.config.n_t and encoder.config.n_c else (1.0,)
    for folder in collections:
        collection = Collection.read(folder)
        encoded = Encoded.of(collection, encoder)
        (out / "runs" / collection.name).mkdir(parents=True, exist_ok=True)
        for factor in factors:
            label = name if factor == 1.0 else f"{name}@{factor:g}"
            scores = encoded.scores(replace(profile, gamma=factor * profile.gamma))
            without_zero = not (encoder.config.n_c and factor)
            with gzip.open(
                out / "runs" / collection.name / f"{label}.run.gz", "wt", encoding="utf-8"
            ) as file:
                for query, of_query in zip(collection.queries, scores, strict=True):
                    ranked = ranking(collection, of_query, k, without_zero)
                    file.writelines(
                        f"{query.query_id} Q0 {doc_id} {rank} {score:.6f} {name}\n"
                        for rank, (doc_id, score) in enumerate(ranked.items(), start=1)
                    )


def judge(arguments: argparse.Namespace) -> None:
    """Measure all runs and write the result file."""
    from bench.stamp import stamp, write_result
    from coil.metrics.evaluation import evaluate
    from coil.texts.judgements import read_judgements
    from coil.texts.queries import read_queries
    from coil.texts.runs import read_run

    variants = json.loads(arguments.variants.read_text())
    common = {
        k: v
        for k, v in next(iter(variants.values())).items()
        if all(o.get(k) == v for o in variants.values())
    }
    found: dict[str, dict[str, float]] = {name: {} for name in variants}
    for folder in arguments.collections:
        asked = {query.query_id for query in read_queries(folder)}
        judgements = {q: of_query for q, of_query in read_judgements(folder).items() if q in asked}
        for name in variants:
            run = read_run(arguments.out / "runs" / folder.name / f"{name}.run.gz")
            found[name][folder.name] = evaluate(judgements, run, ["nDCG@10"]).means["nDCG@10"]
    result = {
        **stamp("ir-measures"),
        "common": common,
        "variants": {
            name: {"changes": {k: v for k, v in options.items() if k not in common}, "nDCG@10": found[name]}
            for name, options in variants.items()
        },
    }
    write_result(arguments.judge, result, Path(__file__).parent / "results" / f"{arguments.judge}.json")


if __name__ == "__main__":
    main()
