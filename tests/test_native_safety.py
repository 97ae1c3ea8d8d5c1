"""The native core under bad conditions: hostile arrays, no memory, no threads, no time, many callers."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import DamagedSegment, SearchTimeout, TooLittleMemory
from coil.hits.rankers import NativeRanker, Selection
from coil.lists.building import SegmentBuilder
from coil.lists.dictionary import BLOCK_KEYS
from coil.lists.segment import LiveSegment
from coil.scores.native import NativeScorer, load_native, named_arrays
from coil.scores.prepared import PreparedQuery
from coil.tokens.profile import WORDS
from tests.made_up_segments import (
    KEYS,
    build,
    expected,
    ids_and_scores,
    make_query,
    make_segments,
    make_text,
    prepare,
)
from tests.test_hostile_arrays import HUGE, N_T, SMALL, make_native

native = load_native()
pytestmark = pytest.mark.skipif(native is None, reason="the native extension was not built: no C++ compiler?")


@pytest.fixture(scope="module")
def live() -> LiveSegment:
    [made] = make_segments(np.random.default_rng(3), [300], N_T, 20, longest=20, chunks=True)
    return made


@given(
    name=st.sampled_from(
        [
            "keys", "key_blocks", "list_offsets", "posting_offsets", "posting_rows", "posting_starts",
            "long_lists", "long_offsets", "block_mentions", "row_documents", "row_lengths", "list_factors",
        ]
    ),
    place=st.integers(0, 10**6),
    value=st.one_of(st.integers(-3, 400), st.sampled_from([2**15, 2**31 - 1, 2**62, HUGE, SMALL])),
    prune=st.booleans(),
)  # fmt: skip
@settings(max_examples=400, deadline=None)
def test_whatever_a_number_is_changed_to_a_search_stays_within_the_arrays(
    name: str, place: int, value: int, prune: bool, live: LiveSegment
) -> None:
    """It finds something or refuses the segment; the sanitizers watch."""
    assert native is not None
    rng = np.random.default_rng(place)
    arrays = named_arrays(live.segment)
    arrays[name] = np.array(arrays[name])
    arrays[name][place % len(arrays[name])] = np.array([value]).astype(arrays[name].dtype)[0]
    queries = [make_query(rng, [live], 8, by=by).native for by in ("coil", "bm25")]
    try:
        segment = make_native(arrays)
        native.find_keys([segment], [key.encode() for key in KEYS])
        for query in queries:
            native.search(
                instruction_set=native.instruction_sets()[0], segments=[segment], masks=[None],
                queries=[query], k=5, prune=prune, without_zero=False, at_least=SMALL, threads=1,
                seconds=0.0, range_rows=64,
            )  # fmt: skip
    except ValueError:
        pass


@given(data=st.binary(max_size=200), cut=st.integers(0, 200), key=st.binary(max_size=120))
@settings(max_examples=300, deadline=None)
def test_whatever_bytes_a_dictionary_is_made_of_a_lookup_stays_within_them(
    data: bytes, cut: int, key: bytes, live: LiveSegment
) -> None:
    """Two blocks of random bytes for the keys of the segment's lists."""
    assert native is not None
    lists = live.segment.n_lists
    blocks = [0, min(cut, len(data)), len(data)] if lists > BLOCK_KEYS else [0, len(data)]
    arrays = named_arrays(live.segment) | {
        "keys": np.frombuffer(data, np.uint8).copy(),
        "key_blocks": np.array(blocks, np.uint32),
    }
    segment = make_native(arrays)
    with suppress(ValueError):  # refused
        places = native.find_keys([segment], [key, data[2:50]])
        assert ((places >= -1) & (places < lists)).all()


def test_damage_is_an_error_of_the_library(live: LiveSegment) -> None:
    rng = np.random.default_rng(0)
    segment = live.segment
    query = make_query(rng, [live], 12)
    bits = segment.posting_starts
    damages: list[tuple[dict[str, Any], str]] = [
        ({"posting_rows": np.full_like(segment.posting_rows, 60_000)}, "posting_rows"),
        ({"posting_rows": np.sort(segment.posting_rows)}, "posting_rows"),
        ({"posting_starts": np.zeros_like(bits)}, "posting_starts"),
        ({"posting_starts": ~np.zeros_like(bits)}, "posting_starts"),
        ({"posting_starts": bits & ~np.uint64(1)}, "posting_starts"),
        ({"bounds": replace(segment.bounds, block_mentions=segment.bounds.block_mentions + 1)}, "starts"),
        ({"bounds": replace(segment.bounds, list_norms=segment.bounds.list_norms[:-1])}, "list_norms"),
    ]
    for changes, message in damages:
        for prune in (True, False):
            with pytest.raises(DamagedSegment, match=message):
                NativeRanker([LiveSegment(replace(segment, **changes), None)]).rank(
                    [query], Selection(3), prune
                )
        with pytest.raises(DamagedSegment, match=message):
            NativeScorer()(query, replace(segment, **changes))
    narrow = make_segments(rng, [30], 4, 20)
    with pytest.raises(DamagedSegment, match="token vectors differ in width"):
        NativeScorer()(make_query(rng, narrow, 12), segment)
    with pytest.raises(DamagedSegment, match="sentence vectors differ in width"):
        NativeScorer()(make_query(rng, make_segments(rng, [30], N_T, 70), 12), segment)


