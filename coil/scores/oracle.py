"""The equation, written once and in plain loops: the oracle that every other scorer is tested against.

    s(q, d) = Σ_i w_i · (α + β · max_{j: key(d_j) = key(q_i)} v_i^q · v_j^d)⁺ + γ(q) · v_cls^q · v_cls^d

over query tokens i with a match. Without a floor, the parenthesis may be negative. w_i is 1, or BM25's weight

    w_i = ln(1 + (N − df + ½)/(df + ½)) · tf / (tf + k1·(1 − b + b·len/mean))

With w = 1, α = 0, β = 1 and γ = 1 this is the paper's COIL-full (eq. 6), and with γ = 0 COIL-tok (eq. 4).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True)
class CountedRows:
    """The statistics of a collection of encoded texts, one row each."""

    rows: Sequence[TokenVectors]

    def rows_with(self, key: str) -> int:
        """The number of rows that mention a key."""
        return sum(1 for row in self.rows if key in row.keys)

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return len(self.rows)

    @property
    def mean_length(self) -> float:
        """The mean number of listed mentions per row."""
        total = sum(1 for row in self.rows for key in row.keys if key is not None)
        return total / len(self.rows) if total else 1.0


def score(
    query: TokenVectors, document: TokenVectors, profile: ScoringProfile, collection: CountedRows
) -> float:
    """The score of one document for one query."""
    return token_score(query, document, profile, collection) + sentence_score(query, document, profile)


def token_score(
    query: TokenVectors, document: TokenVectors, profile: ScoringProfile, collection: CountedRows
) -> float:
    """The token part: Σ over query tokens that have a match."""
    total = 0.0
    for i, key in enumerate(query.keys):
        if key is None or not profile.uses_lists:
            continue
        best: float | None = None
        for j in range(len(document)):
            if document.keys[j] != key:
                continue
            similarity = 0.0
            for a, b in zip(query.vectors[i].tolist(), document.vectors[j].tolist(), strict=True):
                similarity += a * b
            if best is None or similarity > best:
                best = similarity
        if best is None:
            continue
        fit = profile.alpha + profile.beta * best
        if profile.floor:
            fit = max(fit, 0.0)
        total += weight(key, document, profile, collection) * fit
    return total


def weight(key: str, document: TokenVectors, profile: ScoringProfile, collection: CountedRows) -> float:
    """w_i: the weight of a match of this key in this document."""
    if profile.weight == "one":
        return 1.0
    df = collection.rows_with(key)
    rarity = math.log(1 + (collection.n_rows - df + 0.5) / (df + 0.5))
    tf = sum(1 for other in document.keys if other == key)
    length = sum(1 for other in document.keys if other is not None)
    penalty = profile.k1 * (1 - profile.b + profile.b * length / collection.mean_length)
    return rarity * tf / (tf + penalty)


def sentence_score(query: TokenVectors, document: TokenVectors, profile: ScoringProfile) -> float:
    """γ(q) · v_cls^q · v_cls^d, or 0 without a sentence part."""
    if query.sentence is None or document.sentence is None:
        return 0.0
    product = 0.0
    for a, b in zip(query.sentence.tolist(), document.sentence.tolist(), strict=True):
        product += a * b
    return profile.gamma_of(sum(1 for key in query.keys if key is not None)) * product


def rank(
    query: TokenVectors, documents: Sequence[TokenVectors], k: int, profile: ScoringProfile
) -> list[tuple[int, float]]:
    """The k best (ordinal, score) pairs: by score, descending, then in order of insertion.

    Without a sentence part, a document that scores exactly 0 has nothing in common with the query and is not
    a hit.
    """
    collection = CountedRows(documents)
    scored = [
        (ordinal, score(query, document, profile, collection)) for ordinal, document in enumerate(documents)
    ]
    if query.sentence is None or not profile.uses_sentence:
        scored = [(ordinal, value) for ordinal, value in scored if value != 0.0]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[: max(k, 0)]
