"""Hybrid of BM25 and a dense retriever: fusion of their scores, or of their ranks.

- `zscore`: the scores of each list scaled to mean 0 and standard deviation 1, then a weighted sum.
- `linear`: the scores of each list scaled to the range from 0 to 1, then a weighted sum.
- `rrf`: reciprocal rank fusion, Σ weight / (c + rank) (Cormack, Clarke and Büttcher, SIGIR 2009).

Only the first `depth` documents of each list are used. For score fusion, a document that is not in a list
gets the lowest score of that list; an empty list contributes nothing. If all scores of a list are equal, or
it has only one document, its documents count 1 and all others 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coil.errors import OptionMismatch
from coil.systems.system import Answered, option


@dataclass(frozen=True)
class Hybrid:
    """Merges the answers of two systems, BM25 and dense unless others are named."""

    inputs: ClassVar[tuple[str, ...]] = ("bm25s", "dense")

    name: str = "hybrid"
    fusion: Literal["zscore", "linear", "rrf"] = option("zscore", "How the two lists are merged.")
    weight: float = option(0.5, "Weight of the second system, from 0 to 1.")
    depth: int = option(1000, "Number of documents used from each list.")
    c: int = option(60, "Constant of reciprocal rank fusion.")

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise OptionMismatch(f"weight is {self.weight}; it must be from 0 to 1")
        if self.depth < 1 or self.c < 0:
            raise OptionMismatch(
                f"depth is {self.depth}, c is {self.c}; depth must be 1 or more, c 0 or more"
            )

    def fuse(self, answers: Sequence[Answered], k: int, place: Callable[[str], int]) -> Answered:
        """The k best documents of both lists together."""
        began = time.perf_counter()
        shares = (1 - self.weight, self.weight)
        totals: dict[str, float] = {}
        lists = [self._values(answer) for answer in answers]
        for answer in answers:
            totals.update(dict.fromkeys(answer.doc_ids[: self.depth], 0.0))
        for share, (values, otherwise) in zip(shares, lists, strict=True):
            for doc_id in totals:
                totals[doc_id] += share * values.get(doc_id, otherwise)
        best = sorted(totals, key=lambda doc_id: (-totals[doc_id], place(doc_id)))[:k]
        parts: dict[str, float] = {}
        for answer in answers:
            for part, took in answer.parts_ms.items():
                parts[part] = parts.get(part, 0.0) + took
        parts["fuse"] = 1000 * (time.perf_counter() - began)
        return Answered(answers[0].query_id, best, [totals[doc_id] for doc_id in best], parts)

    def _values(self, answer: Answered) -> tuple[dict[str, float], float]:
        """The contribution of each document of a list, and that of any other document."""
        doc_ids = answer.doc_ids[: self.depth]
        if not doc_ids:
            return {}, 0.0
        if self.fusion == "rrf":
            return {doc_id: 1 / (self.c + rank) for rank, doc_id in enumerate(doc_ids, start=1)}, 0.0
        scores = np.array(answer.scores[: self.depth], dtype=np.float64)
        zero, unit = (
            (scores.mean(), scores.std()) if self.fusion == "zscore" else (scores.min(), np.ptp(scores))
        )
        if unit <= 1e-12 * max(1.0, float(np.abs(scores).max())):
            return dict.fromkeys(doc_ids, 1.0), 0.0
        scaled = (scores - zero) / unit
        return dict(zip(doc_ids, scaled.tolist(), strict=True)), float(scaled.min())
