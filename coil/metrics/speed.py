"""Speed of the search core on this machine, compared with the time to merely read the bytes.

The lists are synthetic: any number of documents, lists as long as those of a query in a collection of
passages (six tokens, 1.9 mentions per document in total), n_t = 32, and 256-dimensional sentence vectors.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.hits.rankers import NativeRanker, Selection, rank_with_scorer
from coil.lists.building import assemble_segment
from coil.lists.precision import StoredVectors
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment
from coil.lists.sentences import Sentences, head_width
from coil.scores.native import load_native
from coil.scores.prepared import PreparedQuery
from coil.vectors.token_vectors import TokenVectors

MENTIONS = (0.62, 0.41, 0.31, 0.25, 0.18, 0.12)  # of each query token, per document
N_T, N_C = 32, 256
WARM_UP = 5  # rounds that are not counted, while threads and memory pages settle


@dataclass(frozen=True)
class Timing:
    """The median time of one kind of search, and of reading the same bytes once with as many threads."""

    what: str
    threads: int
    search_ms: float
    read_ms: float
    mentions: int
    megabytes: float

    @property
    def share(self) -> float:
        """The share of the roofline: 1 is as fast as the bytes can be read."""
        return self.read_ms / self.search_ms


def measure_speed(
    documents: int,
    rounds: int = 31,
    threads: int = 2,
    told: Callable[[str], object] | None = None,
    with_numpy: bool = True,
) -> list[Timing]:
    """Time exhaustive searches of synthetic lists, with and without sentence vectors, and with NumPy."""
    native = load_native()
    if native is None:
        raise InputError(
            "the native extension was not built", "install a C++ compiler, then reinstall coil-ir"
        )
    rng = np.random.default_rng(0)
    segments = make_segments(rng, documents)
    tok = make_query(rng, False)
    mentions = sum(live.segment.n_mentions for live in segments)
    timings = []
    for query, what in ((tok, "COIL-tok"), (make_query(rng, True), "COIL-full")):
        size = mentions * (N_T + 3) + (documents * (N_C + 2) if query.sentence is not None else 0)
        words = np.ones(size // 8, dtype=np.uint64)
        for used in sorted({1, threads}):
            ranker = NativeRanker(segments, used)
            search, read = [], []
            for _ in range(WARM_UP + rounds):  # alternating, so that a busy machine slows both
                read.append(native.read_seconds(words, used))
                began = time.perf_counter()
                ranker.rank([query], Selection(1000), prune=False)
                search.append(time.perf_counter() - began)
            name = f"{what}, int8, {ranker.instruction_set}"
            timings.append(_timing(name, used, search[WARM_UP:], read[WARM_UP:], mentions, size))
            if told is not None:
                told(name)
    if not with_numpy:
        return timings
    size = mentions * N_T * 4
    words = np.ones(size // 8, dtype=np.uint64)
    precise = [LiveSegment(_as_fp32(live.segment), None) for live in segments]
    search, read = [], []
    for _ in range(3):
        read.append(native.read_seconds(words, 1))
        began = time.perf_counter()
        rank_with_scorer(_score_as_in_the_paper, [tok], precise, Selection(1000))
        search.append(time.perf_counter() - began)
    timings.append(_timing("COIL-tok, fp32, NumPy as in the paper", 1, search, read, mentions, size))
    return timings


def _timing(
    what: str, threads: int, search: list[float], read: list[float], mentions: int, size: int
) -> Timing:
    median = statistics.median
    return Timing(what, threads, median(search) * 1000, median(read) * 1000, mentions, size / 1e6)


def _score_as_in_the_paper(query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
    """Score with a matrix product over each list, the maximum per row, and a sum, all in fp32."""
    scores = np.zeros(segment.n_rows, dtype=np.float32)
    assert segment.precise_vectors is not None
    for key, vector in zip(query.keys, query.vectors, strict=True):
        place = segment.find(key)
        rows, starts, _ = segment.rows_at(place)
        products = segment.precise_vectors.values[segment.mentions_at(place)] @ vector
        scores[rows] += np.maximum(np.maximum.reduceat(products, starts), 0.0)
    return (scores * 2.0**32).astype(np.int64)


def _as_fp32(segment: Segment) -> Segment:
    """A segment with a copy of its vectors in fp32, consecutive."""
    precise = StoredVectors(segment.vectors[:].decode(), None)
    return replace(segment, precise_vectors=precise)


def make_query(rng: np.random.Generator, sentence: bool, n: int = len(MENTIONS)) -> PreparedQuery:
    """A query of n tokens, which use the synthetic lists in turn."""
    keys = tuple(f"w{number % len(MENTIONS)}" for number in range(n))
    vectors = rng.standard_normal((n, N_T)).astype(np.float32)
    whole = rng.standard_normal(N_C).astype(np.float32) if sentence else None
    encoded = TokenVectors(keys, np.arange(n, dtype=np.int32), np.zeros((n, 2), np.int32), vectors, whole)
    return PreparedQuery(
        keys,
        np.zeros(n, np.float32),
        vectors,
        whole,
        np.arange(n),
        saturation=None,
        floor=True,
        encoded=encoded,
    )


def make_segments(rng: np.random.Generator, documents: int) -> list[LiveSegment]:
    """Synthetic lists of this many documents.

    Their vectors are in one array, as in a mapped file: many small arrays would use many small memory pages.
    """
    segments = [
        make_segment(rng, begin, min(MOST_ROWS, documents - begin))
        for begin in range(0, documents, MOST_ROWS)
    ]
    vectors = np.concatenate([segment.vectors.values for segment in segments])
    heads = np.concatenate([segment.sentences.head.values for segment in segments])
    tails = np.concatenate([segment.sentences.tail.values for segment in segments])
    found, mention, row = [], 0, 0
    for segment in segments:
        values = vectors[mention * N_T : (mention + segment.n_mentions) * N_T]
        here = slice(row, row + segment.n_rows)
        of_rows = Sentences(
            replace(segment.sentences.head, values=heads[here]),
            replace(segment.sentences.tail, values=tails[here]),
        )
        grouped = replace(segment.vectors, values=values)
        found.append(LiveSegment(replace(segment, vectors=grouped, sentences=of_rows), None))
        mention, row = mention + segment.n_mentions, row + segment.n_rows
    return found


def make_segment(rng: np.random.Generator, first: int, rows: int) -> Segment:
    """Synthetic lists of some documents, the first of which has the ordinal `first`."""
    lists = [np.repeat(np.arange(rows), _counts(rng, share, rows)) for share in MENTIONS]
    numbers = np.repeat(np.arange(len(lists), dtype=np.int32), [len(of_list) for of_list in lists])
    head = head_width(N_C)
    return assemble_segment(
        [f"w{number}" for number in range(len(lists))],
        numbers,
        np.concatenate(lists),
        _vectors(rng, len(numbers), N_T),
        Sentences(_vectors(rng, rows, head), _vectors(rng, rows, N_C - head)),
        np.arange(first, first + rows, dtype=np.int64),
        np.zeros((rows, 2), np.uint32),
        precise=None,
        errors=(0.0, 0.0),
        saturation=(0.9, 0.4),
    )


def _counts(rng: np.random.Generator, mentions: float, rows: int) -> NDArray[np.int64]:
    """How many mentions each row has: of the rows with any, about 70 % have one."""
    counts: NDArray[np.int64] = (rng.random(rows) < mentions / 1.35) * (1 + rng.poisson(0.35, rows))
    return counts


def _vectors(rng: np.random.Generator, count: int, dim: int) -> StoredVectors:
    codes = np.maximum(np.frombuffer(rng.bytes(count * dim), dtype=np.int8), np.int8(-127))
    return StoredVectors(codes.reshape(count, dim), rng.integers(100, 111, count, dtype=np.uint8))
