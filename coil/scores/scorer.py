"""Scorer: query vectors × segment → one score per row, in multiples of 2^-32 (see `products`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.scores.products import QueryVector, mention_products, row_products, to_grid
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors


class Scorer(Protocol):
    """Anything that computes the equation over a segment."""

    def __call__(
        self, query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
    ) -> NDArray[np.int64]:
        """The score of every row of the segment, [rows]."""
        ...


def score_with_numpy(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
) -> NDArray[np.int64]:
    """The paper's way: the products of each list, the maximum per row, a sum."""
    scores = np.zeros(segment.n_rows, dtype=np.int64)
    for list_id, vector in listed_tokens(query, keys):
        postings = segment.list_of(list_id)
        if not len(postings):
            continue
        starts = np.flatnonzero(np.diff(postings.rows.astype(np.int32), prepend=-1))
        products = mention_products(postings.vectors, QueryVector.of(vector))
        best = np.maximum.reduceat(products, starts)  # [rows in the list]
        scores[postings.rows[starts]] += to_grid(np.maximum(best, 0.0) if profile.floor else best)
    if query.sentence is not None and segment.sentences.dim:
        scores += to_grid(row_products(segment.sentences, QueryVector.of(query.sentence)))
    return scores


def score_between(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys, begin: int, end: int
) -> NDArray[np.int64]:
    """The scores of rows begin to end alone, in the most precise form there is: what one document needs."""
    scores = np.zeros(end - begin, dtype=np.int64)
    for list_id, vector in listed_tokens(query, keys):
        mentions = segment.mentions_of(list_id)
        rows = segment.mention_rows[mentions]
        first, last = (int(np.searchsorted(rows, row)) for row in (begin, end))
        if first == last:
            continue
        mine = slice(mentions.start + first, mentions.start + last)
        stored = segment.vectors[mine] if segment.precise_vectors is None else segment.precise_vectors[mine]
        starts = np.flatnonzero(np.diff(rows[first:last].astype(np.int32), prepend=-1))
        best = np.maximum.reduceat(mention_products(stored, QueryVector.of(vector)), starts)
        places = rows[first:last][starts].astype(np.intp) - begin
        scores[places] += to_grid(np.maximum(best, 0.0) if profile.floor else best)
    if query.sentence is not None and segment.sentences.dim:
        sentences = segment.sentences if segment.precise_sentences is None else segment.precise_sentences
        scores += to_grid(row_products(sentences[begin:end], QueryVector.of(query.sentence)))
    return scores


def listed_tokens(query: TokenVectors, keys: ListKeys) -> list[tuple[int, NDArray[np.float32]]]:
    """The query tokens that have a list, each occurrence on its own, with its vector."""
    lists = keys.of(query.token_ids)
    if not query.vectors.shape[1]:
        return []
    return [(int(lists[i]), query.vectors[i]) for i in range(len(query)) if lists[i] != NO_LIST]
