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
from coil.hits.collection import build_segments
from coil.hits.rankers import NativeRanker, Rankings, Selection, rank_with_scorer
from coil.lists.groups import group_vectors
from coil.lists.precision import SCALES, store
from coil.lists.segment import LiveSegment, SegmentBuilder
from coil.scores.native import NativeScorer, load_native
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_with_numpy
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import make_vectors

native = load_native()
pytestmark = pytest.mark.skipif(native is None, reason="the native extension was not built: no C++ compiler?")
SETS: list[str] = native.instruction_sets() if native is not None else []
VOCABULARY = 12
KEYS = ListKeys(np.arange(VOCABULARY, dtype=np.int32))
FLOORED, UNFLOORED = ScoringProfile(), replace(ScoringProfile(), floor=False)


def make_segments(
    rng: np.random.Generator,
    rows: list[int],
    n_t: int,
    n_c: int,
    precision: Any = "int8",
    longest: int = 12,
    whole_numbers: bool = False,
    deleted: float = 0.0,
    chunks: bool = False,
    clustered: bool = False,
) -> list[LiveSegment]:
    """Segments of random texts whose tokens are as unequal as words are."""
    weights = 1 / np.arange(1, VOCABULARY + 1)
    segments, document = [], 0
    for count in rows:
        builder = SegmentBuilder(KEYS, n_t, n_c, precision)
        for row in range(count):
            if row and not (chunks and rng.random() < 0.3):
                document += 1
            size = int(rng.integers(0, longest + 1))
            tokens = rng.choice(VOCABULARY, size=size, p=weights / weights.sum()).tolist()
            text = make_vectors(rng, tokens, n_t, n_c, whole_numbers)
            if clustered:  # some rows are far better than the rest, so that there is something to prune
                factor = np.float32(3.0 if row % 97 == 0 else 0.1)
                sentence = None if text.sentence is None else text.sentence * factor
                text = replace(text, vectors=text.vectors * factor, sentence=sentence)
            builder.add(document, (0, size), text)
        document += 1
        segment = builder.finish()
        doomed = rng.random(document) < deleted
        alive = ~doomed[segment.row_documents] if deleted else None
        segments.append(LiveSegment(segment, alive))
    return segments


def make_query(
    rng: np.random.Generator,
    n_t: int,
    n_c: int,
    tokens: int,
    whole: bool = False,
    profile: ScoringProfile = FLOORED,
) -> PreparedQuery:
    return prepared(make_vectors(rng, rng.integers(0, VOCABULARY, tokens).tolist(), n_t, n_c, whole), profile)


def prepared(query: TokenVectors, profile: ScoringProfile = FLOORED) -> PreparedQuery:
    return PreparedQuery.of(query, profile, KEYS)


def ids_and_scores(rankings: Rankings) -> list[list[tuple[int, int, int, int]]]:
    return [[(r.ordinal, r.grid_score, r.segment, r.row) for r in found] for found, _ in rankings]


def expected(
    queries: list[PreparedQuery], segments: list[LiveSegment], selection: Selection
) -> list[list[tuple[int, int, int, int]]]:
    return ids_and_scores(rank_with_scorer(score_with_numpy, queries, segments, selection))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize("n_t", [1, 2, 8, 24, 32, 48, 127, 128])
