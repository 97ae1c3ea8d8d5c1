"""Trains several recipes in parallel and searches collections with each. The default recipe was chosen so.

    python -m experiments.compare_recipes FILE --start DIR --pairs F... --collections DIR... --out DIR

FILE maps a name to the options that differ from the default preset. A variant may also give
"pairs": [names] to train on some of the pairs files only, so that the others serve as unseen collections,
"negatives": [names] to use some of the negatives files only, and "base": DIR to start elsewhere than at
START, a COIL model with the same language model. Runs are written to OUT/runs/COLLECTION/NAME.run.gz, and the
tokens of the collections are kept in OUT/tokens.
`--judge RESULT` then evaluates them with the judgements of the collections and writes
experiments/results/RESULT.json.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import By
from coil.training.batch_scores import BatchEquation
from coil.training.batches import wrap
from coil.training.grad_cache import CachedTexts, lay_out, text_vectors
from coil.training.passage_statistics import PassageStatistics
from coil.training.starting_point import load_tokenizer
from coil.training.token_store import ListNumbers, TokenStore, number_tokens
from coil.vectors.backbone import load_backbone
from coil.vectors.config import ModelConfig
from coil.vectors.torch_model import CoilModel
from experiments.systems import Collection, ranking, say

SHARES = (0.0, 0.3, 0.5, 0.7)  # of the starting weights
HYBRID_SHARES = (0.5, 0.7)  # of the dense side
AT_ONCE = 131_072  # tokens that go through the language model together


def main() -> None:
    """Train all variants, a few at a time."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("variants", type=Path)
    parser.add_argument("--pairs", nargs="+", type=Path, default=[])
    parser.add_argument("--negatives", nargs="*", type=Path, default=[])
    parser.add_argument("--start", type=Path)
    parser.add_argument("--collections", nargs="*", type=Path, default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--at-once", type=int, default=4, help="recipes trained at the same time")
    parser.add_argument("--prepared", type=Path, help="cache folder for tokenized pairs")
    parser.add_argument(
        "--shares", nargs="*", type=float, default=SHARES, help="of the starting weights, to search with"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--search", metavar="NAME", help="only search with the trained model of this name")
    parser.add_argument("--judge", metavar="RESULT", help="only measure the runs that are there")
    arguments = parser.parse_args()
    if arguments.judge:
        judge(arguments)
        return
    if arguments.search:
        search(arguments)
        return
    variants = {"start": {}, **json.loads(arguments.variants.read_text())}
    with ProcessPoolExecutor() as pool:
        folders = [arguments.out / "tokens" / folder.name for folder in arguments.collections]
        list(pool.map(tokenize, arguments.collections, [arguments.start] * len(folders), folders))
    with ThreadPoolExecutor(arguments.at_once) as threads:
        list(threads.map(lambda item: one(item[0], dict(item[1]), arguments), variants.items()))


def one(name: str, options: dict[str, object], arguments: argparse.Namespace) -> None:
    """Train one variant and search with it, in processes of their own."""
    pairs = _chosen(arguments.pairs, options.pop("pairs", None))
    negatives = _chosen(arguments.negatives, options.pop("negatives", None))
    out = arguments.out / "models" / name
    command = [sys.executable, "-m", "coil.cli.main", "train", "--out", str(out)]
    command += ["--base", str(options.pop("base", arguments.start))]
    command += ["--device", arguments.device, "--checkpoint-every", "0"]
    for path in pairs:
        command += ["--pairs", str(path)]
    for path in negatives:
        command += ["--negatives", str(path)]
    if arguments.prepared is not None:
        command += ["--prepared", str(arguments.prepared)]
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
    search_command += ["--start", str(arguments.start), "--collections", *map(str, arguments.collections)]
    search_command += ["--shares", *map(str, arguments.shares)]
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "TOKENIZERS_PARALLELISM": "true"}
    with log.open("w") as file:
        failed = 0
        if name != "start":
            failed = subprocess.run(
                command, stdout=file, stderr=file, env=environment, check=False
            ).returncode
        took = time.monotonic() - started
        if not failed:
            subprocess.run(search_command, stdout=file, stderr=file, env=environment, check=False)
    last = log.read_text().strip().splitlines()[-3:]
    say(f"{name}: trained in {took:.0f} s, all in {time.monotonic() - started:.0f} s: {' | '.join(last)}")


def _chosen(files: list[Path], wanted: object) -> list[Path]:
    """The files with these names, or all."""
    return [path for path in files if not isinstance(wanted, list) or path.name.split(".")[0] in wanted]


def search(arguments: argparse.Namespace) -> None:
    """Write runs for every collection: the trained model, and averages of it with the starting model.

    `NAME~S` has a share S of the starting weights, `NAME@tokens` is its token part alone. The starting model
    itself (`start`) is also searched as BM25, as a dense retriever and as the hybrid of both.
    """
    out, name = arguments.out, arguments.search
    folder = arguments.start if name == "start" else out / "models" / name
    before = dict(load_backbone(arguments.start).named_parameters())
    for share in (0.0,) if name == "start" else arguments.shares:
        model = CoilModel.from_pretrained(folder)
        model.average(before, share)
        model.to(arguments.device).eval()
        label = f"{name}~{share:g}" if share else name
        for collection in map(Collection.read, arguments.collections):
            found = scores_of(model, collection, folder, out / "tokens" / collection.name, name == "start")
            for suffix, scores in found.items():
                path = out / "runs" / collection.name / f"{label}{suffix}.run.gz"
                write_run(path, collection, scores, arguments.k)


def tokenize(folder: Path, base: Path, out: Path) -> None:
    """Write the tokens of a collection, once for all recipes, unless they are there."""
    if (out / "lists.json").is_file():
        return
    config = ModelConfig.load(base)
    tokenizer = load_tokenizer(base)
    keys, numbers, collection = ListKeys(config.profile, tokenizer), ListNumbers(), Collection.read(folder)
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "queries": ([query.text for query in collection.queries], config.profile.query_length),
        "documents": ([document.text for document in collection.documents], config.profile.document_length),
    }
    for part, (of_part, length) in texts.items():
        TokenStore.write(out / part, number_tokens(of_part, tokenizer, keys, numbers, length))
    numbers.save(out / "lists.json")


