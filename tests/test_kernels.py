"""The native search: with every instruction set, precision, pruning, threads and batch, NumPy's very bits."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import InputError
from coil.hits.rankers import NO_THRESHOLD, NativeRanker, Selection
from coil.lists.building import SegmentBuilder
from coil.lists.dictionary import Dictionary
from coil.lists.groups import group_vectors
from coil.lists.precision import store
from coil.lists.segment import LiveSegment
from coil.scores.native import NativeScorer, load_native
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_with_numpy
from coil.tokens.list_keys import LONGEST_KEY
from coil.tokens.profile import PAPER, WORDS, ScoringProfile
from coil.vectors.token_vectors import TokenVectors
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

native = load_native()
pytestmark = pytest.mark.skipif(native is None, reason="the native extension was not built: no C++ compiler?")
SETS: list[str] = native.instruction_sets() if native is not None else []
BYS: list[Any] = ["coil", "tokens", "bm25", "dense", "hybrid"]
UNFLOORED = replace(PAPER, floor=False)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize("n_t", [1, 2, 8, 24, 32, 48, 127, 128])
def test_every_width_and_instruction_set_gives_numpys_bits(
    instruction_set: str, precision: str, n_t: int
) -> None:
    rng = np.random.default_rng(n_t)
    scorer = NativeScorer(instruction_set)
    for n_c, profile in zip([0, 1, 7, 64, 65, 128, 256, 300], [WORDS, PAPER, UNFLOORED] * 3, strict=False):
        segments = make_segments(rng, [45], n_t, n_c, precision, profile=profile)
        for tokens, by in product((0, 1, 5), BYS):
            query = make_query(rng, segments, tokens, profile=profile, by=by)
            found = scorer(query, segments[0].segment)
            np.testing.assert_array_equal(found, score_with_numpy(query, segments[0].segment))


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    k=st.one_of(st.integers(0, 30), st.just(300)),
    widths=st.sampled_from([(4, 0), (4, 3), (1, 70), (8, 64), (0, 6)]),
    precision=st.sampled_from(["int8", "fp16", "fp32"]),
    whole=st.booleans(),
    profile=st.sampled_from([WORDS, WORDS, PAPER, UNFLOORED]),
    by=st.sampled_from(BYS),
    prune=st.booleans(),
    threads=st.sampled_from([1, 3]),
    range_rows=st.sampled_from([1, 7, 16, 64, 65_536]),
    deleted=st.sampled_from([0.0, 0.3]),
    batch=st.sampled_from([1, 3]),
    instruction_set=st.sampled_from(SETS or ["none"]),
)
@settings(max_examples=600, deadline=None)
def test_any_search_equals_numpys(
    seed: int, rows: list[int], k: int, widths: tuple[int, int], precision: str, whole: bool,
    profile: ScoringProfile, by: Any, prune: bool, threads: int, range_rows: int, deleted: float, batch: int,
    instruction_set: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    n_t, n_c = widths
    segments = make_segments(
        rng, rows, n_t, n_c, precision, whole_numbers=whole, deleted=deleted, chunks=True,
        clustered=seed % 2 == 0, profile=profile,
    )  # fmt: skip
    ranker = NativeRanker(segments, threads, instruction_set, range_rows)
    queries = [make_query(rng, segments, int(rng.integers(1, 9)), whole, profile, by) for _ in range(batch)]
    allowed = np.flatnonzero(rng.random(300) < 0.5) if seed % 3 == 0 else None
    selection = Selection(k, allowed)
    assert ids_and_scores(ranker.rank(queries, selection, prune)) == expected(queries, segments, selection)


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("by", BYS)
@pytest.mark.parametrize("profile", [WORDS, PAPER], ids=["words", "paper"])
def test_long_lists_equal_numpys(profile: ScoringProfile, by: Any, instruction_set: str) -> None:
    """Many blocks and several ranges; some documents far better than the rest; deletions; every k."""
    rng = np.random.default_rng(7)
    segments = make_segments(
        rng, [1500, 1000], 8, 80, longest=20, clustered=True, deleted=0.1, chunks=True, profile=profile
    )
    queries = [make_query(rng, segments, size, profile=profile, by=by) for size in (1, 3, 6, 12)]
    for k in (1, 10, 300, 10_000):
        wanted = expected(queries, segments, Selection(k))
        for threads, range_rows in ((1, 65_536), (2, 512)):
            ranker = NativeRanker(segments, threads, instruction_set, range_rows)
            pruned, whole = (ranker.rank(queries, Selection(k), prune) for prune in (True, False))
            assert ids_and_scores(pruned) == wanted
            assert ids_and_scores(whole) == wanted
            for (_, some), (_, everything) in zip(pruned, whole, strict=True):
                assert some.mentions_scored + some.mentions_skipped == everything.mentions_scored
                assert some.sentences_scored + some.sentences_skipped == everything.sentences_scored


@pytest.fixture(scope="module")
def many() -> list[LiveSegment]:
    """Words as unequal as real ones, with vectors that say less than the words: much can be left out."""
    rng = np.random.default_rng(2)
    weights = 1 / np.arange(1, 401)
    segments, ordinal = [], 0
    for rows in (14_000, 3_000):
        builder = SegmentBuilder(WORDS, 4, 70, "int8")
        for _ in range(rows):
            words = rng.choice(400, size=int(rng.integers(4, 16)), p=weights / weights.sum())
            text = make_text(rng, [f"w{word}" for word in words], 4, 70)
            sentence = text.sentence * np.where(np.arange(70) < 64, 1, 0.2).astype(np.float32)
            sentence /= np.linalg.norm(sentence)
            builder.add(ordinal, (0, 1), replace(text, sentence=sentence))
            ordinal += 1
        segment = builder.finish()
        segments.append(LiveSegment(segment, rng.random(rows) > 0.1 if rows < 10_000 else None))
    return segments


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("by", BYS)
def test_pruning_skips_and_changes_nothing(by: Any, instruction_set: str, many: list[LiveSegment]) -> None:
    """Lists that are long enough to be counted, looked up and scored only where it matters."""
    rng = np.random.default_rng(3)
    skipped = 0
    for words in ([0, 390], [0, 1, 2], [350, 300, 5, 0, 1], [399], list(range(0, 400, 37)), [0, 0, 380, 380]):
        text = make_text(rng, [f"w{word}" for word in words], 4, 70)
        near = many[0].segment.sentences.decode()[int(rng.integers(14_000))]
        query = prepare(replace(text, sentence=near), many, by=by)
        for k, threads in ((1, 1), (10, 2), (200, 1)):
            wanted = expected([query], many, Selection(k))
            found = NativeRanker(many, threads, instruction_set, range_rows=32_768).rank(
                [query], Selection(k)
            )
            assert ids_and_scores(found) == wanted
            skipped += found[0][1].mentions_skipped + found[0][1].sentences_skipped
    assert skipped > 0


def test_a_wrong_scorer_is_noticed() -> None:
    """The comparison must be able to fail: scores that are wrong by the least there is, in one row."""
    rng = np.random.default_rng(1)
    segments = make_segments(rng, [200], 8, 16)
    query = make_query(rng, segments, 5)

    def wrong(query: PreparedQuery, segment: Any) -> Any:
        scores = score_with_numpy(query, segment)
        scores[np.argmax(scores)] += 1
        return scores

    found = ids_and_scores(NativeRanker(segments, range_rows=65_536).rank([query], Selection(5)))
    assert found == expected([query], segments, Selection(5))
    assert found != expected([query], segments, Selection(5), wrong)


def test_adversaries_of_pruning() -> None:
    """Ties everywhere, one list that holds everything, a best document at the very end, equal bounds."""
    rng = np.random.default_rng(5)
    vector = np.full((1, 8), 0.5, np.float32)

    def text(keys: list[str], factor: float) -> TokenVectors:
        made = make_text(rng, keys, 8, 4)
        return replace(
            made, vectors=np.repeat(vector * factor, len(keys), 0), sentence=np.ones(4, np.float32)
        )

    texts = [text(["a"] * 70, 1.0) for _ in range(300)]
    texts += [text(["a", "b"], 1.0) for _ in range(300)] + [text(["b", "a", "a"], 1.001)]
    segments = build([*texts, *[text([], 1.0)] * 3], 8, 4)
    for by, profile in product(BYS, [WORDS, PAPER]):
        query = prepare(text(["a", "b", "a"], 1.0), segments, profile, by)
        for k, range_rows, prune in product([1, 2, 301, 302, 603, 700], [13, 64, 65_536], [True, False]):
            ranker = NativeRanker(segments, 2, range_rows=range_rows)
            found = ranker.rank([query], Selection(k), prune)
            assert ids_and_scores(found) == expected([query], segments, Selection(k))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("hidden_in", ["head", "tail"])
def test_the_best_rows_are_good_by_their_sentence_vectors_alone(
    instruction_set: str, precision: Any, hidden_in: str
) -> None:
    """What the query is near to lies in the head, or in the tail, and is just good enough."""
    rng = np.random.default_rng(8)
    texts = []
    for row in range(3000):
        text = make_text(rng, [KEYS[row % len(KEYS)]], 8, 100)
        sentence = np.zeros(100, np.float32)
        sentence[:16] = rng.standard_normal(16) * 2
        if row % 300 == 299:
            sentence[:] = 0
            sentence[0 if hidden_in == "head" else 85] = 6 + row / 30_000
        vectors = np.full((1, 8), 1.0 if row % 150 == 7 else 0.0, np.float32)  # known by its list alone
        texts.append(replace(text, vectors=vectors, sentence=sentence * (row % 150 != 7)))
    segments = build(texts, 8, 100, precision)
    asked = np.zeros(100, np.float32)
    asked[[0, 85]] = (4, 1) if hidden_in == "head" else (0.1, 4)
    listed = float(asked.max()) * 6 / 8  # as good as the rows that hide would be if they were a little worse
    encoded = make_text(rng, [KEYS[7], KEYS[1]], 8, 100)
    encoded = replace(encoded, vectors=np.full((2, 8), listed, np.float32), sentence=asked)
    query = prepare(encoded, segments, PAPER)
    found = NativeRanker(segments, 1, instruction_set, 65_536).rank([query], Selection(10))
    assert ids_and_scores(found) == expected([query], segments, Selection(10))
    assert any(r.ordinal % 300 == 299 for r in found[0][0])


def test_a_row_with_sixty_thousand_mentions_and_a_query_of_ten_thousand_tokens() -> None:
    rng = np.random.default_rng(0)
    segments = build([make_text(rng, ["b"] * 60_000, 8, 0), make_text(rng, ["b", "m"], 8, 0)], 8, 0)
    for keys, by in product((["b", "m"] * 4, ["n", "m"] * 5000), ("coil", "bm25")):
        query = prepare(make_text(rng, keys, 8, 0), segments, by=by)
        for prune in (True, False):
            found = NativeRanker(segments, range_rows=65_536).rank([query], Selection(2), prune)
            assert ids_and_scores(found) == expected([query], segments, Selection(2))
            assert found[0][0]


def test_scores_from_a_threshold_on() -> None:
    rng = np.random.default_rng(3)
    segments = make_segments(rng, [500], 8, 16)
    for by in BYS:
        query = make_query(rng, segments, 4, by=by)
        everything = expected([query], segments, Selection(500))[0]
        threshold = everything[100][1]
        found = NativeRanker(segments).rank([query], Selection(500, at_least=threshold))
        assert ids_and_scores(found)[0] == [row for row in everything if row[1] >= threshold]


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("by", BYS)
def test_documents_of_several_rows_beside_rare_words(by: Any, instruction_set: str) -> None:
    """Only a few rows are looked at, but all rows of their documents count. What earlier searches have left
    in the memory that scores are kept in must not."""
    rng = np.random.default_rng(8)
    weights = 1 / np.arange(1, 401)
    builder, document = SegmentBuilder(WORDS, 4, 6, "int8"), 0
    for _ in range(2_000):
        words = rng.choice(400, size=int(rng.integers(1, 9)), p=weights / weights.sum())
        builder.add(document, (0, 1), make_text(rng, [f"w{word}" for word in words], 4, 6))
        document += int(rng.random() < 0.3)
    segments = [LiveSegment(builder.finish(), None)]
    ranker = NativeRanker(segments, 1, instruction_set)
    for _ in range(25):
        words = rng.choice(400, size=int(rng.integers(1, 5)))
        query = prepare(make_text(rng, [f"w{word}" for word in words], 4, 6), segments, by=by)
        everything = expected([query], segments, Selection(5_000))[0]
        ranker.rank([query], Selection(10), prune=False)  # leaves its scores behind
        for k in (1, 3, 50):
            least = everything[min(k, len(everything)) - 1][1] if everything else 1
            for at_least in (NO_THRESHOLD, least - 1, least, least + 1):
                selection = Selection(k, at_least=at_least)
                wanted = [row for row in everything if row[1] >= at_least][:k]
                assert ids_and_scores(ranker.rank([query], selection))[0] == wanted


def test_statistics_of_another_collection() -> None:
    """A segment's factors are those of its own mean length; a query may come with another."""
    rng = np.random.default_rng(4)
    segments = make_segments(rng, [900], 8, 0, longest=20, clustered=True)
    for longest, k1, b in product((3, 200), (0.2, 5.0), (0.0, 0.4, 1.0)):
        others = [*segments, *make_segments(rng, [400], 8, 0, longest=longest)]
        profile = replace(WORDS, k1=k1, b=b)
        for by in ("coil", "bm25"):
            text = make_text(rng, ["a", "b", "z", "o"], 8, 0)
            query = prepare(text, others, profile, by)
            found = NativeRanker(segments, range_rows=128).rank([query], Selection(10))
            assert ids_and_scores(found) == expected([query], segments, Selection(10))


