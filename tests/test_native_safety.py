"""The native core under bad conditions: hostile arrays, no memory, no threads, no time, many callers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coil.errors import DamagedSegment, SearchTimeout, TooLittleMemory
from coil.hits.collection import build_segments
from coil.hits.rankers import NativeRanker, Selection
from coil.indexes.opening import create, open_index
from coil.lists.segment import LiveSegment
from coil.metrics import speed
from coil.scores.native import NativeScorer, load_native, named_arrays
from coil.scores.prepared import PreparedQuery
from tests.hash_encoder import HashEncoder, answers
from tests.test_kernels import KEYS, expected, ids_and_scores, make_query, make_segments, prepared
from tests.tiny import make_vectors, random_texts

native = load_native()
pytestmark = pytest.mark.skipif(native is None, reason="the native extension was not built: no C++ compiler?")
Arrays = dict[str, NDArray[Any]]
N_T = 8


@pytest.fixture(scope="module")
def live() -> LiveSegment:
    [made] = make_segments(np.random.default_rng(3), [300], N_T, 20, longest=20, chunks=True)
    return made


def with_values(name: str, *changes: tuple[int, int]) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[name] = np.array(arrays[name])
        for place, value in changes:
            arrays[name][place] = value

    return change


def with_array(name: str, make: Callable[[NDArray[Any]], Any]) -> Callable[[Arrays], object]:
    def change(arrays: Arrays) -> None:
        arrays[name] = make(arrays[name])

    return change


def misaligned(array: NDArray[Any]) -> NDArray[Any]:
    raw = np.zeros(array.nbytes + 1, np.uint8)
    raw[1:] = np.frombuffer(array.tobytes(), np.uint8)
    return raw[1:].view(array.dtype)


BIG, SMALL = 2**63 - 1, -(2**63)
HOSTILE: dict[str, tuple[Callable[[Arrays], object], str]] = {
    "first list offset": (with_values("list_offsets", (0, 1)), "list_offsets does not run from 0"),
    "negative list offset": (with_values("list_offsets", (0, -5)), "list_offsets does not run from 0"),
    "falling list offset": (with_values("list_offsets", (2, 0), (1, 1)), "list_offsets is not ascending"),
    "huge list offset": (with_values("list_offsets", (1, BIG)), "list_offsets is not ascending"),
    "least list offset": (with_values("list_offsets", (1, SMALL)), "list_offsets is not ascending"),
    "last list offset": (with_values("list_offsets", (-1, BIG)), "list_offsets does not run from 0"),
    "too few list offsets": (with_array("list_offsets", lambda a: a[:-1]), "list_offsets has the wrong size"),
    "no list offsets": (with_array("list_offsets", lambda a: a[:0]), "list_offsets has the wrong size"),
    "first block offset": (with_values("block_offsets", (0, 1)), "block_offsets does not run from 0"),
    "huge block offset": (with_values("block_offsets", (1, BIG)), "block_offsets is not ascending"),
    "least block offset": (with_values("block_offsets", (1, SMALL)), "block_offsets is not ascending"),
    "first block offset far below": (with_values("block_offsets", (0, SMALL)), "block_offsets does not run"),
    "wrong number of blocks": (with_values("block_offsets", (1, 1)), "wrong number of blocks"),
    "too many block norms": (with_array("block_norms", lambda a: np.append(a, a)), "block_offsets does"),
    "equal list ids": (with_values("list_ids", (1, 0)), "list_ids is not strictly ascending"),
    "falling list ids": (with_values("list_ids", (0, 7)), "list_ids is not strictly ascending"),
    "falling documents": (with_values("row_documents", (5, 10**6)), "row_documents is not ascending"),
    "negative documents": (with_values("row_documents", (0, -1)), "row_documents holds a negative number"),
    "many rows": (with_array("row_documents", lambda a: np.arange(70_000)), "more than 65,536 rows"),
    "other number of rows": (with_array("row_documents", lambda a: a[:-1]), "sentences has the wrong size"),
    "short vectors": (with_array("vectors", lambda a: a[:-1]), "vectors has the wrong size"),
    "short scales": (with_array("vector_scales", lambda a: a[:-1]), "vector_scales has the wrong size"),
    "no scales": (lambda arrays: arrays.pop("vector_scales"), "vector_scales is missing"),
    "no lists": (lambda arrays: arrays.pop("list_ids"), "list_ids is missing"),
    "other type": (with_array("list_ids", lambda a: a.astype(np.int64)), "list_ids has the wrong element"),
    "other vectors": (with_array("vectors", lambda a: a.astype(np.int16)), "vectors has the wrong element"),
    "not an array": (with_array("list_ids", lambda a: "1 2 3"), "list_ids is not an array"),
    "other byte order": (with_array("list_ids", lambda a: a.astype(">i4")), "list_ids"),
    "every second": (with_array("mention_rows", lambda a: np.repeat(a, 2)[::2]), "mention_rows is not cont"),
    "misaligned": (with_array("list_offsets", misaligned), "list_offsets is not aligned"),
    "flat sentences": (with_array("sentences", lambda a: a.reshape(-1)), "sentences is not a matrix"),
    "wide sentences": (with_array("sentences", lambda a: np.zeros((0, 2**40), np.int8)), "width"),
    "short list norms": (with_array("list_norms", lambda a: a[:-1]), "list_norms has the wrong size"),
    "NaN norms": (with_array("list_norms", lambda a: a * np.float32(np.nan)), "list_norms holds"),
    "negative norms": (with_array("block_norms", lambda a: -a), "block_norms holds a negative number"),
    "short sentence norms": (with_array("sentence_norms", lambda a: a[:-1]), "sentence_norms has the"),
    "short sketches": (with_array("sketches", lambda a: a[:-1]), "sketches has the wrong size"),
    "short axes": (with_array("sketch_axes", lambda a: a[:-1]), "sketch_axes has the wrong size"),
    "short tails": (with_array("tail_norms", lambda a: a[:-1]), "tail_norms has the wrong size"),
    "no step": (with_array("norm_step", lambda a: a[:0]), "norm_step is not a length"),
    "endless step": (with_array("norm_step", lambda a: a * np.float32(np.inf)), "norm_step is not a length"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_arrays_are_refused(case: str, live: LiveSegment) -> None:
    change, message = HOSTILE[case]
    arrays = named_arrays(live.segment)
    assert native is not None
    native.Segment(arrays, N_T)  # as they are, they are fine
    change(arrays)
    with pytest.raises(ValueError, match=message):
        native.Segment(arrays, N_T)


@pytest.mark.parametrize("n_t", [-1, 7, 9, 2**31, 2**60, 2**63 - 1, -(2**63)])
def test_a_width_that_does_not_fit_the_vectors_is_refused(n_t: int, live: LiveSegment) -> None:
    assert native is not None
    with pytest.raises(ValueError, match="vectors has"):
        native.Segment(named_arrays(live.segment), n_t)


@given(
    name=st.sampled_from(["list_ids", "list_offsets", "block_offsets", "row_documents", "mention_rows"]),
    place=st.integers(0, 10**6),
    value=st.one_of(st.integers(-3, 400), st.sampled_from([2**15, 2**31 - 1, 2**62, BIG, SMALL])),
)
@settings(max_examples=300, deadline=None)
def test_whatever_a_number_is_changed_to_a_search_stays_within_the_arrays(
    name: str, place: int, value: int, live: LiveSegment
) -> None:
    """It finds something or refuses the segment; the sanitizers watch."""
    assert native is not None
    rng = np.random.default_rng(place)
    arrays = named_arrays(live.segment)
    arrays[name] = np.array(arrays[name])
    arrays[name][place % len(arrays[name])] = np.array([value]).astype(arrays[name].dtype)[0]
    query = make_query(rng, N_T, 20, 8)
    try:
        segment = native.Segment(arrays, N_T)
        for prune in (True, False):
            native.search(
                instruction_set=native.instruction_sets()[0], segments=[segment], masks=[None],
                queries=[query.native], k=5, prune=prune, without_zero=False, at_least=SMALL, threads=1,
                seconds=0.0, range_rows=64,
            )  # fmt: skip
    except ValueError:
        pass


def test_damage_is_an_error_of_the_library(live: LiveSegment) -> None:
    rows = np.full_like(live.segment.mention_rows, 60_000)
    query = make_query(np.random.default_rng(0), N_T, 20, 6)
    damaged = replace(live.segment, mention_rows=rows)
    with pytest.raises(DamagedSegment, match="mention_rows"):
        NativeScorer()(query, damaged)
    with pytest.raises(DamagedSegment, match="mention_rows"):
        NativeRanker([LiveSegment(damaged, None)]).rank([query], Selection(3))
    short = replace(live.segment.bounds, list_norms=live.segment.bounds.list_norms[:-1])
    with pytest.raises(DamagedSegment, match="list_norms"):
        NativeScorer().segment(replace(live.segment, bounds=short))
    with pytest.raises(DamagedSegment, match="token vectors differ in width"):
        NativeScorer()(make_query(np.random.default_rng(0), 4, 20, 3), live.segment)


def test_a_segment_keeps_its_arrays_alive(live: LiveSegment) -> None:
    assert native is not None
    query = make_query(np.random.default_rng(1), N_T, 20, 6)
    wanted = NativeScorer()(query, live.segment)
    arrays = {name: np.array(array) for name, array in named_arrays(live.segment).items()}
    segment = native.Segment(arrays, N_T)
    arrays.clear()
    junk = [np.full(10_000, 7, np.uint8) for _ in range(100)]  # what was freed would be used again
    found = native.score_segment(native.instruction_sets()[0], segment, query.native)
    np.testing.assert_array_equal(found, wanted)
    assert len(junk) == 100


# --- threads that fail ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> list[LiveSegment]:
    """Rows for three threads."""
    return speed.make_segments(np.random.default_rng(5), 100_000)


@pytest.fixture
def fail_after() -> Iterator[Callable[[str, int], None]]:
    assert native is not None
    yield native._fail_after
    for what in ("thread", "memory"):
        native._fail_after(what, -1)


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("what", ["thread", "memory"])
def test_a_failing_thread_is_an_error_and_the_next_search_is_right(
    what: str, prune: bool, large: list[LiveSegment], fail_after: Callable[[str, int], None]
) -> None:
    """Each thread start and each piece of memory fails once, until there is none left to fail."""
    queries = [speed.make_query(np.random.default_rng(seed), sentence=True) for seed in range(2)]
    ranker = NativeRanker(large, threads=3, range_rows=16_384)
    wanted = expected(queries, large, Selection(10))
    running = threading.active_count()
    messages: list[str] = []
    for occasion in range(100):
        fail_after(what, occasion)
        try:
            found = ranker.rank(queries, Selection(10), prune)
        except TooLittleMemory as error:
            messages.append(str(error))
            fail_after(what, -1)
            found = ranker.rank(queries, Selection(10), prune)
        else:
            break
        finally:
            assert ids_and_scores(found) == wanted
    assert len(messages) >= (2 if what == "thread" else 3)
    assert all(("thread" in message) == (what == "thread") for message in messages)
    assert threading.active_count() == running


# --- time -------------------------------------------------------------------------------------------------


def test_a_deadline_that_has_passed_stops_the_search() -> None:
    rng = np.random.default_rng(3)
    segments = make_segments(rng, [50], 8, 16)
    with pytest.raises(SearchTimeout):
        NativeRanker(segments).rank([make_query(rng, 8, 16, 4)], Selection(5, deadline=0.0))


def seconds_of(ranker: NativeRanker, queries: list[PreparedQuery], prune: bool, limit: float | None) -> float:
    for query in queries:
        assert query.native is not None  # made before the clock runs
    began = time.monotonic()
    deadline = None if limit is None else began + limit
    with nullcontext() if limit is None else pytest.raises(SearchTimeout):
        ranker.rank(queries, Selection(1, deadline=deadline), prune)
    return time.monotonic() - began


@pytest.mark.parametrize("prune", [True, False])
@pytest.mark.parametrize("queries", [1, 40])
def test_a_deadline_stops_a_search_within_a_range(queries: int, prune: bool) -> None:
    """One range of two rows; the whole search would take as long as a hundred of those before it."""
    rng = np.random.default_rng(0)
    texts = [make_vectors(rng, [3] * 60_000, 32, 0), make_vectors(rng, [3, 4], 32, 0)]
    segments = [LiveSegment(segment, None) for segment in build_segments(texts, KEYS, 32, 0, "int8")]
    ranker = NativeRanker(segments, instruction_set="portable", range_rows=16_384)
    hundredth = [prepared(make_vectors(rng, [3] * 400, 32, 0))]
    whole = [prepared(make_vectors(rng, [3] * (40_000 // queries), 32, 0))] * queries
    short = seconds_of(ranker, hundredth, prune, limit=None)
    assert seconds_of(ranker, whole, prune, limit=0.1) < 0.1 + 25 * short


@pytest.mark.parametrize("prune", [True, False])
def test_a_deadline_stops_the_sentence_vectors_of_a_range(prune: bool) -> None:
    rng = np.random.default_rng(0)
    row = make_vectors(rng, [], 0, 1024)
    segments = [LiveSegment(s, None) for s in build_segments([row] * 3000, KEYS, 0, 1024, "fp32")]
    ranker = NativeRanker(segments, instruction_set="portable", range_rows=65_536)
    whole = [prepared(make_vectors(rng, [], 0, 1024))] * 2000
    short = seconds_of(ranker, whole[:20], prune, limit=None)
    assert seconds_of(ranker, whole, prune, limit=0.1) < 0.1 + 25 * short


# --- many callers -----------------------------------------------------------------------------------------


def test_one_segment_is_searched_from_many_python_threads_at_once() -> None:
    """The first searches check the lists' rows, all at the same time."""
    rng = np.random.default_rng(11)
    queries = [make_query(rng, N_T, 16, 6) for _ in range(8)]
    for attempt in range(3):
        segments = make_segments(
            np.random.default_rng(attempt), [1500, 900], N_T, 16, longest=16, deleted=0.1
        )
        wanted = [expected([query], segments, Selection(10)) for query in queries]
        ranker = NativeRanker(segments, threads=2, range_rows=512)
        _search_at_once(ranker, queries, wanted)


