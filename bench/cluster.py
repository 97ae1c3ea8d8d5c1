"""Measures shards on a Ray cluster on this machine: the cost of sharding, and how building scales.

    python -m bench.cluster CORPUS QUERIES [--documents 1200] [--rounds 3] [--out FILE]

CORPUS is a .jsonl(.gz) file, QUERIES a file of queries. Everything is compared within one run, in turn:

- building with one actor and with two, one thread each: documents per second while all actors are busy; and
  as a control, one and two processes that do what an actor does, without a cluster. Their ratio is what the
  cores have to give, which may share caches and clock. Other programs take from it: their share is noted;
- the answers of 1, 2 and 5 shards to all queries, which must equal those of one index. The cluster builds
  these shards from vectors that were encoded once;
- batches of queries on one index with two threads and on two shards with one thread each, also with the texts
  of all hits;
- single queries with the texts of their hits on 1, 2 and 5 shards, one client, with the time of each kind of
  call, which is the input of bench.scale.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import pickle
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from bench.cpu_time import CpuTime
from bench.stamp import stamp, write_result
from coil.cluster.building import BuildReport, ClusterBuild, Workers, start_build
from coil.cluster.encoding import EncoderRecipe, OneCoreActor
from coil.cluster.following import Deployed
from coil.cluster.joining import joined
from coil.cluster.reading import Unread
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.shards.exchange import Narrowing, PackedQueries, RankAsk
from coil.shards.index import ShardedIndex
from coil.shards.opening import create_shards
from coil.shards.places import find_place
from coil.shards.windows import CorpusFiles, Reached
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.vectors.encoder import Encoder, windows
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

K = 10
BATCHES = (("coil", 64, False), ("bm25", 64, False), ("coil", 256, False), ("bm25", 256, False),
           ("coil", 64, True))  # fmt: skip
FAN_OUTS = (1, 2, 5)
WINDOW = 32  # documents
PLAIN_SECONDS = 8.0


def one_thread() -> OnnxEncoder:
    """The bundled model on one core."""
    return OnnxEncoder(threads=1)


class Recorded:
    """The bundled model, and the vectors of documents that it has seen: they depend on the text alone."""

    def __init__(self, path: Path | None = None) -> None:
        self._model = OnnxEncoder(threads=0 if path is None else 1)
        self._known: dict[str, TokenVectors] = {} if path is None else pickle.loads(path.read_bytes())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of documents, in input order; each text is encoded once."""
        for window in windows(texts):
            new = [text for text in dict.fromkeys(window) if text not in self._known]
            self._known.update(zip(new, self._model.encode_documents(new), strict=True))
            yield from (self._known[text] for text in window)

    def save(self, path: Path) -> Path:
        """For other processes of this run."""
        path.write_bytes(pickle.dumps(self._known, 5))
        return path


class TimedBuild(ClusterBuild):
    """A build that notes when each window comes back, and which CPU time is used while all actors are busy:
    from the second window of each until the fourth before its last. Windows can arrive late, the last
    ones when an actor has already ended."""

    def __init__(self, actors: int, windows: int, *what: Any) -> None:
        super().__init__(*what)
        self._first, self._last = 2 * actors - 1, windows - 1 - 4 * actors
        if self._last <= self._first:
            raise SystemExit(f"{windows} windows are too few to measure; increase --documents")
        self._came: list[float] = []
        self._used: list[CpuTime] = []

    def _encoded(self, next_ordinals: Sequence[int]) -> Generator[Any]:
        with closing(super()._encoded(next_ordinals)) as blocks:
            for block in blocks:
                if len(self._came) in (self._first, self._last):
                    self._used.append(CpuTime.now())
                self._came.append(time.monotonic())
                yield block

    def found(self) -> dict[str, float]:
        """Documents per second, and how many cores other programs used.

        A line is fitted to all arrivals, because two of them would not be typical: windows come in the order
        of the corpus, so one that is ready may wait for another.
        """
        busy = self._came[self._first : self._last + 1]
        before, after = self._used
        others = (after.of_all - before.of_all) - (after.ours - before.ours)
        return {
            "documents_a_second": round(
                WINDOW / statistics.linear_regression(range(len(busy)), busy).slope, 1
            ),
            "cores_of_others": round(max(0.0, others / (busy[-1] - busy[0])), 2),
        }


