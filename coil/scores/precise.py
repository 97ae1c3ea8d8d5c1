"""Scores from the precise vectors that an index may keep beside int8, for chosen rows only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import QueryVector, mention_products, row_products, to_grid


def score_precisely(
    query: PreparedQuery, segment: Segment, rows: NDArray[np.intp] | None = None
) -> NDArray[np.int64]:
    """The scores of these rows (ascending; None: all of them) in the precise form, [rows].

    The same bits as a search of an index that holds this form alone.
    """
    assert segment.precise_vectors is not None
    assert segment.precise_sentences is not None
    wanted = np.arange(segment.n_rows) if rows is None else rows
    scores = np.zeros(len(wanted), dtype=np.int64)
    if not len(wanted):
        return scores
    for list_id, vector in query:
        mentions = segment.mentions_of(list_id)
        of_list = segment.mention_rows[mentions]
        places = np.searchsorted(wanted, of_list)
        mine = np.flatnonzero(wanted[np.minimum(places, len(wanted) - 1)] == of_list)
        if not len(mine):
            continue
        chosen = places[mine]
        starts = np.flatnonzero(np.diff(chosen, prepend=-1))
        stored = segment.precise_vectors[mine + mentions.start]
        best = np.maximum.reduceat(mention_products(stored, vector), starts)
        scores[chosen[starts]] += to_grid(np.maximum(best, 0.0) if query.floor else best)
    if query.sentence_vector is not None and segment.sentences.dim:
        sentences = segment.precise_sentences[wanted]
        scores += to_grid(row_products(sentences, query.sentence_vector))
    return scores


def largest_difference(query: PreparedQuery, segment: Segment) -> float:
    """How far a score as it is searched can be from the precise one, in this segment."""
    assert segment.precise_vectors is not None
    half = segment.precise_vectors.values.dtype == np.float16
    difference = 0.0
    longest = float(segment.bounds.list_norms.max(initial=0.0))
    for vector in query.token_vectors:
        difference += _difference(vector, segment.token_error, longest, half)
    if query.sentence_vector is not None and segment.sentences.dim:
        longest = float(segment.bounds.sentence_norms.max(initial=0.0))
        difference += _difference(query.sentence_vector, segment.sentence_error, longest, half)
    return difference


def _difference(vector: QueryVector, error: float, longest: float, half: bool) -> float:
    """|q̂ · v̂ − q · v'|, where v̂ is at most `error` from fp32 and v' is fp32 or the nearest half."""
    exact, coded = vector.exact.astype(np.float64), vector.coded.astype(np.float64)
    length, dim = float(np.linalg.norm(exact)), len(exact)
    apart = error + ((longest + error) * 2.0**-11 + np.sqrt(dim) * 2.0**-24 if half else 0.0)
    rounding = (dim + 4) * 2.0**-23 * (length + 1e-9) * (longest + error)
    return float(np.linalg.norm(exact - coded) * longest + length * apart + rounding + 2.0**-31)