@torch.no_grad()
def scores_of(
    model: CoilModel, collection: Collection, folder: Path, tokens: Path, as_start: bool
) -> dict[str, Tensor]:
    """The scores [queries, documents] of a model, and of the systems that it is compared with."""
    tokenizer, device = load_tokenizer(folder), next(model.parameters()).device
    profile = model.profile()
    stores = [TokenStore.open(tokens / part) for part in ("queries", "documents")]
    n_lists = len(json.loads((tokens / "lists.json").read_text()))
    every = np.ones((1, len(stores[1])), dtype=bool)
    statistics = PassageStatistics.of(stores[1], n_lists, every).to(device)

    def forward(ids: Tensor, mask: Tensor) -> tuple[Tensor | None, Tensor | None]:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            return model(ids, mask)  # type: ignore[no-any-return]

    vectors = []
    for store, length in zip(stores, (profile.query_length, profile.document_length), strict=True):
        texts = [wrap(store[i], tokenizer, length) for i in range(len(store))]
        layout = lay_out(texts)
        cached = CachedTexts(texts, layout, forward, AT_ONCE, device)
        assert cached.vectors is not None
        assert cached.sentences is not None
        vectors.append(text_vectors(layout, cached.vectors.float(), cached.sentences.float()))
    sources = torch.zeros(len(stores[0]), dtype=torch.int64, device=device)

    def answer(by: By) -> Tensor:
        return BatchEquation(profile.answering(by), statistics)(vectors[0], vectors[1], sources).whole

    scores = {"": answer("coil"), "@tokens": answer("tokens")}
    if as_start:
        scores = {"": scores[""], "@bm25": answer("bm25"), "@dense": answer("dense")}
        for share in HYBRID_SHARES:
            dense, bm25 = z_scores(scores["@dense"]), z_scores(scores["@bm25"])
            scores[f"@z{share:g}"] = share * dense + (1 - share) * bm25
    return scores


def z_scores(scores: Tensor) -> Tensor:
    """The scores of each query at mean 0 and deviation 1."""
    return (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True).clamp_min(1e-9)


def write_run(path: Path, collection: Collection, scores: Tensor, k: int) -> None:
    """The k best documents of each query."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for query, of_query in zip(collection.queries, scores.cpu().numpy(), strict=True):
            ranked = ranking(collection, of_query, k, without_zero=True)
            file.writelines(
                f"{query.query_id} Q0 {doc_id} {rank} {score:.6f} coil\n"
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
    found: dict[str, dict[str, float]] = {}
    for folder in arguments.collections:
        asked = {query.query_id for query in read_queries(folder)}
        judgements = {q: of_query for q, of_query in read_judgements(folder).items() if q in asked}
        for path in sorted((arguments.out / "runs" / folder.name).glob("*.run.gz")):
            measured = evaluate(judgements, read_run(path), ["nDCG@10"]).means["nDCG@10"]
            found.setdefault(path.name.removesuffix(".run.gz"), {})[folder.name] = round(measured, 4)
    result = {**stamp("ir-measures"), "variants": variants, "nDCG@10": found}
    write_result(arguments.judge, result, Path(__file__).parent / "results" / f"{arguments.judge}.json")
    for label, values in found.items():
        shown = " ".join(f"{values.get(folder.name, float('nan')):.3f}" for folder in arguments.collections)
        print(f"{label:32s} {sum(values.values()) / len(values):.4f}  {shown}")


if __name__ == "__main__":
    main()
