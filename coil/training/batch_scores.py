"""The equation over a batch, differentiable: every query against every passage.

    s(q, d) = Σ_i w_i · (α + β · max_j v_i·v_j)⁺ + γ(q) · v_cls^q · v_cls^d

Only mentions in the same list can match, so only products of such pairs are computed: a join on the list
rather than a matrix over all tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coil.tokens.profile import ScoringProfile
from coil.training.passage_statistics import PassageStatistics


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The vectors of a batch of texts, without special tokens and tokens that have no list."""

    vectors: Tensor  # [mentions, n_t]
    lists: Tensor  # [mentions] list of each mention
    rows: Tensor  # [mentions] text of each mention, non-decreasing
    sentences: Tensor | None  # [texts, n_c]
    n_texts: int

    @property
    def lengths(self) -> Tensor:
        """The number of listed mentions of each text, [texts]."""
        return torch.bincount(self.rows, minlength=self.n_texts)


@dataclass(frozen=True, eq=False)
class BatchScores:
    """The two parts of the scores; a part that does not exist is None."""

    tokens: Tensor | None  # [Q, D]
    sentences: Tensor | None  # [Q, D]

    @property
    def whole(self) -> Tensor:
        """s(q, d), [Q, D]."""
        parts = [part for part in (self.tokens, self.sentences) if part is not None]
        return torch.stack(parts).sum(0)


class BatchEquation:
    """The equation of one scoring profile, with the statistics of the training passages."""

    def __init__(self, profile: ScoringProfile, statistics: PassageStatistics, at_once: int = 2**24) -> None:
        self._profile, self._statistics, self._at_once = profile, statistics, at_once

    def __call__(
        self, queries: TextVectors, passages: TextVectors, sources: Tensor, factors: Tensor | None = None
    ) -> BatchScores:
        """All scores. `sources` [Q] says which pairs file's statistics weight the words of each query;
        `factors` are α, β and γ if they are learned; otherwise the profile's values are used."""
        own = self._profile.alpha, self._profile.beta, self._profile.gamma
        alpha, beta, gamma = queries.vectors.new_tensor(own) if factors is None else factors
        tokens = sentences = None
        # Without α and without vectors, lists contribute nothing.
        if self._profile.alpha or (self._profile.beta and queries.vectors.shape[1]):
            tokens = self._token_scores(queries, passages, sources, alpha, beta)
        if self._profile.uses_sentence and queries.sentences is not None:
            assert passages.sentences is not None
            sentences = gamma * (queries.sentences @ passages.sentences.T)
            if self._profile.gamma_rule == "root":
                sentences = (queries.lengths.clamp_min(1) - 0.5).sqrt()[:, None] * sentences
        return BatchScores(tokens, sentences)

    def _token_scores(
        self, queries: TextVectors, passages: TextVectors, sources: Tensor, alpha: Tensor, beta: Tensor
    ) -> Tensor:
        n_q, n_d = queries.n_texts, passages.n_texts
        scores = queries.vectors.new_zeros(n_q * n_d)
        order = torch.argsort(passages.lists, stable=True)
        sorted_lists = passages.lists[order]
        first = torch.searchsorted(sorted_lists, queries.lists, side="left")
        count = torch.searchsorted(sorted_lists, queries.lists, side="right") - first  # per query mention
        lengths = passages.lengths
        for begin, end in _parts(count, self._at_once):
            n = count[begin:end]
            of_query = torch.repeat_interleave(torch.arange(begin, end, device=n.device), n)  # [pairs]
            if not len(of_query):
                continue
            before = torch.repeat_interleave(n.cumsum(0) - n, n)
            within = torch.arange(len(of_query), device=n.device) - before
            mention = order[first[of_query] + within]
            # One cell for each pair of a query mention and a passage with a mention in the same list.
            cell = (of_query - begin) * n_d + passages.rows[mention]
            cells, place, counts = torch.unique(cell, return_inverse=True, return_counts=True)
            query_mention, passage = begin + cells // n_d, cells % n_d
            fit = alpha.expand(len(cells))
            if self._profile.beta:
                similarity = (queries.vectors[of_query] * passages.vectors[mention]).sum(-1)
                lowest = similarity.new_full((len(cells),), float("-inf"))
                fit = fit + beta * lowest.scatter_reduce(0, place, similarity, "amax")
            if self._profile.floor:
                fit = fit.relu()
            if self._profile.weight == "bm25":
                fit = fit * self._statistics.weights(
                    queries.lists[query_mention],
                    sources[queries.rows[query_mention]],
                    counts,
                    lengths[passage],
                    self._profile,
                )
            scores = scores.index_add(0, queries.rows[query_mention] * n_d + passage, fit)
        return scores.view(n_q, n_d)


def _parts(count: Tensor, at_once: int) -> list[tuple[int, int]]:
    """Runs of query mentions with at most `at_once` pairs each, which bounds memory."""
    parts: list[tuple[int, int]] = []
    begin, total = 0, 0
    for i, n in enumerate(count.tolist()):
        if total and total + n > at_once:
            parts.append((begin, i))
            begin, total = i, 0
        total += n
    return [*parts, (begin, len(count))]
