"""Significance of the difference between two runs: two paired, two-sided tests over the judged queries.

Most papers report the t-test. The randomisation test assumes less: if the two runs were equivalent, the
difference of each query could just as well have the opposite sign; the test counts how often random signs
give a mean as far from 0 as the observed one (Smucker, Allan and Carterette, CIKM 2007, who also find that
the two tests nearly always agree). Neither p-value is corrected for the number of runs compared; `holm`
corrects several p-values.
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

_ALL_SIGNS_UP_TO = 16  # differences; all 2^16 sign patterns are faster than random draws
_BLOCK = 1 << 24  # signs held at once


@dataclass(frozen=True)
class Comparison:
    """The difference between the means of two runs, and its p-values."""

    measure: str
    queries: int
    difference: float
    t_test_p: float
    randomisation_p: float


def compare(first: Evaluation, second: Evaluation, measure: str) -> Comparison:
    """Compare the second run with the first; both must be evaluated against the same judgements."""
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
    """The p-value of the mean difference by Student's t-test; 1 for a single query."""
    n = len(differences)
    if n < 2 or not differences.any():
        return 1.0
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    mean = float(differences.mean())
    if error <= abs(mean) * 1e-15:  # all equal, but not 0
        return 0.0
    return t_p_value(mean / error, n - 1)


def t_p_value(t: float, freedom: int) -> float:
    """The two-sided p-value of a value of Student's t distribution."""
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + t * t))


def randomisation_test(differences: NDArray[np.float64], draws: int = DRAWS, seed: int = SEED) -> float:
    """The p-value of the mean difference under random signs: exact for few differences, else from draws.

    The seed is fixed, so the same differences give the same p-value. With draws, the smallest possible value
    is 1 / (draws + 1).
    """
    moved = differences[differences != 0]  # the others are 0 with either sign
    n = len(moved)
    if n == 0:
        return 1.0
    observed = abs(float(moved.sum())) * (1 - 1e-12)  # rounding must not exclude the observed signs
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
    """The p-values of several tests, corrected to bound the probability of any false positive among them.

    Holm's step-down method (1979): the smallest of n p-values is multiplied by n, the next by n − 1, and so
    on; the results keep the order of the p-values, and none exceeds 1.
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
    """The regularized incomplete beta function I_x(a, b), by its continued fraction (DLMF 8.17.22)."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):  # here, the fraction converges slowly
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
