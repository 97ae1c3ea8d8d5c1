"""The equation, written once and in plain loops: the oracle that every other scorer is tested against.

    s_tok(q, d)  = Σ_i max_{j: key(d_j) = key(q_i)} v_i^q · v_j^d      over query tokens with a match (eq. 4)
    s_full(q, d) = s_tok(q, d) + v_cls^q · v_cls^d                     (eq. 6)

Each maximum is floored at 0 where the profile says so; the sentence product never is.
"""

from __future__ import annotations

from collections.abc import Sequence

from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors


def score(query: TokenVectors, document: TokenVectors, profile: ScoringProfile, keys: ListKeys) -> float:
    """The score of one document for one query."""
    return token_score(query, document, profile, keys) + sentence_score(query, document)


def token_score(
    query: TokenVectors, document: TokenVectors, profile: ScoringProfile, keys: ListKeys
) -> float:
    """Σ over query tokens of the best similarity with a mention of the same list (eq. 4)."""
    total = 0.0
    for i in range(len(query)):
        query_list = int(keys.table[query.token_ids[i]])
        if query_list == NO_LIST:
            continue
        best: float | None = None
        for j in range(len(document)):
            if int(keys.table[document.token_ids[j]]) != query_list:
                continue
            similarity = 0.0
            for a, b in zip(query.vectors[i].tolist(), document.vectors[j].tolist(), strict=True):
                similarity += a * b
            if best is None or similarity > best:
                best = similarity
        if best is None:
            continue
        total += max(best, 0.0) if profile.floor else best
    return total


def sentence_score(query: TokenVectors, document: TokenVectors) -> float:
    """v_cls^q · v_cls^d, 0 for COIL-tok."""
    if query.sentence is None or document.sentence is None:
        return 0.0
    product = 0.0
    for a, b in zip(query.sentence.tolist(), document.sentence.tolist(), strict=True):
        product += a * b
    return product


def rank(
    query: TokenVectors,
    documents: Sequence[TokenVectors],
    k: int,
    profile: ScoringProfile,
    keys: ListKeys,
) -> list[tuple[int, float]]:
    """The k best (ordinal, score): score descending, then order of insertion.

    Without a sentence part a document that scores exactly 0 has nothing in common with the query: no hit.
    """
    scored = [(ordinal, score(query, document, profile, keys)) for ordinal, document in enumerate(documents)]
    if query.sentence is None:
        scored = [(ordinal, value) for ordinal, value in scored if value != 0.0]
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[: max(k, 0)]
