"""Scorer: prepared query × segment → one score per row, in multiples of 2^-32 (see `products`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import StoredVectors
from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import QueryVector, mention_products, row_products, to_grid


class Scorer(Protocol):
    """The interface of scorers: they compute the equation over a segment."""

    def __call__(self, query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
        """The score of every row of the segment, [rows]."""
        ...


def score_with_numpy(query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
    """Score as in the paper: the products of each list, their maximum per row, and the sum."""
    return score_between(query, segment, 0, segment.n_rows, precise=False)


def score_between(
    query: PreparedQuery, segment: Segment, begin: int, end: int, precise: bool = True
) -> NDArray[np.int64]:
    """The scores of rows begin to end, from the searched vectors or the most precise ones available."""
    scores = np.zeros(end - begin, dtype=np.int64)
    for key, base, vector in query:
        place = segment.find(key)
        rows, starts, counts = segment.rows_at(place)
        first, last = (int(np.searchsorted(rows, row)) for row in (begin, end))
        if first == last:
            continue
        mine = slice(first, last)
        before = segment.mentions_at(place).start
        stop = int(starts[last - 1] + counts[last - 1])
        mentions = slice(before + int(starts[first]), before + stop)
        stored = None
        if query.n_t:
            exact = segment.precise_vectors if precise else None
            stored = segment.vectors[mentions] if exact is None else exact[mentions]
        places = rows[mine].astype(np.intp)
        factors = query.factors(counts[mine], segment.row_lengths[places])
        parts = token_parts(query, base, vector, stored, starts[mine] - starts[first], factors)
        scores[places - begin] += parts
    if query.sentence_vectors is not None and segment.sentences.dim:
        if precise and segment.precise_sentences is not None:
            scores += precise_parts(query, segment.precise_sentences[begin:end])
        else:
            for part, of_query in zip(segment.sentences.parts, query.sentence_vectors, strict=True):
                if part.dim:
                    scores += to_grid(row_products(part[begin:end], of_query))
    return scores


def token_parts(
    query: PreparedQuery,
    base: np.float32,
    vector: QueryVector,
    stored: StoredVectors | None,
    starts: NDArray[np.intp],
    factors: NDArray[np.float32] | np.float32,
) -> NDArray[np.int64]:
    """f · (base + max v·v)⁺ of postings that begin at these mentions, on the grid. [postings]

    `stored` is None if only counts matter.
    """
    best = np.zeros(len(starts), np.float32)
    if stored is not None:
        best = np.maximum.reduceat(mention_products(stored, vector), starts)
    fit = base + best
    if query.floor:
        fit = np.maximum(fit, np.float32(0.0))
    return to_grid(factors * fit)


def precise_parts(query: PreparedQuery, sentences: StoredVectors) -> NDArray[np.int64]:
    """The sentence part from the precise form, which is not split into head and tail. [rows]"""
    assert query.sentence is not None
    return to_grid(row_products(sentences, QueryVector.of(query.sentence)))
