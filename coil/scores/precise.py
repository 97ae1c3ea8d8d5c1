"""Scores from the precise vectors that an index may store beside int8, for selected rows only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import QueryVector
from coil.scores.scorer import precise_parts, token_parts


def score_precisely(
    query: PreparedQuery, segment: Segment, rows: NDArray[np.intp] | None = None
) -> NDArray[np.int64]:
    """The scores of these rows (ascending; None means all) from the precise vectors, [rows]."""
    assert segment.precise_vectors is not None
    assert segment.precise_sentences is not None
    wanted = np.arange(segment.n_rows) if rows is None else rows
    scores = np.zeros(len(wanted), dtype=np.int64)
    if not len(wanted):
        return scores
    for key, base, vector in query:
        place = segment.find(key)
        of_list, starts, counts = segment.rows_at(place)
        at = np.searchsorted(wanted, of_list)
        mine = np.flatnonzero(wanted[np.minimum(at, len(wanted) - 1)] == of_list)
        if not len(mine):
            continue
        lengths = counts[mine]
        begins = np.cumsum(lengths) - lengths  # of each posting among the selected mentions
        stored = None
        if query.n_t:
            first = segment.mentions_at(place).start
            picked = np.repeat(starts[mine] + first - begins, lengths) + np.arange(int(lengths.sum()))
            stored = segment.precise_vectors[picked]
        factors = query.factors(lengths, segment.row_lengths[of_list[mine].astype(np.intp)])
        scores[at[mine]] += token_parts(query, base, vector, stored, begins, factors)
    if query.sentence is not None and segment.sentences.dim:
        scores += precise_parts(query, segment.precise_sentences[wanted])
    return scores


def largest_difference(query: PreparedQuery, segment: Segment) -> float:
    """The largest possible difference between a searched and a precise score in this segment."""
    assert segment.precise_vectors is not None
    half = segment.precise_vectors.values.dtype == np.float16
    difference = 0.0
    longest = float(segment.bounds.list_norms.max(initial=0.0))
    for base, vector in zip(query.bases.tolist(), query.token_vectors, strict=True):
        apart = _difference(vector, segment.token_error, longest, half) if query.n_t else 0.0
        difference += apart + abs(base) * 2.0**-22 + 2.0**-31  # factors are at most 1
    if query.sentence is not None and query.sentence_vectors is not None and segment.sentences.dim:
        whole = QueryVector.of(query.sentence)
        coded = np.concatenate([part.coded for part in query.sentence_vectors])
        longest = segment.longest_sentence
        difference += _difference(whole, segment.sentence_error, longest, half, coded) + 2.0**-31
    return difference


def _difference(
    vector: QueryVector, error: float, longest: float, half: bool, coded: NDArray[np.float32] | None = None
) -> float:
    """A bound on |q̂ · v̂ − q · v'|: v̂ is at most `error` away from fp32, v' is fp32 or the nearest fp16."""
    exact = vector.exact.astype(np.float64)
    searched = (vector.coded if coded is None else coded).astype(np.float64)
    length, dim = float(np.linalg.norm(exact)), len(exact)
    apart = error + ((longest + error) * 2.0**-11 + np.sqrt(dim) * 2.0**-24 if half else 0.0)
    rounding = (dim + 8) * 2.0**-23 * (length + 1e-9) * (longest + error)
    return float(np.linalg.norm(exact - searched) * longest + length * apart + rounding + 2.0**-31)
