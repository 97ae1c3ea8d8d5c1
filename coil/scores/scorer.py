"""Scorer: prepared query × segment → one score per row, in multiples of 2^-32 (see `products`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import mention_products, row_products, to_grid


class Scorer(Protocol):
    """Anything that computes the equation over a segment."""

    def __call__(self, query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
        """The score of every row of the segment, [rows]."""
        ...


def score_with_numpy(query: PreparedQuery, segment: Segment) -> NDArray[np.int64]:
    """The paper's way: the products of each list, the maximum per row, a sum."""
    scores = np.zeros(segment.n_rows, dtype=np.int64)
    for list_id, vector in query:
        postings = segment.list_of(list_id)
        if not len(postings):
            continue
        starts = np.flatnonzero(np.diff(postings.rows.astype(np.int32), prepend=-1))
        products = mention_products(postings.vectors, vector)
        best = np.maximum.reduceat(products, starts)  # [rows in the list]
        scores[postings.rows[starts]] += to_grid(np.maximum(best, 0.0) if query.floor else best)
    if query.sentence_vector is not None and segment.sentences.dim:
        scores += to_grid(row_products(segment.sentences, query.sentence_vector))
    return scores


def score_between(query: PreparedQuery, segment: Segment, begin: int, end: int) -> NDArray[np.int64]:
    """The scores of rows begin to end alone, in the most precise form there is: what one document needs."""
    scores = np.zeros(end - begin, dtype=np.int64)
    for list_id, vector in query:
        mentions = segment.mentions_of(list_id)
        rows = segment.mention_rows[mentions]
        first, last = (int(np.searchsorted(rows, row)) for row in (begin, end))
        if first == last:
            continue
        mine = slice(mentions.start + first, mentions.start + last)
        stored = segment.vectors[mine] if segment.precise_vectors is None else segment.precise_vectors[mine]
        starts = np.flatnonzero(np.diff(rows[first:last].astype(np.int32), prepend=-1))
        best = np.maximum.reduceat(mention_products(stored, vector), starts)
        places = rows[first:last][starts].astype(np.intp) - begin
        scores[places] += to_grid(np.maximum(best, 0.0) if query.floor else best)
    if query.sentence_vector is not None and segment.sentences.dim:
        sentences = segment.sentences if segment.precise_sentences is None else segment.precise_sentences
        scores += to_grid(row_products(sentences[begin:end], query.sentence_vector))
    return scores
