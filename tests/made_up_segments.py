"""Segments and queries of made-up words and vectors, and what NumPy finds in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coil.hits.rankers import Rankings, Selection, rank_with_scorer
from coil.lists.building import SegmentBuilder
from coil.lists.segment import LiveSegment
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_with_numpy
from coil.scores.statistics import Statistics
from coil.tokens.profile import WORDS, ScoringProfile
from coil.vectors.token_vectors import TokenVectors

KEYS = ["a", "ab", "abc", "b", "ba", "käse", "l", "long" * 20, "m", "n", "o", "z"]
Found = list[tuple[int, int, int, int]]


def make_text(
    rng: np.random.Generator, keys: Sequence[str | None], n_t: int, n_c: int, whole_numbers: bool = False
) -> TokenVectors:
    """An encoded text; with whole numbers, many of its products are equal."""

    def draw(*shape: int) -> Any:
        return rng.integers(-2, 3, shape) if whole_numbers else rng.standard_normal(shape)

    return TokenVectors(
        keys=tuple(keys),
        positions=np.arange(1, len(keys) + 1, dtype=np.int32),
        spans=np.zeros((len(keys), 2), np.int32),
        vectors=draw(len(keys), n_t).astype(np.float32),
        sentence=draw(n_c).astype(np.float32) if n_c else None,
    )


def make_segments(
    rng: np.random.Generator,
    rows: list[int],
    n_t: int,
    n_c: int,
    precision: Any = "int8",
    longest: int = 12,
    whole_numbers: bool = False,
    deleted: float = 0.0,
    chunks: bool = False,
    clustered: bool = False,
    profile: ScoringProfile = WORDS,
) -> list[LiveSegment]:
    """Segments of random texts whose words are as unequal as real ones."""
    weights = 1 / np.arange(1, len(KEYS) + 1)
    segments, document = [], 0
    for count in rows:
        builder = SegmentBuilder(profile, n_t, n_c, precision)
        for row in range(count):
            if row and not (chunks and rng.random() < 0.3):
                document += 1
            size = int(rng.integers(0, longest + 1))
            keys = [KEYS[i] for i in rng.choice(len(KEYS), size=size, p=weights / weights.sum())]
            text = make_text(rng, [None, *keys], n_t, n_c, whole_numbers)
            if clustered:  # some rows are far better than the rest, so that there is something to prune
                factor = np.float32(3.0 if row % 97 == 0 else 0.1)
                sentence = None if text.sentence is None else text.sentence * factor
                text = replace(text, vectors=text.vectors * factor, sentence=sentence)
            builder.add(document, (0, size), text)
        document += 1
        segment = builder.finish()
        doomed = rng.random(document) < deleted
        alive = ~doomed[segment.row_documents] if deleted else None
        segments.append(LiveSegment(segment, alive))
    return segments


def build(texts: Sequence[TokenVectors], n_t: int, n_c: int, precision: Any = "int8") -> list[LiveSegment]:
    """One segment, a document each."""
    builder = SegmentBuilder(WORDS, n_t, n_c, precision)
    for ordinal, text in enumerate(texts):
        builder.add(ordinal, (0, 1), text)
    return [LiveSegment(builder.finish(), None)]


def prepare(
    query: TokenVectors, segments: Sequence[LiveSegment], profile: ScoringProfile = WORDS, by: Any = "coil"
) -> PreparedQuery:
    return PreparedQuery.of(query, profile.answering(by), Statistics(segments))


def make_query(
    rng: np.random.Generator,
    segments: Sequence[LiveSegment],
    tokens: int,
    whole: bool = False,
    profile: ScoringProfile = WORDS,
    by: Any = "coil",
) -> PreparedQuery:
    """A query of random words, some of which may be in no text."""
    first = segments[0].segment
    keys = rng.choice([*KEYS, "unknown", ""], tokens).tolist()
    text = make_text(rng, keys, first.vectors.dim, first.sentences.dim, whole)
    return prepare(text, segments, profile, by)


def ids_and_scores(rankings: Rankings) -> list[Found]:
    return [[(r.ordinal, r.grid_score, r.segment, r.row) for r in found] for found, _ in rankings]


def expected(
    queries: list[PreparedQuery],
    segments: list[LiveSegment],
    selection: Selection,
    scorer: Any = score_with_numpy,
) -> list[Found]:
    return ids_and_scores(rank_with_scorer(scorer, queries, segments, selection))
