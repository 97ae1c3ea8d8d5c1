"""Compares COIL with bm25s, faiss and fast-plaid, in turn, in one run.

    python -m bench.peers --scifact FOLDER --venv FOLDER --work FOLDER [--only bm25s,faiss,plaid]

The peers are installed in a separate virtual environment, which is created if it does not exist (fast-plaid
pins a torch with its CUDA libraries: 5 GB). Indexes are kept in --work, so that a second run is quick; the
first takes half an hour, mostly for fast-plaid, which also answers every query once for nDCG@10.

Each block of queries is answered by all systems in turn, one query at a time; the medians are compared.

- bm25s: complete queries over SciFact. The target for COIL is 1.5 times the time of bm25s, plus encoding.
- faiss: a flat index of 1 M fp32 vectors of width 384 against COIL's lists of 1 M synthetic documents.
- plaid: SciFact with fast-plaid. It needs a matrix of token vectors per text and gets those of COIL, which
  were not trained for it: its times are more meaningful than its nDCG@10.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from bench.peer_ours import Contestant, Million, Parts, Run, SciFact, ours
from bench.peer_process import Peer, PeerFailed, prepare_environment
from bench.stamp import stamp, write_result
from coil.errors import CoilError
from coil.metrics.evaluation import evaluate
from coil.tokens.profile import By

BLOCK = 25  # queries that one system answers before the next has its turn
MILLION = 1_000_000
FEW = 20  # queries whose time with fast-plaid is taken
DIM = 384  # of the sentence vectors that faiss is given
OURS: dict[str, By] = {"COIL": "coil", "COIL by bm25": "bm25"}
# bm25s as it comes, and with what it uses where it is installed.
BM25S = {
    "numpy": {"backend": "numpy", "stemmer": "python"},
    "numpy, stemmer in C": {"backend": "numpy", "stemmer": "c"},
    "numba, stemmer in C": {"backend": "numba", "stemmer": "c"},
}
# fast-plaid's own settings, then more of its index looked at.
PLAID = {
    "default": {"n_ivf_probe": 8, "n_full_scores": 4096},
    "32 probes": {"n_ivf_probe": 32, "n_full_scores": 8192},
}
VECTORS = (
    "COIL's own token vectors, of the tokens that have a list: documents' at length 1, queries' as they are. "
    "No model trained for MaxSim over all tokens was at hand."
)

Medians = dict[str, NDArray[np.float64]]  # part → [queries], each query's median over the rounds


def in_turns(contestants: dict[str, Contestant], queries: int, rounds: int) -> dict[str, Medians]:
    """Every system answers every query several times, block by block; the systems take turns to begin."""
    names = list(contestants)
    blocks = [list(range(begin, min(begin + BLOCK, queries))) for begin in range(0, queries, BLOCK)]
    taken: dict[str, list[list[Parts]]] = {name: [[] for _ in range(rounds)] for name in names}
    turns = [(number, block) for number in range(rounds) for block in blocks]
    for turn, (number, block) in enumerate(tqdm(turns, desc=", ".join(names)[:60], disable=None)):
        for step in range(len(names)):
            name = names[(turn + step) % len(names)]
            taken[name][number] += contestants[name](block)
    return {
        name: {
            part: np.median([[parts[part] for parts in of_round] for of_round in of_system], axis=0)
            for part in of_system[0][0]
        }
        for name, of_system in taken.items()
    }


def of_peer(
    peer: Peer, k: int, setting: dict[str, Any], scifact: SciFact | None = None
) -> tuple[Contestant, Run]:
    """A peer as a contestant, and the run that it fills where the documents are SciFact's."""
    run: Run = {}

    def search(numbers: list[int]) -> list[Parts]:
        answer = peer.ask(numbers, k, setting)
        if scifact is not None:
            for number, hits in zip(numbers, answer["hits"], strict=True):
                found = {scifact.documents[place].doc_id: score for place, score in hits}
                run[scifact.queries[number].query_id] = found
        return [{"total": ms} for ms in answer["ms"]]

    return search, run


def figures(medians: dict[str, Medians]) -> dict[str, dict[str, dict[str, float]]]:
    """Median and 95th percentile over the queries, by system and part, in milliseconds."""
    return {
        name: {
            part: {"p50": round(float(np.median(ms)), 3), "p95": round(float(np.percentile(ms, 95)), 3)}
            for part, ms in parts.items()
        }
        for name, parts in medians.items()
    }


def ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """The ratio of two medians."""
    return round(float(np.median(one) / np.median(other)), 3)


def ndcg(scifact: SciFact, run: Run) -> float:
    """The mean nDCG@10 of a run."""
    return round(evaluate(scifact.judgements, run, ["nDCG@10"]).means["nDCG@10"], 4)


