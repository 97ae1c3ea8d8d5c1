"""Scorer: query vectors × segment → one score per row."""

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
        """The score of every row of the segment, [rows]."""
        ...


def score_with_numpy(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
) -> NDArray[np.float32]:
    """The paper's way: the products of each list, the maximum per row, a sum."""
    scores = sentence_scores(query, segment)
    for list_id, vector in listed_tokens(query, keys):
        postings = segment.list_of(list_id)
        if not len(postings):
            continue
        starts = np.flatnonzero(np.diff(postings.rows.astype(np.int32), prepend=-1))
        best = np.maximum.reduceat(postings.vectors.products(vector), starts)  # [rows in the list]
        scores[postings.rows[starts]] += np.maximum(best, 0.0) if profile.floor else best
    return scores


def score_with_native(
    query: TokenVectors, segment: Segment, profile: ScoringProfile, keys: ListKeys
) -> NDArray[np.float32]:
    """The same in one fused pass of native code over each list, on fp32 vectors."""
    native = importlib.import_module("coil._native")

    scores = sentence_scores(query, segment)
    for list_id, vector in listed_tokens(query, keys):
        postings = segment.list_of(list_id)
        rows = postings.rows.astype(np.int32)
        native.scan_list(postings.vectors.decode(), rows, vector, profile.floor, scores)
    return scores


def sentence_scores(query: TokenVectors, segment: Segment) -> NDArray[np.float32]:
    """v_cls^q · v_cls^d of every row, zeros for COIL-tok. [rows]"""
    if query.sentence is None or not segment.sentences.dim:
        return np.zeros(segment.n_rows, dtype=np.float32)
    return segment.sentences.products(query.sentence)


def listed_tokens(query: TokenVectors, keys: ListKeys) -> list[tuple[int, NDArray[np.float32]]]:
    """The query tokens that have a list, each occurrence on its own, with its vector."""
    lists = keys.of(query.token_ids)
    if not query.vectors.shape[1]:
        return []
    return [(int(lists[i]), query.vectors[i]) for i in range(len(query)) if lists[i] != NO_LIST]
