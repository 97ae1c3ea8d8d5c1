"""Compare the factors α, β and γ(q) of a model on held-out queries. Writes experiments/results/factors.json.

    python -m experiments.factors DIR... [--model DIR]

Each DIR is a BEIR folder (`experiments.held_out` creates them). Every text is encoded once, and the parts of
a score are kept apart, so that any number of factors can be tried: α counts a word, β multiplies its
similarity where that is above 0, and γ·√(n − s) multiplies the similarity of the sentences, n being the
listed words of the query. Choose factors on sources that were not used for training, and check needles with
`experiments.words`.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.stamp import stamp, write_result
from coil.metrics.evaluation import evaluate
from coil.texts.judgements import read_judgements
from coil.vectors.model_files import resolve_folder
from coil.vectors.onnx_encoder import OnnxEncoder
from experiments.systems import Collection, Encoded, ranking, say

RESULTS = Path(__file__).resolve().parent / "results"
LESS = (0.0, 0.5, 0.75)  # s of √(n − s)
GAMMAS = (7.95, 9.5, 10.7, 11.9)
FITS = ((0.89, 0.1), (0.73, 0.3), (0.62, 0.44), (0.57, 0.5), (0.49, 0.6))  # α, β


class Parts(NamedTuple):
    """What one query's words and sentence add to each document, before any factor."""

    n_listed: int
    counted: NDArray[np.float32]  # [documents]
    similar: NDArray[np.float32]  # [documents]
    sentence: NDArray[np.float32]  # [documents]


def main() -> None:
    """Encode the collections, try all factors, and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("collections", nargs="+", type=Path)
    parser.add_argument("--model", help="a folder; the bundled model by default")
    arguments = parser.parse_args()
    encoder = OnnxEncoder(resolve_folder(arguments.model))
    settings = [
        (alpha, beta, gamma, less) for alpha, beta in FITS for gamma in (0.0, *GAMMAS) for less in LESS
    ]
    settings = [one for one in settings if one[2] or not one[3]]  # without a sentence part there is no root
    rows: dict[tuple[float, ...], dict[str, float]] = {one: {} for one in settings}
    for folder in arguments.collections:
        judgements = read_judgements(folder)
        collection = Collection.read(folder, set(judgements))
        parts = take_apart(Encoded.of(collection, encoder))
        for one in settings:
            rows[one][folder.name] = ndcg(collection, judgements, parts, *one)
        say(f"{folder.name}: done")
    result: dict[str, Any] = {
        **stamp("ir-measures"),
        "fingerprint": encoder.fingerprint,
        "passages": "2,000 of each source at most",
        "rows": [
            {**dict(zip(("alpha", "beta", "gamma", "less"), one, strict=True)), "nDCG@10": found}
            for one, found in rows.items()
        ],
    }
    write_result("factors", result, RESULTS / "factors.json")
    for one, found in sorted(rows.items(), key=lambda item: -sum(item[1].values())):
        say(f"{one}: {sum(found.values()) / len(found):.4f}")


def take_apart(encoded: Encoded) -> list[Parts]:
    """The parts of all scores."""
    plain = replace(encoded.profile, gamma=0.0)
    scored = zip(
        encoded.queries,
        encoded.scores(replace(plain, alpha=1.0, beta=0.0)),
        encoded.scores(replace(plain, alpha=0.0, beta=1.0)),
        encoded.scores(encoded.profile.answering("dense")),
        strict=True,
    )
    return [
        Parts(sum(key is not None for key in query.keys), counted, similar, sentence)
        for query, counted, similar, sentence in scored
    ]


def ndcg(
    collection: Collection,
    judgements: dict[str, dict[str, int]],
    parts: list[Parts],
    alpha: float,
    beta: float,
    gamma: float,
    less: float,
) -> float:
    """nDCG@10 with these factors."""
    run = {}
    for query, of_query in zip(collection.queries, parts, strict=True):
        root = math.sqrt(max(of_query.n_listed, 1) - less)
        scores = alpha * of_query.counted + beta * of_query.similar + gamma * root * of_query.sentence
        run[query.query_id] = ranking(collection, scores.astype(np.float32), 10, without_zero=True)
    return float(evaluate(judgements, run, ["nDCG@10"]).means["nDCG@10"])


if __name__ == "__main__":
    main()