def build(
    ray: Any, where: Path, corpus: Path, shards: int, actors: int, encoder: Callable[[], Encoder] = one_thread
) -> dict[str, float]:
    """Build, and return what was measured while all actors were busy."""
    place, report = find_place(where), BuildReport(lambda *_: None, print, [])
    with corpus.open(encoding="utf-8") as lines:
        windows = sum(1 for _ in lines) // WINDOW + 1
    with place.claim():
        began = time.monotonic()
        manifest, state = start_build(place, shards)
        workers = Workers(actors, actors, window=WINDOW)
        files = CorpusFiles((str(corpus),))
        run = TimedBuild(actors, windows, ray, place, manifest, state, files, workers, report, encoder)
        run.run()
    return {**run.found(), "seconds": round(time.monotonic() - began, 1)}


def encode_plainly(recipe: EncoderRecipe, corpus: Path, ready: Any, rates: Any) -> None:
    """What an actor does, in a process without a cluster: the same window again and again."""
    actor = OneCoreActor(recipe)
    window = next(Unread(CorpusFiles((str(corpus),)), [0, 0], Reached(), WINDOW).tables())
    actor(window)
    ready.wait()
    began, times = time.monotonic(), 0
    while time.monotonic() - began < PLAIN_SECONDS:
        actor(window)
        times += 1
    rates.put(times * WINDOW / (time.monotonic() - began))


def plain_rate(recipe: EncoderRecipe, corpus: Path, count: int) -> float:
    """The documents that so many plain processes encode per second, all at the same time."""
    context = multiprocessing.get_context("spawn")
    ready, rates = context.Barrier(count), context.SimpleQueue()
    for _ in range(count):
        context.Process(target=encode_plainly, args=(recipe, corpus, ready, rates), daemon=True).start()
    return round(sum(rates.get() for _ in range(count)), 1)


def measure_building(ray: Any, folder: Path, corpus: Path, rounds: int) -> dict[str, Any]:
    """Compare one actor with two, and one plain process with two, in turn."""
    recipe = EncoderRecipe(create_shards(find_place(folder / "plain"), 2), one_thread)
    found: dict[int, list[dict[str, float]]] = {1: [], 2: []}
    for number in range(rounds):
        for count, runs in found.items():
            plain = plain_rate(recipe, corpus, count)
            built = build(ray, folder / f"built-{number}-{count}", corpus, 2, count)
            runs.append({**built, "plain_documents_a_second": plain})
            print(f"{count} actors: {runs[-1]}", flush=True)

    def two_over_one(what: str) -> float:
        ratios = [two[what] / one[what] for one, two in zip(found[1], found[2], strict=True)]
        return round(statistics.median(ratios), 2)

    return {
        "runs": found,
        "two_over_one": two_over_one("documents_a_second"),
        "plain_two_over_one": two_over_one("plain_documents_a_second"),
    }


def in_turns(rounds: int, *asks: Callable[[], object]) -> list[list[float]]:
    """The seconds of each, measured in turn."""
    seconds: list[list[float]] = [[] for _ in asks]
    for _ in range(rounds):
        for ask, taken in zip(asks, seconds, strict=True):
            began = time.perf_counter()
            ask()
            taken.append(time.perf_counter() - began)
    return seconds


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{q}_ms": round(1000 * float(np.percentile(seconds, q)), 2) for q in (50, 95, 99)}


def ask(index: Index | ShardedIndex, batch: list[str], by: Any, texts: bool) -> None:
    """Search for a batch, and read the texts of all hits, or only ids and scores."""
    for hits in index.search_many(batch, K, by=by):
        for hit in hits:
            assert not texts or hit.text


def measure_batches(one: Index, many: ShardedIndex, queries: list[str], rounds: int) -> list[dict[str, Any]]:
    """The same batches on one index and on shards."""
    found = []
    for by, most, texts in BATCHES:
        size = min(most, len(queries))
        batches = [queries[begin : begin + size] for begin in range(0, len(queries) - size + 1, size)]
        taken: list[list[float]] = [[], []]
        for batch in batches:
            asks = [partial(ask, index, batch, by, texts) for index in (one, many)]
            times = rounds if len(batches) > 1 else 4 * rounds
            for seconds, some in zip(taken, in_turns(times, *asks), strict=True):
                seconds.extend(some)
        ratio = statistics.median(taken[1]) / statistics.median(taken[0])
        found.append(
            {"by": by, "queries": size, "texts": texts, "one": quantiles(taken[0]),
             "shards": quantiles(taken[1]), "shards_over_one_p50": round(ratio, 3)}
        )  # fmt: skip
        print(found[-1], flush=True)
    return found


def compare(one: Index, many: ShardedIndex, queries: list[str]) -> None:
    """Check that the answers of shards equal those of one index: ids, order and scores."""
    for by in ("coil", "tokens", "bm25", "dense", "hybrid"):
        assert many.search_many(queries, 100, by=by) == one.search_many(queries, 100, by=by), by


