"""MaxSim, written once in plain loops: training's batches and ColBERT's search are held against it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from coil.training.batch_scores import TextVectors
from coil.training.max_sim import MaxSim
from tests.late_interaction import max_sim

lengths = st.lists(st.integers(0, 6), min_size=1, max_size=5)


def draw(rng: np.random.Generator, counts: list[int], whole: bool) -> list[NDArray[np.float32]]:
    if whole:  # ties
        return [rng.integers(-2, 3, (n, 3)).astype(np.float32) for n in counts]
    return [rng.standard_normal((n, 3)).astype(np.float32) for n in counts]


def as_text_vectors(texts: list[NDArray[np.float32]]) -> TextVectors:
    rows = torch.tensor([row for row, text in enumerate(texts) for _ in text], dtype=torch.int64)
    vectors = torch.from_numpy(np.concatenate([np.zeros((0, 3), np.float32), *texts]))
    return TextVectors(vectors, torch.zeros_like(rows), rows, None, len(texts))


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**20),
    queries=lengths,
    passages=lengths,
    whole=st.booleans(),
    at_once=st.integers(1, 99),
)
def test_batch_scores_equal_the_loops(
    seed: int, queries: list[int], passages: list[int], whole: bool, at_once: int
) -> None:
    rng = np.random.default_rng(seed)
    q, d = draw(rng, queries, whole), draw(rng, passages, whole)
    sources = torch.zeros(len(q), dtype=torch.int64)
    scores = MaxSim(at_once)(as_text_vectors(q), as_text_vectors(d), sources).whole
    expected = np.array([[max_sim(a, b) for b in d] for a in q])
    np.testing.assert_allclose(scores.numpy(), expected, atol=1e-5)


def test_a_score_with_means_in_place_of_maxima_is_caught() -> None:
    """The comparison above can fail."""
    rng = np.random.default_rng(1)
    query, passage = draw(rng, [4], False)[0], draw(rng, [5], False)[0]
    assert abs(float((query @ passage.T).mean(1).sum()) - max_sim(query, passage)) > 0.1


def test_gradients_are_those_of_the_score() -> None:
    rng = np.random.default_rng(2)
    q, d = (as_text_vectors(draw(rng, counts, False)) for counts in ([2, 3], [4, 1, 2]))
    weights = torch.from_numpy(rng.standard_normal((2, 3)))

    def loss(queries: torch.Tensor, passages: torch.Tensor) -> torch.Tensor:
        of_queries = TextVectors(queries, q.lists, q.rows, None, 2)
        of_passages = TextVectors(passages, d.lists, d.rows, None, 3)
        scores = MaxSim(10)(of_queries, of_passages, torch.zeros(2, dtype=torch.int64)).whole
        return (scores * weights).sum()

    vectors = [v.vectors.double().requires_grad_() for v in (q, d)]
    assert torch.autograd.gradcheck(loss, vectors)
    loss(*vectors).backward()
    assert all(v.grad is not None and v.grad.abs().max() > 0.1 for v in vectors)


def test_a_passage_without_tokens_scores_nothing() -> None:
    assert max_sim(np.ones((2, 3), np.float32), np.zeros((0, 3), np.float32)) == pytest.approx(0.0)
