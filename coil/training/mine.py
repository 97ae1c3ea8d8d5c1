"""Mining: for each query, passages that look relevant but are not its positives.

There are three ways to find them: BM25 (as in the paper), another system's run, or a trained COIL model for a
second round.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError, OutputError
from coil.hits.top_k import top_k
from coil.lists.building import SegmentBuilder
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment
from coil.progress import ProgressBar
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_with_numpy
from coil.scores.statistics import Statistics
from coil.texts.runs import read_run
from coil.tokens.profile import LONGEST, ScoringProfile
from coil.training.pair_data import Places, negatives_header, number_pairs
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import ModelFiles, bundled_model
from coil.vectors.token_vectors import TokenVectors

# Passage texts, query texts, depth → for each query, the best passages as indexes.
Ranker = Callable[[Sequence[str], Sequence[str], int], Iterator[NDArray[np.int64]]]

_AT_ONCE = 256  # texts tokenized together


@dataclass(frozen=True)
class Mining:
    """How negatives are sampled: `number` of them from the `depth` best passages."""

    depth: int = 1000
    number: int = 30
    skip: int = 0  # best passages to skip, which are often unlabelled positives
    per_source: bool = True  # search only the passages of the query's own pairs file
    seed: int = 13


def mine(files: Sequence[Path], out: Path, ranker: Ranker, mining: Mining, method: str) -> int:
    """Mine with a ranker; returns the number of queries that got negatives."""
    places, query_texts, passage_texts = number_pairs(files)
    queries, passages = list(query_texts), list(passage_texts)
    positives = _positives(places, len(queries))
    first_place = _first_places(places)
    pools = _pools(places, mining.per_source)

    def found() -> Iterator[tuple[int, list[int]]]:
        total = sum(len(q) for q, _ in pools)
        with ProgressBar(f"mining ({method})", "queries", total) as bar:
            for query_ids, passage_ids in pools:
                names = np.array(passage_ids, dtype=np.int64)
                ranked = ranker(
                    [passages[p] for p in passage_ids], [queries[q] for q in query_ids], mining.depth
                )
                for query, best in zip(query_ids, ranked, strict=True):
                    yield query, names[best].tolist()
                    bar.update()

    return _write(out, places, first_place, positives, found(), mining, method)


def mine_run(files: Sequence[Path], out: Path, run: Path, mining: Mining, corpus: str | None = None) -> int:
    """Take negatives from a TREC run whose query ids and document ids are places such as `faq:17`."""
    places, _, _ = number_pairs(files, corpus)
    positives = _positives(places, max(places.query_at.values()) + 1)
    names = {number: name for name, number in reversed(places.passage_at.items())}

    def found() -> Iterator[tuple[int, list[int]]]:
        seen: set[int] = set()
        for query_name, ranked in read_run(run).items():
            if query_name not in places.query_at:
                raise InputError(
                    f"{run} has the query {query_name!r}, which is not a place in the pairs files",
                    "search the collection that `coil mine --collection DIR` writes: its ids are places",
                )
            unknown = next((name for name in ranked if name not in places.passage_at), None)
            if unknown is not None:
                raise InputError(
                    f"{run} has the document {unknown!r}, which is neither a place nor in the corpus",
                    "pass the collection that the run was made from with --corpus",
                )
            best = [places.passage_at[name] for name in ranked]
            query = places.query_at[query_name]
            if query not in seen:  # the same text on another line is the same query
                seen.add(query)
                yield query, best[: mining.depth]

    return _write(out, places, names, positives, found(), mining, f"run {run.name}")


def write_collection(files: Sequence[Path], folder: Path) -> None:
    """Write the pairs as a BEIR folder, so that any system can create a run to mine from."""
    places, query_texts, passage_texts = number_pairs(files)
    names = _first_places(places)
    first_query = {number: name for name, number in reversed(places.query_at.items())}
    try:
        (folder / "qrels").mkdir(parents=True, exist_ok=True)
        with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(passage_texts):
                file.write(json.dumps({"_id": names[number], "text": text}) + "\n")
        with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
            for number, text in enumerate(query_texts):
                file.write(json.dumps({"_id": first_query[number], "text": text}) + "\n")
        with (folder / "qrels" / "test.tsv").open("w", encoding="utf-8") as file:
            file.write("query-id\tcorpus-id\tscore\n")
            for query, passage in sorted({(q, p) for _, q, p in places.pairs}):
                file.write(f"{first_query[query]}\t{names[passage]}\t1\n")
    except OSError as error:
        raise OutputError(f"{folder} cannot be written: {error.strerror}", "choose another folder") from error


def rank_with_bm25(
    passages: Sequence[str], queries: Sequence[str], depth: int
) -> Iterator[NDArray[np.int64]]:
    """BM25 over whole words: the equation with BM25's constants, without a language model."""
    files = ModelFiles.load(bundled_model())

    def count(texts: Sequence[str]) -> Iterator[TokenVectors]:
        for begin in range(0, len(texts), _AT_ONCE):
            for keyed in files.keys.of_texts(texts[begin : begin + _AT_ONCE], LONGEST):
                nothing = np.zeros((len(keyed.keys), 0), np.float32)
                yield TokenVectors(keyed.keys, keyed.places.astype(np.int32), keyed.spans, nothing, None)

    profile = files.config.profile.answering("bm25")
    yield from _rank(count(passages), count(queries), profile, (0, 0), depth)