def find_versions(index: ShardedIndex) -> None:
    """Ask the ledger, and wait for its answer."""
    index._changes.find_versions()()


def measure_fan_out(many: ShardedIndex, queries: list[str]) -> dict[str, Any]:
    """Single queries of one client with the texts of their hits, and each kind of call by itself."""
    for query in queries[:20]:
        ask(many, [query], "coil", texts=True)
    whole, versions, rank, alone, look_up, encode = ([] for _ in range(6))
    encoder = many.encoder
    calls = many._whole.calls
    everyone = list(range(calls.count))
    for query in queries:
        whole += in_turns(1, partial(ask, many, [query], "coil", True))[0]
        began = time.perf_counter()
        list(encoder.encode_queries([query]))
        encode.append(time.perf_counter() - began)
        versions += in_turns(1, partial(find_versions, many))[0]
        with many.pinned() as reader:
            searcher = reader._searcher(Narrowing())
            prepared = searcher.prepare(searcher.encode([query], "coil"), "coil")
            wanted = RankAsk(PackedQueries.of(prepared), K, Narrowing(), -(2**62), wanted="texts")
            numbers: tuple[tuple[list[int], list[float]], ...] = ((everyone, rank), ([0], alone))
            for some, taken in numbers:
                began = time.perf_counter()
                found = calls.ask(some, "rank", lambda n, r=reader, w=wanted: (r.versions[n], w))  # type: ignore[misc]
                taken.append(time.perf_counter() - began)
            ordinals = found[0].rankings.found.ordinals.tolist()
            began = time.perf_counter()
            calls.ask([0], "look_up", lambda n, r=reader, o=ordinals: (r.versions[n], o, True))  # type: ignore[misc]
            look_up.append(time.perf_counter() - began)
    kinds = {"encode": encode, "versions": versions, "rank_all": rank, "rank_one": alone, "look_up": look_up}
    return {
        "shards": calls.count,
        "search": quantiles(whole),
        "calls": {name: quantiles(seconds) for name, seconds in kinds.items()},
        # for bench.scale, which draws from them
        "samples_ms": {
            name: [round(1000 * one, 2) for one in seconds]
            for name, seconds in {**kinds, "search": whole}.items()
        },
    }


def shorten(corpus: Path, count: int, folder: Path) -> Path:
    """The first documents of a corpus."""
    folder.mkdir(exist_ok=True)
    path = folder / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for document, _ in zip(read_documents(corpus), range(count), strict=False):
            file.write(json.dumps({"id": document.doc_id, "text": document.text}) + "\n")
    return path


def main() -> None:
    """Measure and write bench/results/cluster.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("queries", type=Path)
    parser.add_argument("--documents", type=int, default=1200, help="documents to build with 1 and 2 actors")
    parser.add_argument("--all", type=int, default=sys.maxsize, help="maximum number of documents to search")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="result file, instead of the default")
    arguments = parser.parse_args()
    result: dict[str, Any] = stamp("ray")
    queries = [query.text for query in read_queries(arguments.queries)]
    with tempfile.TemporaryDirectory() as scratch, joined("local") as ray, ExitStack() as stack:
        folder = Path(scratch)
        few = shorten(arguments.corpus, arguments.documents, folder)
        result["building"] = measure_building(ray, folder, few, arguments.rounds)
        everything = shorten(arguments.corpus, arguments.all, folder / "all")
        recorded = Recorded()
        with create(folder / "one.coil", encoder=recorded) as made:
            made.add(read_documents(everything))
        encoder = partial(Recorded, recorded.save(folder / "vectors"))
        del recorded
        one = stack.enter_context(open_index(folder / "one.coil", threads=2))
        result["data"] = {
            "documents": len(one),
            "built_with_1_and_2_actors": arguments.documents,
            "queries_with_equal_answers": len(queries),
            "corpus": arguments.corpus.parent.name,
        }
        fan_outs = []
        for count in FAN_OUTS:
            build(ray, folder / f"{count}.shards", everything, count, 2, encoder)
            place = find_place(folder / f"{count}.shards")
            served = Deployed(f"bench-{count}", lambda place=place: place, 1)  # type: ignore[misc]
            try:
                compare(one, served.index, queries)
                if count == 2:
                    result["batches"] = measure_batches(one, served.index, queries, arguments.rounds)
                fan_outs.append(measure_fan_out(served.index, queries[:150]))
                print({**fan_outs[-1], "samples_ms": "…"}, flush=True)
            finally:
                served.close()
        result["fan_out"] = fan_outs
    result["machine"]["load_after"] = round(os.getloadavg()[0], 2)
    print(f"written to {write_result('cluster', result, arguments.out)}")


if __name__ == "__main__":
    main()
