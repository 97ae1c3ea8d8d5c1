"""Certified search: int8 finds every document that could be a hit; the precise vectors decide the order.

A searched score differs from the precise one by at most ε. So the k-th best precise score is at least the
k-th best searched score minus ε, and a document whose searched score is more than 2 ε below it cannot be
among the k best. All others are scored again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.hits.rankers import Counts, Rankings, Selection, best_documents, check_deadline
from coil.hits.ranking import Ranking
from coil.lists.segment import LiveSegment
from coil.scores.precise import largest_difference, score_precisely
from coil.scores.prepared import PreparedQuery
from coil.scores.products import GRID

Rank = Callable[[Sequence[PreparedQuery], Selection], Rankings]
"""Ranks documents by the searched vectors."""


def rank_certified(
    rank: Rank, queries: Sequence[PreparedQuery], segments: Sequence[LiveSegment], selection: Selection
) -> Rankings:
    """The k best documents by precise scores, as if every row had been scored with precise vectors."""
    if selection.k <= 0:
        return rank(queries, selection)
    rankings = []
    for query, (found, first) in zip(queries, rank(queries, selection), strict=True):
        best = Ranking.of([])
        counts = first
        if len(found) == selection.k:  # otherwise there may be documents whose int8 score is 0
            widest = max((largest_difference(query, s.segment) for s in segments), default=0.0)
            apart = math.ceil(widest * GRID) + 1
            n_rows = sum(live.segment.n_rows for live in segments)
            at_least = found[-1].grid_score - 2 * apart
            [(close, more)] = rank([query], replace(selection, k=n_rows, at_least=at_least))
            counts = _sum(first, more)
            candidates = [_rows_of(live, number, close) for number, live in enumerate(segments)]
            best, counts = _rescore(query, segments, candidates, selection, counts)
            # The proof needs k documents with at least this score. Without a sentence part, a document that
            # scores exactly 0 is not a hit, but may have been one of them.
            if len(best) < selection.k or best[-1].grid_score < found[-1].grid_score - apart:
                best = Ranking.of([])
        if not best:
            everything = [None] * len(segments)
            best, counts = _rescore(query, segments, everything, selection, counts)
        rankings.append((best, counts))
    return rankings


def _rescore(
    query: PreparedQuery,
    segments: Sequence[LiveSegment],
    candidates: Sequence[NDArray[np.intp] | None],
    selection: Selection,
    counts: Counts,
) -> tuple[Ranking, Counts]:
    """The k best documents of these rows (None means all) by their precise scores."""
    best: list[Ranking] = []
    for number, (live, rows) in enumerate(zip(segments, candidates, strict=True)):
        check_deadline(selection)
        scores = score_precisely(query, live.segment, rows)
        counts = replace(counts, rescored=counts.rescored + len(scores))
        best.append(best_documents(number, live, scores, selection, query.sentence is None, rows))
    return Ranking.joined(best, selection.k), counts


def _rows_of(live: LiveSegment, number: int, close: Ranking) -> NDArray[np.intp]:
    """All rows of the close documents: with precise scores, another row may be the best."""
    documents = close.ordinals[close.segments == number]
    return np.flatnonzero(is_among(live.segment.row_documents, documents))


def _sum(first: Counts, second: Counts) -> Counts:
    return Counts(*(a + b for a, b in zip(astuple(first), astuple(second), strict=True)))