def _search_at_once(ranker: NativeRanker, queries: list[PreparedQuery], wanted: list[Any]) -> None:
    start = threading.Barrier(len(queries))

    def search(first: int) -> None:
        start.wait()
        for prune in (True, False):
            for number in [*range(first, len(queries)), *range(first)]:
                found = ranker.rank([queries[number]], Selection(10), prune)
                assert ids_and_scores(found) == wanted[number]

    with ThreadPoolExecutor(len(queries)) as pool:
        list(pool.map(search, range(len(queries))))


def test_an_index_is_searched_from_many_python_threads_at_once(tmp_path: Path) -> None:
    texts = random_texts(90, longest=12)
    index = create(tmp_path / "index.coil", encoder=HashEncoder())
    for begin in range(0, 90, 30):
        index.add({"id": n, "text": texts[n]} for n in range(begin, begin + 30))
    wanted = answers(index)
    for _ in range(5):
        opened = open_index(tmp_path / "index.coil", encoder=HashEncoder(), threads=2)
        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(answers, [opened] * 6)) == [wanted] * 6


def test_checking_rows_lets_other_python_threads_run() -> None:
    """A list of many mentions, the last of which is wrong: all that is done with it is to check it."""
    assert native is not None
    mentions = 100_000_000
    rows = np.zeros(mentions, np.uint16)
    rows[-1] = 4
    [made] = make_segments(np.random.default_rng(0), [4], 1, 0)
    arrays = named_arrays(made.segment) | {
        "list_ids": np.zeros(1, np.int32),
        "list_offsets": np.array([0, mentions]),
        "mention_rows": rows,
        "vectors": np.zeros(mentions, np.int8),
        "vector_scales": np.zeros(mentions, np.uint8),
        "list_norms": np.ones(1, np.float32),
        "block_offsets": np.zeros(2, np.int64),
        "block_norms": np.zeros(0, np.float32),
    }
    segment = native.Segment(arrays, 1)
    query = prepared(make_vectors(np.random.default_rng(0), [0], 1, 0)).native
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.0005):
            ticks.append(time.perf_counter())

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.perf_counter()
    with pytest.raises(ValueError, match="mention_rows"):
        native.score_segment(native.instruction_sets()[0], segment, query)
    ended = time.perf_counter()
    done.set()
    ticking.join()
    assert sum(began < at < ended for at in ticks) > 2
