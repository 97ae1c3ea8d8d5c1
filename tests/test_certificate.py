"""Certified search: with int8 and a precise form kept, the hits are those of the precise form, to the bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coil.hits.certificate import rank_certified
from coil.hits.rankers import NativeRanker, Selection, rank_with_scorer
from coil.indexes.opening import create, open_index
from coil.scores.native import load_native
from coil.scores.precise import largest_difference, score_precisely
from coil.scores.products import GRID
from coil.scores.scorer import score_with_numpy
from coil.tokens.profile import PAPER, WORDS, By, ScoringProfile
from tests.hash_encoder import QUERIES, HashEncoder, answers
from tests.made_up_segments import ids_and_scores, make_query, make_segments
from tests.test_kernels import UNFLOORED
from tests.tiny import random_texts

WAYS: list[tuple[ScoringProfile, By]] = [
    (PAPER, "coil"),
    (UNFLOORED, "coil"),
    *((WORDS, by) for by in get_args(By)),
]


@given(
    seed=st.integers(0, 2**32 - 1),
    k=st.integers(0, 20),
    form=st.sampled_from(["fp16", "fp32"]),
    widths=st.sampled_from([(4, 0), (4, 3), (0, 6), (33, 20)]),
    way=st.sampled_from(WAYS),
    whole=st.booleans(),
)
@example(seed=0, k=19, form="fp16", widths=(4, 0), way=(UNFLOORED, "coil"), whole=True)
@settings(max_examples=200, deadline=None)
def test_the_hits_are_those_of_the_precise_form(
    seed: int, k: int, form: Any, widths: tuple[int, int], way: tuple[ScoringProfile, By], whole: bool
) -> None:
    n_t, n_c = widths
    made: Any = {
        "rows": [40, 30],
        "n_t": n_t,
        "n_c": n_c,
        "whole_numbers": whole,
        "deleted": 0.2,
        "chunks": True,
    }
    both = make_segments(np.random.default_rng(seed), precision=f"int8+{form}", **made)
    alone = make_segments(np.random.default_rng(seed), precision=form, **made)
    rng = np.random.default_rng(seed)
    profile, by = way
    selection = Selection(k)
    queries = [
        make_query(rng, both, 4, whole, profile, by),
        make_query(rng, both, 2, profile=profile, by=by),
    ]
    if load_native() is not None:
        ranker = NativeRanker(both, range_rows=16)
        found = rank_certified(ranker.rank, queries, both, selection)
    else:
        found = rank_certified(
            lambda q, wanted: rank_with_scorer(score_with_numpy, q, both, wanted), queries, both, selection
        )
    wanted = rank_with_scorer(score_with_numpy, queries, alone, selection)
    assert ids_and_scores(found) == ids_and_scores(wanted)


@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from(["fp16", "fp32"]),
    scale=st.sampled_from([0.01, 1, 50]),
)
@settings(deadline=None)
def test_no_score_is_farther_from_the_precise_one_than_promised(seed: int, form: str, scale: float) -> None:
    rng = np.random.default_rng(seed)
    [live] = made = make_segments(rng, [60], 8, 70, f"int8+{form}")
    query = make_query(rng, made, 5)
    query = replace(query, vectors=query.vectors * np.float32(scale))
    searched = score_with_numpy(query, live.segment) / GRID
    precise = score_precisely(query, live.segment) / GRID
    promised = largest_difference(query, live.segment)
    assert np.abs(searched - precise).max() <= promised
    assert promised < 0.2 * np.abs(precise).max() + 0.5  # and the promise is worth something


@pytest.mark.parametrize("form", ["fp16", "fp32"])
def test_an_index_keeps_both_forms_through_every_change(tmp_path: Path, form: Any) -> None:
    texts = random_texts(60, longest=12)
    indexes = []
    for name, precision in (("both", f"int8+{form}"), ("alone", form)):
        index = create(tmp_path / f"{name}.coil", precision=precision, encoder=HashEncoder())
        for begin in range(0, 60, 10):
            index.add({"id": n, "text": texts[n]} for n in range(begin, begin + 10))
        index.delete(["3", "30"])
        index.update([{"id": "7", "text": "river bank"}])
        index.compact()
        indexes.append(index)
    both, alone = indexes
    assert answers(both) == answers(alone)
    stats = both.answer_many(QUERIES, k=5)[0].stats
    assert stats.exact_in == form
    assert stats.rescored > 0
    assert answers(open_index(tmp_path / "both.coil", encoder=HashEncoder())) == answers(alone)
    both.verify()
    for hit in both.search(QUERIES[0], k=5):
        explanation = both.explain(QUERIES[0], hit.doc_id)
        assert explanation.score == pytest.approx(hit.score, abs=1e-4)
