"""The equation over a batch, differentiable: every query against every passage.

Only tokens of one list meet, so the products are computed for those pairs alone: a join on the list,
not a matrix over all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The vectors of a batch of texts, tokens without a list and special tokens left out."""

    vectors: Tensor  # [tokens, n_t]
    lists: Tensor  # [tokens] list of each token
    rows: Tensor  # [tokens] text of each token, non-decreasing
    sentences: Tensor | None  # [texts, n_c]
    n_texts: int


def token_scores(queries: TextVectors, passages: TextVectors, floor: bool, at_once: int = 2**24) -> Tensor:
    """s_tok of every query and passage (eq. 4), [Q, D]."""
    n_q, n_d = queries.n_texts, passages.n_texts
    scores = queries.vectors.new_zeros(n_q * n_d)
    if not len(queries.lists) or not len(passages.lists):
        return scores.view(n_q, n_d)
    order = torch.argsort(passages.lists, stable=True)
    sorted_lists = passages.lists[order]
    first = torch.searchsorted(sorted_lists, queries.lists, side="left")
    count = torch.searchsorted(sorted_lists, queries.lists, side="right") - first  # mentions per query token
    for begin, end in _parts(count, at_once):
        n = count[begin:end]
        query_token = torch.repeat_interleave(torch.arange(begin, end, device=n.device), n)  # [pairs]
        if not len(query_token):
            continue
        within = torch.arange(len(query_token), device=n.device) - torch.repeat_interleave(n.cumsum(0) - n, n)
        mention = order[first[query_token] + within]
        similarity = (queries.vectors[query_token] * passages.vectors[mention]).sum(-1)
        # One cell per (query token, passage) that meet; the maximum over its mentions.
        cell = (query_token - begin) * n_d + passages.rows[mention]
        cells, place = torch.unique(cell, return_inverse=True)
        best = similarity.new_full((len(cells),), float("-inf")).scatter_reduce(0, place, similarity, "amax")
        target = queries.rows[begin + cells // n_d] * n_d + cells % n_d
        scores = scores.index_add(0, target, best.relu() if floor else best)
    return scores.view(n_q, n_d)


def _parts(count: Tensor, at_once: int) -> list[tuple[int, int]]:
    """Runs of query tokens with at most `at_once` pairs each, so memory stays bounded."""
    parts: list[tuple[int, int]] = []
    begin, total = 0, 0
    for i, n in enumerate(count.tolist()):
        if total and total + n > at_once:
            parts.append((begin, i))
            begin, total = i, 0
        total += n
    return [*parts, (begin, len(count))]


def sentence_scores(queries: TextVectors, passages: TextVectors) -> Tensor | None:
    """v_cls^q · v_cls^d of every query and passage, [Q, D]; None for COIL-tok."""
    if queries.sentences is None or passages.sentences is None:
        return None
    return queries.sentences @ passages.sentences.T