def test_arrays_outlive_what_the_kernels_read(live: LiveSegment) -> None:
    query = make_query(np.random.default_rng(1), [live], 6)
    wanted = NativeScorer()(query, live.segment)
    copied = replace(live.segment, posting_rows=live.segment.posting_rows.copy())
    ranker = NativeRanker([LiveSegment(copied, None)])
    del copied
    gc.collect()
    junk = [np.full(10_000, 7, np.uint8) for _ in range(100)]  # what was freed would be used again
    [(found, _)] = ranker.rank([query], Selection(3), prune=False)
    assert found.grid_scores.tolist() == sorted(wanted.tolist(), reverse=True)[:3]
    assert len(junk) == 100
    arrays = {name: np.array(array) for name, array in named_arrays(live.segment).items()}
    held = sys.getrefcount(arrays["posting_rows"])
    segment = make_native(arrays)
    now = sys.getrefcount(arrays["posting_rows"])
    assert now == held  # C++ refers to nothing: see segment.hpp
    del segment


# --- threads that fail ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large() -> list[LiveSegment]:
    """Rows for three threads: the same two texts again and again, so that it is quick to build."""
    rng = np.random.default_rng(5)
    texts = [make_text(rng, ["a", "b", "b"], 4, 70), make_text(rng, ["a", "m"], 4, 70)]
    segments = []
    for first in (0, 50_000):
        builder = SegmentBuilder(WORDS, 4, 70, "int8")
        for ordinal in range(first, first + 50_000):
            builder.add(ordinal, (0, 1), texts[ordinal % 77 % 2])
        segments.append(LiveSegment(builder.finish(), None))
    return segments


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
    queries = [make_query(np.random.default_rng(seed), large, 5) for seed in range(2)]
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
        NativeRanker(segments).rank([make_query(rng, segments, 4)], Selection(5, deadline=0.0))


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
    segments = build([make_text(rng, ["b"] * 60_000, 32, 0), make_text(rng, ["b", "m"], 32, 0)], 32, 0)
    ranker = NativeRanker(segments, instruction_set="portable", range_rows=16_384)
    hundredth = [prepare(make_text(rng, ["b"] * 400, 32, 0), segments)]
    whole = [prepare(make_text(rng, ["b"] * (40_000 // queries), 32, 0), segments)] * queries
    short = seconds_of(ranker, hundredth, prune, limit=None)
    assert seconds_of(ranker, whole, prune, limit=0.1) < 0.1 + 25 * short


@pytest.mark.parametrize("prune", [True, False])
def test_a_deadline_stops_the_sentence_vectors_of_a_range(prune: bool) -> None:
    rng = np.random.default_rng(0)
    segments = build([make_text(rng, [], 0, 1024)] * 3000, 0, 1024, "fp32")
    ranker = NativeRanker(segments, instruction_set="portable", range_rows=65_536)
    whole = [prepare(make_text(rng, [], 0, 1024), segments)] * 2000
    short = seconds_of(ranker, whole[:20], prune, limit=None)
    assert seconds_of(ranker, whole, prune, limit=0.1) < 0.1 + 25 * short


# --- many callers -----------------------------------------------------------------------------------------


def test_one_segment_is_searched_from_many_python_threads_at_once() -> None:
    """The first searches check the lists' rows, all at the same time."""
    rng = np.random.default_rng(11)
    for attempt in range(3):
        segments = make_segments(
            np.random.default_rng(attempt), [1500, 900], N_T, 16, longest=16, deleted=0.1
        )
        queries = [make_query(rng, segments, 6) for _ in range(8)]
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
    from coil.indexes.opening import create, open_index
    from tests.hash_encoder import HashEncoder, answers
    from tests.tiny import random_texts

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
    mentions = 1 << 30
    starts = np.zeros(mentions // 64, np.uint64)
    starts[0] = 1
    starts[-1] = 1
    [made] = build([make_text(np.random.default_rng(0), ["a"], 0, 0)], 0, 0)
    arrays = named_arrays(made.segment) | {
        "list_offsets": np.array([0, mentions], np.uint32),
        "posting_starts": starts,
        "vector_scales": np.zeros(mentions, np.uint8),
    }
    segment = make_native(arrays, 0)
    query = prepare(make_text(np.random.default_rng(0), ["a"], 0, 0), [made]).native
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.wait(0.0005):
            ticks.append(time.perf_counter())

    ticking = threading.Thread(target=tick)
    ticking.start()
    began = time.perf_counter()
    with pytest.raises(ValueError, match="posting_starts"):
        native.score_segment(native.instruction_sets()[0], segment, query)
    ended = time.perf_counter()
    done.set()
    ticking.join()
    assert sum(began < at < ended for at in ticks) > 2