def compare_bm25s(scifact: SciFact, python: Path, work: Path, rounds: int) -> dict[str, Any]:
    """The whole query, one thread."""
    texts = {"documents": [d.text for d in scifact.documents], "queries": [q.text for q in scifact.queries]}
    (work / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    found: dict[str, Any] = {}
    with Peer(python, "bm25s", work, 1) as peer:
        for k in (10, 1000):
            entries = {name: scifact.contestant(1, k, by) for name, by in OURS.items()}
            entries |= {
                f"bm25s {name}": of_peer(peer, k, setting, scifact) for name, setting in BM25S.items()
            }
            medians = in_turns(
                {name: entry for name, (entry, _) in entries.items()}, len(scifact.queries), rounds
            )
            peers = {name: parts["total"] for name, parts in medians.items() if name not in OURS}
            found[f"k={k}"] = {
                "ms": figures(medians),
                "nDCG@10": {name: ndcg(scifact, run) for name, (_, run) in entries.items()},
                **{
                    f"{system}_{part}_over_bm25s": {
                        name: ratio(medians[system][part], ms) for name, ms in peers.items()
                    }
                    for system in OURS
                    for part in ("score", "search", "total")
                },
            }
        found |= {**peer.facts, "cores_busy": round(float(np.median(peer.cores)), 2)}
    found["targets"] = [
        target(
            f"{system} without encoding over bm25s ({name}), k = {k}",
            found[f"k={k}"][f"{system}_search_over_bm25s"][f"bm25s {name}"],
            most,
        )
        for system in OURS
        for name in BM25S
        for k, most in ((10, 1.5), (1000, 2.0))
    ]
    return found


def compare_faiss(
    million: Million | None, python: Path, work: Path, documents: int, queries: int, rounds: int
) -> dict[str, Any]:
    """Encoded queries over a million documents, one thread and two."""
    size = {"documents": documents, "dim": DIM, "queries": queries}
    (work / "faiss.json").write_text(json.dumps(size), encoding="utf-8")
    found: dict[str, Any] = {"documents": documents, "dim": DIM, "targets": []}
    if million is None:
        found["coil"] = "not measured: bench.synthetic, which makes the documents, is not there"
    for threads in (1, 2):
        with Peer(python, "faiss", work, threads) as peer:
            for k in (10, 1000):
                kinds = ("flat", "shards") if threads > 1 else ("flat",)
                entries = {f"faiss {kind}": of_peer(peer, k, {"index": kind})[0] for kind in kinds}
                peers = list(entries)
                if million is not None:
                    entries["coil tok-32"] = million.contestant(threads, k, tok_only=True)
                    entries["coil full-256/32"] = million.contestant(threads, k, tok_only=False)
                medians = in_turns(entries, queries, rounds)
                best = min(peers, key=lambda name: float(np.median(medians[name]["total"])))
                times = {
                    name: ratio(medians[best]["total"], medians[name]["total"])
                    for name in entries
                    if name not in peers
                }
                case = f"k={k}, threads={threads}"
                found[case] = {"ms": figures(medians), "best_faiss_over_coil": times}
                found["targets"] += [
                    target(f"{name} over the better faiss index, {case}", round(1 / value, 3), 1.0)
                    for name, value in times.items()
                ]
            found |= {**peer.facts, f"cores_busy_{threads}": round(float(np.median(peer.cores)), 2)}
    return found


def compare_plaid(scifact: SciFact, python: Path, work: Path, few: int) -> dict[str, Any]:
    """Encoded queries over SciFact: nDCG@10 of all of them, times of a few, because each takes so long."""
    digest = scifact.write_matrices(work / "plaid.npz")
    found: dict[str, Any] = {"vectors": VECTORS, "settings": PLAID}
    with Peer(python, "plaid", work, os.cpu_count() or 1) as peer:  # with every core: none of it is timed
        found["ready_s"] = peer.facts["ready_s"]  # to make its index, or to open the one that was kept
        quality = {
            name: ndcg(scifact, kept_run(work / f"plaid-run-{digest}-{name}.json", peer, scifact, setting))
            for name, setting in PLAID.items()
        }
    coils = scifact.indexes[1].search_many([query.text for query in scifact.queries], 10, plain=True)
    run = {
        query.query_id: {hit.doc_id: hit.score for hit in hits}
        for query, hits in zip(scifact.queries, coils, strict=True)
    }
    found["nDCG@10"] = {"coil": ndcg(scifact, run), **quality}
    best = max(PLAID, key=lambda name: quality[name])
    targets = [
        target("COIL's nDCG@10 less fast-plaid's best", found["nDCG@10"]["coil"] - quality[best], 0.0, True)
    ]
    count = min(few, len(scifact.queries))
    for threads in (1, 2):
        with Peer(python, "plaid", work, threads) as peer:
            for k in (10, 1000):
                settings = PLAID if k == 10 else {"default": PLAID["default"]}
                entries = {"coil": scifact.contestant(threads, k)[0]}
                entries |= {name: of_peer(peer, k, setting)[0] for name, setting in settings.items()}
                medians = in_turns(entries, count, 1)
                coil = medians["coil"]
                peers = {name: medians[name]["total"] for name in settings}
                case = f"k={k}, threads={threads}"
                times = {name: ratio(ms, coil["search"]) for name, ms in peers.items()}
                found[case] = {
                    "queries": count,
                    "ms": figures(medians),
                    "plaid_over_coil_search": times,
                    "plaid_over_coil_with_encoding": {
                        name: ratio(ms + coil["encode"], coil["total"]) for name, ms in peers.items()
                    },
                }
                targets += [
                    target(f"fast-plaid ({name}) over COIL's search, {case}", value, 5.0, at_least=True)
                    for name, value in times.items()
                ]
            found |= {
                "versions": peer.facts["versions"],
                f"cores_busy_{threads}": round(float(np.median(peer.cores)), 2),
            }
    return {**found, "best_setting": best, "targets": targets}


def kept_run(path: Path, peer: Peer, scifact: SciFact, setting: dict[str, Any]) -> Run:
    """What a peer finds for all queries, kept for the next time: the same vectors give the same run."""
    if path.exists():
        kept: Run = json.loads(path.read_text(encoding="utf-8"))
        return kept
    search, run = of_peer(peer, 10, setting, scifact)
    for number in tqdm(range(len(scifact.queries)), desc="nDCG@10", unit=" queries", disable=None):
        search([number])
    path.write_text(json.dumps(run), encoding="utf-8")
    return run


def target(what: str, measured: float, limit: float, at_least: bool = False) -> dict[str, Any]:
    """One line of the summary."""
    reached = measured >= limit if at_least else measured <= limit
    return {
        "what": what,
        "at_least" if at_least else "at_most": limit,
        "measured": round(measured, 4),
        "reached": reached,
    }


def main() -> None:
    """Measure, write bench/results/peers.json, print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scifact", type=Path, required=True, help="SciFact as a BEIR folder")
    parser.add_argument("--venv", type=Path, required=True, help="the peers' virtual environment")
    parser.add_argument("--work", type=Path, required=True, help="folder for indexes, kept for the next run")
    parser.add_argument(
        "--only", default="bm25s,faiss,plaid", help="comma-separated names of the peers to measure"
    )
    parser.add_argument("--queries", type=int, help="number of SciFact queries, for a quick check")
    parser.add_argument(
        "--documents",
        type=int,
        default=MILLION,
        help="number of documents for faiss and for COIL's synthetic index",
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="result file, instead of bench/results/peers.json")
    given = parser.parse_args()
    systems = given.only.split(",")
    if unknown := set(systems) - {"bm25s", "faiss", "plaid"}:
        parser.error(f"unknown peer: {', '.join(sorted(unknown))}; choose from bm25s, faiss and plaid")
    given.work.mkdir(parents=True, exist_ok=True)
    scifact = (
        SciFact.open(given.scifact, given.work, given.queries) if {"bm25s", "plaid"} & set(systems) else None
    )
    result: dict[str, Any] = {**stamp("bm25s"), "rounds": given.rounds}
    if scifact is not None:
        documents, queries = len(scifact.documents), len(scifact.queries)
        result["data"] = f"SciFact, {documents:,} documents and {queries} queries of its test split"
    for system in systems:
        try:
            python = prepare_environment(given.venv, system)
            if system == "faiss":
                million = ours(given.documents, given.work)
                result[system] = compare_faiss(million, python, given.work, given.documents, 24, given.rounds)
            else:
                assert scifact is not None
                compare = compare_bm25s if system == "bm25s" else compare_plaid
                result[system] = compare(
                    scifact, python, given.work, given.rounds if system == "bm25s" else FEW
                )
        except PeerFailed as error:  # the others are still worth measuring; the file says what is missing
            result[system] = {"not_measured": str(error), "targets": []}
            print(f"{system}: {error}", file=sys.stderr, flush=True)
        for line in result[system]["targets"]:
            print(f"{'reached' if line['reached'] else 'NOT    '} {line}", flush=True)
    print(f"written to {write_result('peers', result, given.out)}")


if __name__ == "__main__":
    try:
        main()
    except CoilError as error:
        sys.exit(f"{error}\n{error.remedy}".strip())
