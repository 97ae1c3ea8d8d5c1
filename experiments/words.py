"""Measures whole words and weights on real texts, and writes experiments/results/words.json.

    python -m experiments.words BEIR_FOLDER [--index INDEX] [--demo INDEX]

- needles: words that occur in exactly one document, and how often that document ranks first
- BM25 by the equation, compared with bm25s over the same words
- mentions of whole words, compared with those of word pieces, and bytes per mention
- shares: real queries, compared with nonsense words
INDEX and the demo's index are built if they do not exist.
"""

from __future__ import annotations

import argparse
import random
import string
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import bm25s
import numpy as np

from bench.stamp import stamp, write_result
from coil.demo.standard_library import read_standard_library
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.lists.rows import row_texts
from coil.metrics.evaluation import evaluate
from coil.texts.corpora import read_documents
from coil.texts.judgements import read_judgements
from coil.texts.queries import read_queries
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import By
from experiments.needles import choose_needles, find_misses, keys_of_rows

RESULTS = Path(__file__).resolve().parent / "results"
SYSTEMS: tuple[By, ...] = get_args(By)
ASKED = 100


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--index", type=Path)
    parser.add_argument("--demo", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        index = _index(arguments.index or Path(scratch) / "a.coil", read_documents(arguments.folder))
        demo = _index(arguments.demo or Path(scratch) / "demo.coil", read_standard_library())
        queries = [query.text for query in read_queries(arguments.folder)]
        result = {
            **stamp("bm25s", "PyStemmer"),
            "data": arguments.folder.name,
            "quality": quality(index, arguments.folder),
            "needles": {arguments.folder.name: find_needles(index), "demo": find_needles(demo)},
            "bm25s": compare_with_bm25s(index, queries[:ASKED]),
            "sizes": {arguments.folder.name: sizes(index), "demo": sizes(demo)},
            "shares": {arguments.folder.name: shares(index, queries)},
        }
    print(f"wrote {write_result('words', result, RESULTS / 'words.json')}")
    for name in ("quality", "needles", "bm25s", "sizes", "shares"):
        print(name, result[name])


def _index(path: Path, documents: Any) -> Index:
    if path.exists():
        return open_index(path)
    index = create(path)
    index.add(documents)
    return index


def quality(index: Index, folder: Path) -> dict[str, dict[str, float]]:
    """nDCG@10 and R@100 of each system."""
    judgements = read_judgements(folder)
    asked = [query for query in read_queries(folder) if query.query_id in judgements]
    found = {}
    for by in SYSTEMS:
        hits = index.search_many([query.text for query in asked], 100, by=by, plain=True)
        run = {
            query.query_id: {hit.doc_id: hit.score for hit in of_query}
            for query, of_query in zip(asked, hits, strict=True)
        }
        means = evaluate(judgements, run).means
        found[by] = {name: round(means[name], 4) for name in ("nDCG@10", "R@100")}
    return found


def find_needles(index: Index) -> dict[str, Any]:
    """Of words that exactly one document has, how many find it first, by system."""
    needles = choose_needles(index)
    first = {by: round(1 - len(find_misses(index, needles, by)) / len(needles), 4) for by in SYSTEMS}
    return {"words": len(needles), "first": first}


def compare_with_bm25s(index: Index, queries: list[str]) -> dict[str, Any]:
    """The largest difference of any score to bm25s (Lucene's form) over the same words of the same rows."""
    rows = keys_of_rows(index)
    profile = index.encoder.config.profile
    retriever = bm25s.BM25(method="lucene", k1=profile.k1, b=profile.b, dtype="float64")
    retriever.index([keys for _, keys in rows], show_progress=False)
    largest, compared = 0.0, 0
    for query in queries:
        [keyed] = index.encoder.keys.of_texts([query], profile.query_length)
        total = np.zeros(len(rows))
        for key in keyed.keys:
            if key is not None and key in retriever.vocab_dict:
                total += retriever.get_scores([key])
        best: dict[str, float] = {}
        for (doc_id, _), score in zip(rows, total.tolist(), strict=True):
            if score > 0:
                best[doc_id] = max(best.get(doc_id, 0.0), score)
        hits = index.search(query, len(index), by="bm25", plain=True)
        assert {hit.doc_id for hit in hits} == set(best), "other documents than bm25s"
        largest = max([largest, *(abs(hit.score - best[hit.doc_id]) for hit in hits)])
        compared += len(hits)
    return {"queries": len(queries), "scores": compared, "largest_difference": largest}


def sizes(index: Index) -> dict[str, Any]:
    """What a mention takes, and how many mentions whole words save."""
    facts = index.inspect()
    profile = index.encoder.config.profile
    pieces = ListKeys(replace(profile, list_key="wordpiece"), index.encoder.tokenizer)
    counted: Counter[str] = Counter()
    collection = index.searcher.collection
    for live in collection.segments:
        for ordinal, (start, end) in zip(
            live.segment.row_documents.tolist(), live.segment.row_spans.tolist(), strict=True
        ):
            document = collection.document(ordinal)
            [row] = row_texts(index.encoder, document, [(start, end)], collection.context)
            [keyed] = pieces.of_texts([row.text], profile.document_length)
            counted["pieces"] += sum(key is not None for key in keyed.keys)
    return {
        "documents": facts.documents,
        "rows": facts.rows,
        "mentions": facts.mentions,
        "piece_mentions": counted["pieces"],
        "saved": round(1 - facts.mentions / counted["pieces"], 4),
        "lists": facts.lists,
        "n_t": index.encoder.config.n_t,
        "bytes_a_mention": round(facts.bytes_a_mention, 2),
    }


def shares(index: Index, queries: list[str]) -> dict[str, Any]:
    """The share of the best hit: of real queries, and of made-up words."""
    rng = random.Random(1)
    letters = string.ascii_lowercase
    nonsense = ["".join(rng.choices(letters, k=rng.randint(6, 11))) for _ in range(ASKED)]
    found: dict[str, Any] = {}
    for by in SYSTEMS:
        of_real = [
            hits[0].share if hits else 0.0
            for hits in index.search_many(queries[:ASKED], 1, by=by, plain=True)
        ]
        of_nonsense = [
            hits[0].share if hits else 0.0 for hits in index.search_many(nonsense, 1, by=by, plain=True)
        ]
        real, made_up = (np.array([share or 0.0 for share in shares]) for shares in (of_real, of_nonsense))
        found[by] = {
            "real": [round(float(np.quantile(real, q)), 3) for q in (0.0, 0.05, 0.5)],
            "nonsense": [round(float(np.quantile(made_up, q)), 3) for q in (0.5, 0.95, 1.0)],
            "told_apart": round(float((real[:, None] > made_up[None]).mean()), 4),
        }
    return found


if __name__ == "__main__":
    main()
