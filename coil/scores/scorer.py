"""Scorer: query vectors × segment → one score per document."""

from __future__ import annotations

import importlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.lists.segment import Segment
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors


class Scorer(Protocol):
    """Anything that computes the equation over a segment."""

    def __call__(
        self, query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
    ) -> NDArray[np.float32]:
        """The score of every document of the segment, [documents]."""
        ...


def score_with_numpy(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
) -> NDArray[np.float32]:
    """The paper's way: a matrix product over each list, the maximum per document, a sum."""
    scores = sentence_scores(query, segment)
    for list_id, vector in listed_tokens(query, keys):
        postings = segment.list_of(list_id)
        if not len(postings.ordinals):
            continue
        starts = np.flatnonzero(np.diff(postings.ordinals, prepend=-1))
        best = np.maximum.reduceat(products(postings.vectors, vector), starts)  # [documents in the list]
        scores[postings.ordinals[starts]] += np.maximum(best, 0.0) if profile.floor else best
    return scores


def score_with_native(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
) -> NDArray[np.float32]:
    """The same in one fused pass of native code over each list."""
    native = importlib.import_module("coil._native")

    scores = sentence_scores(query, segment)
    for list_id, vector in listed_tokens(query, keys):
        postings = segment.list_of(list_id)
        native.scan_list(postings.vectors, postings.ordinals, vector, profile.floor, scores)
    return scores


def sentence_scores(query: TokenVectors, segment: Segment) -> NDArray[np.float32]:
    """v_cls^q · v_cls^d of every document, zeros for COIL-tok. [documents]"""
    if query.sentence is None or not segment.sentences.shape[1]:
        return np.zeros(segment.n_documents, dtype=np.float32)
    return products(segment.sentences, query.sentence)


def products(rows: NDArray[np.float32], vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """The product of each row with a vector, equal for equal rows.

    BLAS rounds a row's product differently depending on its place in the matrix, which would break ties.
    """
    found: NDArray[np.float32] = np.einsum("rd,d->r", rows, vector)
    return found


def listed_tokens(query: TokenVectors, keys: ListKeys) -> list[tuple[int, NDArray[np.float32]]]:
    """The query tokens that have a list, each occurrence on its own, with its vector."""
    lists = keys.of(query.token_ids)
    if not query.vectors.shape[1]:
        return []
    return [(int(lists[i]), query.vectors[i]) for i in range(len(query)) if lists[i] != NO_LIST]
