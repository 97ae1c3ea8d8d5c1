"""Holds out queries of every training source, for in-domain evaluation.

    python -m experiments.held_out DATA --out DIR [--queries 200] [--passages 10000] [--pairs 16000]

DATA contains pairs files (`*.jsonl.xz`). OUT/pairs/NAME.jsonl.gz are the pairs to train on, without the
held-out queries; OUT/collections/NAME is a collection of these queries and the passages of their source.
Which queries are held out depends only on their text.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
from pathlib import Path

from coil.texts.pairs import Pair, read_pairs
from experiments.systems import say


def main() -> None:
    """Split every pairs file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--queries", type=int, default=200, help="set aside of each source")
    parser.add_argument("--passages", type=int, default=10_000, help="of a collection, at most")
    parser.add_argument("--pairs", type=int, default=16_000, help="of a source to train on, at most")
    arguments = parser.parse_args()
    sources = {
        path.name.split(".")[0]: list(read_pairs(path)) for path in sorted(arguments.data.glob("*.jsonl.xz"))
    }
    aside: dict[str, set[str]] = {}
    for name, pairs in sources.items():
        queries = sorted({pair.query for pair in pairs}, key=order)
        aside[name] = set(queries[: min(arguments.queries, len(queries) // 10)])
    everywhere = set().union(*aside.values())
    for name, pairs in sources.items():
        kept = [pair for pair in pairs if pair.query not in everywhere]
        kept = sorted(kept, key=lambda pair: order(pair.query))[: arguments.pairs]
        write_pairs(arguments.out / "pairs" / f"{name}.jsonl.gz", kept)
        passages = write_collection(
            arguments.out / "collections" / name, pairs, aside[name], arguments.passages
        )
        say(f"{name}: {len(kept):,} pairs to train on, {len(aside[name])} queries, {passages:,} passages")


def order(text: str) -> bytes:
    """A digest, by which texts come in an order that is random and always the same."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs to train on."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps({"query": pair.query, "positive": pair.positive}) + "\n" for pair in pairs)


def write_collection(folder: Path, pairs: list[Pair], aside: set[str], most: int) -> int:
    """Write the held-out queries with their passages and others of the source; returns their number."""
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    right = {pair.positive for pair in pairs if pair.query in aside}
    others = sorted({pair.positive for pair in pairs} - right, key=order)
    passages = sorted([*right, *others[: max(most - len(right), 0)]], key=order)
    number = {text: f"d{i}" for i, text in enumerate(passages)}
    names = {query: f"q{i}" for i, query in enumerate(sorted(aside, key=order))}
    judged = sorted({(names[p.query], number[p.positive]) for p in pairs if p.query in aside})
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": number[text], "text": text}) + "\n" for text in passages)
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps({"_id": name, "text": query}) + "\n" for query, name in names.items())
    with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        file.writelines(f"{query}\t{document}\t1\n" for query, document in judged)
    return len(passages)


if __name__ == "__main__":
    main()
