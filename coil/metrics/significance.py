"""Is the difference between two runs due to chance? Two paired, two-sided tests over the judged queries.

Most papers report the t-test. The randomisation test assumes less: if the two runs were equivalent, the
difference of each query could just as well have the opposite sign; the test counts how often random signs
give a mean as far from 0 as the observed one (Smucker, Allan and Carterette, CIKM 2007, who also find that
the two nearly always agree). Neither p-value is corrected for the number of runs compared; `holm`
corrects several of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.metrics.evaluation import Evaluation

DRAWS = 10_000
SEED = 0

_ALL_SIGNS_UP_TO = 16  # differences; 2^16 sign patterns are quicker to list than to draw
_BLOCK = 1 << 24  # signs held at once


@dataclass(frozen=True)
class Comparison:
    """How far the mean of a run is from that of another, and the probability of that by chance alone."""

    measure: str
    queries: int
    difference: float
    t_test_p: float
    randomisation_p: float


def compare(first: Evaluation, second: Evaluation, measure: str) -> Comparison:
    """The second run's difference from the first, both measured against the same judgements."""
    if set(first.queries) != set(second.queries):
        raise InputError(
            "the two evaluations have different queries", "evaluate both runs with the same judgements"
        )
    differences = np.array([second.values[measure][q] - first.values[measure][q] for q in first.queries])
    return Comparison(
        measure=measure,
        queries=len(differences),
        difference=float(differences.mean()),
        t_test_p=t_test(differences),
        randomisation_p=randomisation_test(differences),
    )


def t_test(differences: NDArray[np.float64]) -> float:
    """The p-value of a mean difference of 0 by Student's t. One query alone says nothing: 1."""
    n = len(differences)
    if n < 2 or not differences.any():
        return 1.0
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    mean = float(differences.mean())
    if error <= abs(mean) * 1e-15:  # all alike, but not 0
        return 0.0
    freedom, t = n - 1, mean / error
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def randomisation_test(differences: NDArray[np.float64], draws: int = DRAWS, seed: int = SEED) -> float:
    """The p-value of a mean difference of 0 under random signs: exact for few differences, else from draws.

    The same numbers give the same p-value, since the seed is fixed. With draws the smallest possible value is
    1 / (draws + 1).
    """
    moved = differences[differences != 0]  # the others stay 0 under either sign
    n = len(moved)
    if n == 0:
        return 1.0
    observed = abs(float(moved.sum())) * (1 - 1e-12)  # so that rounding does not lose the observed signs
    if n <= _ALL_SIGNS_UP_TO:
        patterns = np.arange(2**n, dtype=np.uint32)[:, None] >> np.arange(n, dtype=np.uint32) & 1
        return float((np.abs(_signed_sums(patterns.astype(np.uint8), moved)) >= observed).mean())
    generator = np.random.default_rng(seed)
    reached, left = 0, draws
    while left:
        block = min(left, max(1, _BLOCK // n))
        raw = generator.integers(0, 256, size=(block, (n + 7) // 8), dtype=np.uint8)
        signs = np.unpackbits(raw, axis=1)[:, :n]  # [draws, queries]
        reached += int((np.abs(_signed_sums(signs, moved)) >= observed).sum())
        left -= block
    return (reached + 1) / (draws + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values of several tests, corrected so that the chance of any false alarm among them is bounded.

    Holm's step-down method (1979): the smallest of n is multiplied by n, the next by n − 1, and so on; none
    comes out below one that was smaller before, and none above 1.
    """
    corrected = [0.0] * len(p_values)
    least = 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=lambda n: p_values[n])):
        least = max(least, min(1.0, p_values[place] * (len(p_values) - rank)))
        corrected[place] = least
    return corrected


def _signed_sums(signs: NDArray[np.uint8], values: NDArray[np.float64]) -> NDArray[np.float64]:
    sums: NDArray[np.float64] = values.sum() - 2 * (signs @ values)
    return sums


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1 / ((1 - (a + b) * x / (a + 1)) or tiny)
    fraction = d
    for m in range(1, 1000):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / ((1 + step * d) or tiny)
            c = (1 + step / c) or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * fraction / a