def test_every_width_and_instruction_set_gives_numpys_bits(
    instruction_set: str, precision: str, n_t: int
) -> None:
    rng = np.random.default_rng(n_t)
    scorer = NativeScorer(instruction_set)
    for n_c, floor in product([0, 1, 7, 64, 128, 200], [True, False]):
        profile = FLOORED if floor else UNFLOORED
        [live] = make_segments(rng, [45], n_t, n_c, precision)
        for tokens in (0, 1, 5):
            query = make_query(rng, n_t, n_c, tokens, profile=profile)
            found = scorer(query, live.segment)
            np.testing.assert_array_equal(found, score_with_numpy(query, live.segment))


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    k=st.integers(0, 30),
    widths=st.sampled_from([(4, 0), (4, 3), (1, 5), (8, 64), (0, 6)]),
    precision=st.sampled_from(["int8", "fp16", "fp32"]),
    whole=st.booleans(),
    floor=st.booleans(),
    prune=st.booleans(),
    threads=st.sampled_from([1, 3]),
    range_rows=st.sampled_from([1, 7, 16, 64]),
    deleted=st.sampled_from([0.0, 0.3]),
    instruction_set=st.sampled_from(SETS or ["none"]),
)
@settings(max_examples=400, deadline=None)
def test_any_search_equals_numpys(
    seed: int, rows: list[int], k: int, widths: tuple[int, int], precision: str, whole: bool, floor: bool,
    prune: bool, threads: int, range_rows: int, deleted: float, instruction_set: str,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    n_t, n_c = widths
    segments = make_segments(
        rng,
        rows,
        n_t,
        n_c,
        precision,
        whole_numbers=whole,
        deleted=deleted,
        chunks=True,
        clustered=seed % 2 == 0,
    )
    profile = FLOORED if floor else UNFLOORED
    ranker = NativeRanker(segments, threads, instruction_set, range_rows)
    queries = [make_query(rng, n_t, n_c, int(rng.integers(1, 6)), whole, profile) for _ in range(3)]
    allowed = np.flatnonzero(rng.random(300) < 0.5) if seed % 3 == 0 else None
    selection = Selection(k, allowed)
    assert ids_and_scores(ranker.rank(queries, selection, prune)) == expected(queries, segments, selection)


@pytest.mark.parametrize("k", [1, 10, 1000])
@pytest.mark.parametrize(("n_t", "n_c"), [(32, 0), (32, 128), (8, 128)])
def test_pruning_skips_and_changes_nothing(n_t: int, n_c: int, k: int) -> None:
    """Long lists, many blocks, several ranges; some documents far better than the rest."""
    rng = np.random.default_rng(k)
    segments = make_segments(rng, [9000, 5000], n_t, n_c, longest=20, clustered=True, deleted=0.1)
    queries = [make_query(rng, n_t, n_c, size) for size in (1, 3, 6)]
    selection = Selection(k)
    wanted = expected(queries, segments, selection)
    for threads, range_rows in ((1, 16_384), (1, 512), (2, 2048)):
        ranker = NativeRanker(segments, threads, range_rows=range_rows)
        pruned = ranker.rank(queries, selection)
        assert ids_and_scores(pruned) == wanted
        assert ids_and_scores(ranker.rank(queries, selection, prune=False)) == wanted
    skipped = sum(c.mentions_skipped + c.sentences_skipped for _, c in pruned)
    assert k == 1000 or skipped > 0
    for (_, some), (_, everything) in zip(pruned, ranker.rank(queries, selection, prune=False), strict=True):
        assert some.mentions_scored + some.mentions_skipped == everything.mentions_scored
        assert some.sentences_scored + some.sentences_skipped == everything.sentences_scored


def test_adversaries_of_pruning() -> None:
    """Ties everywhere, one list that holds everything, a best document at the very end, equal bounds."""
    rng = np.random.default_rng(5)
    vector = np.full((1, 8), 0.5, np.float32)

    def text(tokens: list[int], factor: float) -> TokenVectors:
        made = make_vectors(rng, tokens, 8, 4)
        return replace(
            made, vectors=np.repeat(vector * factor, len(tokens), 0), sentence=np.ones(4, np.float32)
        )

    texts = [text([0] * 70, 1.0) for _ in range(300)]  # a row may fill more than a block
    texts += [text([0, 1], 1.0) for _ in range(300)] + [text([1, 0, 0], 1.001)] + [text([], 1.0)] * 3
    segments = [LiveSegment(s, None) for s in build_segments(texts, KEYS, 8, 4, "int8")]
    query = prepared(text([0, 1, 0], 1.0))
    for k, range_rows, prune in product([1, 2, 301, 302, 603, 700], [13, 64, 16_384], [True, False]):
        for asked in (query, query.without_sentence()):
            ranker = NativeRanker(segments, 2, range_rows=range_rows)
            found = ranker.rank([asked], Selection(k), prune)
            assert ids_and_scores(found) == expected([asked], segments, Selection(k))


@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("precision", ["int8", "fp16"])
@pytest.mark.parametrize("hidden_in", ["sketch", "tail"])
def test_the_best_rows_are_good_by_their_sentence_vectors_alone(
    instruction_set: str, precision: Any, hidden_in: str
) -> None:
    """What the query is near to lies along a main axis, or where no axis is, and is just good enough."""
    rng = np.random.default_rng(8)
    texts = []
    for row in range(3000):
        text = make_vectors(rng, [row % VOCABULARY], 8, 40)
        sentence = np.zeros(40, np.float32)
        sentence[:16] = rng.standard_normal(16) * 2
        if row % 300 == 299:
            sentence[:] = 0
            sentence[0 if hidden_in == "sketch" else 25] = 6 + row / 30_000
        vectors = np.full((1, 8), 1.0 if row % 150 == 7 else 0.0, np.float32)  # known by its list alone
        texts.append(replace(text, vectors=vectors, sentence=sentence * (row % 150 != 7)))
    segments = [LiveSegment(s, None) for s in build_segments(texts, KEYS, 8, 40, precision)]
    asked = np.zeros(40, np.float32)
    asked[[0, 25]] = (4, 1) if hidden_in == "sketch" else (0.1, 4)
    listed = float(asked.max()) * 6 / 8  # as good as the rows that hide would be if they were a little worse
    encoded = make_vectors(rng, [7, 1], 8, 40)
    query = prepared(replace(encoded, vectors=np.full((2, 8), listed, np.float32), sentence=asked))
    ranker = NativeRanker(segments, 1, instruction_set)
    found = ranker.rank([query], Selection(10))
    assert ids_and_scores(found) == expected([query], segments, Selection(10))
    assert found[0][1].sentences_skipped > 2000
    assert any(r.ordinal % 300 == 299 for r in found[0][0])


def test_a_row_with_sixty_thousand_mentions_and_a_query_of_ten_thousand_tokens() -> None:
    rng = np.random.default_rng(0)
    texts = [make_vectors(rng, [3] * 60_000, 8, 0), make_vectors(rng, [3, 4], 8, 0)]
    segments = [LiveSegment(s, None) for s in build_segments(texts, KEYS, 8, 0, "int8")]
    for tokens in ([3, 4] * 4, [5, 4] * 5000):
        query = prepared(make_vectors(rng, tokens, 8, 0))
        found = NativeRanker(segments).rank([query], Selection(2))
        assert ids_and_scores(found) == expected([query], segments, Selection(2))
        assert found[0][0]


def test_scores_from_a_threshold_on() -> None:
    rng = np.random.default_rng(3)
    segments = make_segments(rng, [500], 8, 16)
    query = make_query(rng, 8, 16, 4)
    everything = expected([query], segments, Selection(500))[0]
    threshold = everything[100][1]
    found = NativeRanker(segments).rank([query], Selection(500, at_least=threshold))
    assert ids_and_scores(found)[0] == [row for row in everything if row[1] >= threshold]


def test_vectors_that_are_no_numbers_are_refused() -> None:
    rng = np.random.default_rng(3)
    for bad in (np.nan, np.inf):
        text = make_vectors(rng, [1, 2], 8, 0)
        text.vectors[1, 3] = bad
        with pytest.raises(InputError, match="NaN or infinity"):
            build_segments([text], KEYS, 8, 0, "int8")
        with pytest.raises(InputError, match="NaN or infinity"):
            prepared(text)
        with pytest.raises(ValueError, match="NaN or infinity"):
            PreparedQuery(text.token_ids, text.vectors, None, np.arange(2), floor=True).native  # noqa: B018


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


@given(seed=st.integers(0, 2**32 - 1), n_c=st.integers(1, 70), form=st.sampled_from(["int8", "fp16", "fp32"]))
@settings(deadline=None)
def test_bounds_hold(seed: int, n_c: int, form: Any) -> None:
    rng = np.random.default_rng(seed)
    [live] = make_segments(rng, [150], 6, n_c, form, longest=9)
    segment, bounds = live.segment, live.segment.bounds
    norms = np.linalg.norm(segment.vectors[:].decode().astype(np.float64), axis=1)
    for place in range(len(segment.list_ids)):
        begin, end = segment.list_offsets[place : place + 2]
        assert norms[begin:end].max() <= bounds.list_norms[place]
        of_blocks = bounds.block_norms[bounds.block_offsets[place] : bounds.block_offsets[place + 1]]
        assert len(of_blocks) == (-(-(end - begin) // 64) if end - begin > 64 else 0)
        for number, bound in enumerate(of_blocks):
            assert norms[begin + 64 * number : min(begin + 64 * number + 64, end)].max() <= bound
    decoded = segment.sentences.decode().astype(np.float64)
    sketches, n_axes = bounds.sketches, min(n_c, 16)
    axes = sketches.sketch_axes.astype(np.float64)
    np.testing.assert_allclose(axes @ axes.T, np.eye(n_axes), atol=1e-6)  # length 1, at right angles
    sketch = sketches.sketches.reshape(-1, -(-n_axes // 4), 16, 4).transpose(0, 2, 1, 3).reshape(160, -1)
    sketch = sketch[:150, :n_axes] * SCALES[sketches.sketch_scales][:, None].astype(np.float64)
    along = decoded @ axes.T
    assert (np.linalg.norm(along - sketch, axis=1) <= 2.001 * SCALES[sketches.sketch_scales]).all()
    step = float(sketches.norm_step[0])
    assert (np.linalg.norm(decoded - along @ axes, axis=1) <= sketches.tail_norms * step + 1e-6).all()
    assert (np.linalg.norm(decoded, axis=1) <= sketches.row_norms * step).all()
    assert (np.linalg.norm(decoded, axis=1) <= np.repeat(bounds.sentence_norms, 64)[:150]).all()


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize(("n_t", "n_c"), [(8, 0), (8, 20), (0, 6)])
def test_pytorch_gives_the_same_bits(precision: str, n_t: int, n_c: int) -> None:
    """On the CPU device; on a GPU the same code runs."""
    pytest.importorskip("torch")
    from coil.hits.torch_ranker import TorchRanker

    rng = np.random.default_rng(n_c)
    for whole, floor, chunks in product([True, False], [True, False], [True, False]):
        made: Any = {"chunks": chunks, "deleted": 0.2, "whole_numbers": whole}
        segments = make_segments(rng, [70, 40], n_t, n_c, precision, **made)
        segments = (
            segments[::-1] if floor else segments
        )  # merged segments need not be in the order of documents
        profile = FLOORED if floor else UNFLOORED
        queries = [make_query(rng, n_t, n_c, size, whole, profile) for size in (1, 3, 6)]
        ranker = TorchRanker(segments, "cpu")
        for selection in (Selection(0), Selection(7), Selection(500), Selection(9, np.arange(0, 300, 3))):
            wanted = expected(queries, segments, selection)
            assert ids_and_scores(ranker.rank(queries, selection)) == wanted