def test_vectors_that_are_no_numbers_are_refused() -> None:
    rng = np.random.default_rng(3)
    segments = build([make_text(rng, ["a"], 8, 0)], 8, 0)
    for bad in (np.nan, np.inf):
        text = make_text(rng, ["a", "b"], 8, 0)
        text.vectors[1, 3] = bad
        with pytest.raises(InputError, match="NaN or infinity"):
            build([text], 8, 0)
        with pytest.raises(InputError, match="NaN or infinity"):
            prepare(text, segments)
        good = make_query(rng, segments, 3)
        with pytest.raises(ValueError, match="NaN or infinity"):
            replace(good, vectors=good.vectors * np.float32(bad)).native  # noqa: B018
        with pytest.raises(ValueError, match="base is not a finite number"):
            replace(good, bases=good.bases * np.float32(bad)).native  # noqa: B018


@given(keys=st.sets(st.text(max_size=20).map(lambda key: key[: LONGEST_KEY // 4]), max_size=60))
@settings(deadline=None)
def test_keys_are_found_where_python_finds_them(keys: set[str]) -> None:
    assert native is not None
    ordered = sorted(keys, key=str.encode)
    if not ordered:
        return
    rng = np.random.default_rng(0)
    [live] = build([make_text(rng, ordered, 2, 0)], 2, 0)
    wanted = [*ordered, *(key + "x" for key in ordered), *(key[:-1] for key in ordered), "\U0010ffff"]
    read = NativeScorer().segment(live.segment)
    found = native.find_keys([read.read] * 2, [key.encode() for key in wanted])
    dictionary = Dictionary.of(ordered)
    assert found.tolist() == [[dictionary.find(key) for key in wanted]] * 2
    assert found.dtype == np.int32


@given(
    count=st.integers(0, 70),
    dim=st.integers(0, 11),
    form=st.sampled_from(["int8", "fp16", "fp32"]),
    data=st.data(),
)
@settings(deadline=None)
def test_grouping_loses_nothing(count: int, dim: int, form: Any, data: st.DataObject) -> None:
    rng = np.random.default_rng(count * 100 + dim)
    stored = store(rng.standard_normal((count, dim)).astype(np.float32), form)
    grouped = group_vectors(stored)
    assert grouped.values.size == count * dim  # no padding on disk
    begin, end = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    np.testing.assert_array_equal(grouped[begin:end].values, stored.values[begin:end])


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize(("n_t", "n_c"), [(8, 0), (8, 80), (0, 6)])
def test_pytorch_gives_the_same_bits(precision: str, n_t: int, n_c: int) -> None:
    """On the CPU device; on a GPU the same code runs."""
    pytest.importorskip("torch")
    from coil.hits.torch_ranker import TorchRanker

    rng = np.random.default_rng(n_c)
    for whole, profile, chunks, by in product([True, False], [WORDS, UNFLOORED], [True, False], BYS):
        segments = make_segments(
            rng,
            [70, 40],
            n_t,
            n_c,
            precision,
            chunks=chunks,
            deleted=0.2,
            whole_numbers=whole,
            profile=profile,
        )
        if whole:  # merged segments need not be in the order of documents
            segments = segments[::-1]
        queries = [make_query(rng, segments, size, whole, profile, by) for size in (1, 3, 6)]
        ranker = TorchRanker(segments, "cpu")
        for selection in (Selection(0), Selection(7), Selection(500), Selection(9, np.arange(0, 300, 3))):
            wanted = expected(queries, segments, selection)
            assert ids_and_scores(ranker.rank(queries, selection)) == wanted
