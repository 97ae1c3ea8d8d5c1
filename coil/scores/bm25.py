"""BM25 over the token lists: the same words, counted instead of understood.

    score(q, d) = Σ_i ln(1 + (N - df_i + 0.5) / (df_i + 0.5)) · tf_i / (tf_i + k1 · (1 - b + b · |d| / mean))

Lucene's form. A row is a text, tf_i the mentions it has in the list of query token i, |d| its mentions in all
lists. Deleted rows do not count, neither as hits nor in N, df and the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import LiveSegment

K1 = 0.9
B = 0.4


@dataclass(frozen=True)
class RankedByBm25:
    """A document by its inside number, with the row that gave it its score."""

    ordinal: int
    score: float
    chunk: tuple[int, int]


def rank_with_bm25(
    segments: Sequence[LiveSegment],
    row_lengths: Sequence[NDArray[np.int64]],
    list_ids: Sequence[int],
    k: int,
    allowed: NDArray[np.int64] | None = None,
) -> list[RankedByBm25]:
    """The k best documents: score descending, then ordinal. A document scores what its best row scores.

    `list_ids` are the lists of the query's tokens, each occurrence on its own; `allowed` keeps only the
    documents of these ordinals. What shares no word with the query is no hit.
    """
    found: list[RankedByBm25] = []
    for live, scores in zip(segments, score_with_bm25(segments, row_lengths, list_ids), strict=True):
        segment = live.segment
        rows = np.flatnonzero(scores)
        if allowed is not None:
            rows = rows[np.isin(segment.row_documents[rows], allowed)]
        # The best row of each document first: rows of one document are neighbours, equals in text order.
        rows = rows[np.lexsort((rows, -scores[rows], segment.row_documents[rows]))]
        rows = rows[np.flatnonzero(np.diff(segment.row_documents[rows], prepend=-1))]
        best = rows[np.lexsort((segment.row_documents[rows], -scores[rows]))][: max(k, 0)]
        for row in best.tolist():
            start, end = segment.row_spans[row].tolist()
            found.append(RankedByBm25(int(segment.row_documents[row]), float(scores[row]), (start, end)))
    found.sort(key=lambda ranked: (-ranked.score, ranked.ordinal))
    return found[: max(k, 0)]


def score_with_bm25(
    segments: Sequence[LiveSegment], row_lengths: Sequence[NDArray[np.int64]], list_ids: Sequence[int]
) -> list[NDArray[np.float64]]:
    """The score of every row of every segment, 0 for deleted rows. [rows] each"""
    scores = [np.zeros(live.segment.n_rows) for live in segments]
    living = [_alive(live) for live in segments]
    n_rows = sum(int(alive.sum()) for alive in living)
    n_mentions = sum(int(lengths[alive].sum()) for lengths, alive in zip(row_lengths, living, strict=True))
    if not n_mentions:
        return scores
    mean = n_mentions / n_rows
    penalties = [K1 * (1 - B + B * lengths / mean) for lengths in row_lengths]
    for list_id, occurrences in zip(
        *np.unique(np.array(list_ids, np.int64), return_counts=True), strict=True
    ):
        counts = [
            np.unique(s.mention_rows[s.mentions_of(int(list_id))], return_counts=True)
            for s in (live.segment for live in segments)
        ]
        df = sum(int(alive[rows].sum()) for (rows, _), alive in zip(counts, living, strict=True))
        weight = float(occurrences) * np.log1p((n_rows - df + 0.5) / (df + 0.5))
        for (rows, tf), of_segment, penalty in zip(counts, scores, penalties, strict=True):
            of_segment[rows] += weight * tf / (tf + penalty[rows])
    return [np.where(alive, of_segment, 0.0) for alive, of_segment in zip(living, scores, strict=True)]


def _alive(live: LiveSegment) -> NDArray[np.bool_]:
    return live.alive if live.alive is not None else np.ones(live.segment.n_rows, dtype=bool)