def coil_ranker(encoder: Encoder) -> Ranker:
    """A trained COIL model as the ranker, for a second round of negatives."""

    def rank(passages: Sequence[str], queries: Sequence[str], depth: int) -> Iterator[NDArray[np.int64]]:
        shown = ProgressBar("encoding", "passages", len(passages), leave=False).over(passages)
        config = encoder.config
        yield from _rank(
            encoder.encode_documents(shown),
            encoder.encode_queries(queries),
            config.profile,
            (config.n_t, config.n_c),
            depth,
        )

    return rank


def _rank(
    passages: Iterable[TokenVectors],
    queries: Iterable[TokenVectors],
    profile: ScoringProfile,
    widths: tuple[int, int],
    depth: int,
) -> Iterator[NDArray[np.int64]]:
    segments = list(_segments(passages, profile, widths))
    statistics = Statistics([LiveSegment(segment, None) for segment in segments])
    for query in queries:
        prepared = PreparedQuery.of(query, profile, statistics)
        parts = [score_with_numpy(prepared, segment) for segment in segments]
        scores = np.concatenate([np.zeros(0, np.int64), *parts])
        yield top_k(scores, depth, without_zero=prepared.sentence is None)


def _segments(
    passages: Iterable[TokenVectors], profile: ScoringProfile, widths: tuple[int, int]
) -> Iterator[Segment]:
    builder = SegmentBuilder(profile, *widths, "fp32")
    for ordinal, passage in enumerate(passages):
        if len(builder) == MOST_ROWS:
            yield builder.finish()
            builder = SegmentBuilder(profile, *widths, "fp32")
        builder.add(ordinal, (0, 0), passage)
    if len(builder):
        yield builder.finish()


def _positives(places: Places, n_queries: int) -> list[set[int]]:
    positives: list[set[int]] = [set() for _ in range(n_queries)]
    for _, query, passage in places.pairs:
        positives[query].add(passage)
    return positives


def _first_places(places: Places) -> dict[int, str]:
    return {number: name for name, number in reversed(places.passage_at.items())}


def _pools(places: Places, per_source: bool) -> list[tuple[list[int], list[int]]]:
    """The (queries, passages) to search together; a query of two files is searched in the first."""
    pools: dict[int, tuple[dict[int, None], dict[int, None]]] = {}
    seen: set[int] = set()
    for source, query, passage in places.pairs:
        queries, passages = pools.setdefault(source if per_source else 0, ({}, {}))
        passages[passage] = None
        if query not in seen:
            queries[query] = None
            seen.add(query)
    return [(list(queries), list(passages)) for queries, passages in pools.values()]


def _write(
    out: Path,
    places: Places,
    names: dict[int, str],
    positives: list[set[int]],
    found: Iterator[tuple[int, list[int]]],
    mining: Mining,
    method: str,
) -> int:
    """Sample the negatives and write them; the file appears only when it is complete."""
    first_query = {number: name for name, number in reversed(places.query_at.items())}
    if out.is_dir():
        raise OutputError(f"{out} is a folder; expected a file", "pass a file name with --out")
    partial = out.with_name(out.name + ".partial")
    written = 0
    try:
        with partial.open("w", encoding="utf-8") as file:
            how: dict[str, object] = {
                "by": method,
                "depth": mining.depth,
                "number": mining.number,
                "skip": mining.skip,
            }
            file.write(negatives_header(places, how) + "\n")
            for query, ranked in found:
                wrong = [p for p in ranked if p not in positives[query]][mining.skip :]
                if not wrong:
                    continue
                rng = np.random.default_rng([mining.seed, query])
                kept = np.sort(rng.choice(len(wrong), size=min(mining.number, len(wrong)), replace=False))
                line = {"at": first_query[query], "negatives": [names[wrong[i]] for i in kept]}
                file.write(json.dumps(line) + "\n")
                written += 1
        if not written:
            raise InputError(
                "no negatives were found", "use more pairs, a larger --depth or a smaller --skip"
            )
        os.replace(partial, out)
    except OSError as error:
        raise OutputError(
            f"{out} cannot be written: {error.strerror}", "choose another file with --out"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    return written
