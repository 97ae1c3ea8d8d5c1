"""Rankers: the k best documents of segments for prepared queries; native and fused, or with any `Scorer`.

Both return the same documents in the same order with bit-identical scores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.errors import SearchTimeout
from coil.hits.ranking import Ranked, Ranking
from coil.hits.top_k import top_k
from coil.lists.segment import MOST_ROWS, LiveSegment
from coil.scores.native import WIDEST, NativeScorer, native_errors
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import Scorer

RANGE_ROWS = 32_768  # rows whose scores stay in the processor's cache: 256 KiB per query
BATCH_ROWS = 8_192  # the same if many queries share the lists and the cache
BATCH = 8  # this many queries or more are a batch
WORTH_PRUNING = 2000  # rows per requested hit: with fewer, too little can be skipped
NO_THRESHOLD = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Counts:
    """The work that a scorer did for a query."""

    mentions_scored: int = 0
    mentions_skipped: int = 0
    sentences_scored: int = 0
    sentences_skipped: int = 0
    heads_scored: int = 0
    rescored: int = 0  # rows scored again in a more precise form

    def plus(self, other: Counts) -> Counts:
        """The sum of both."""
        return Counts(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Selection:
    """What to find: k documents, with `allowed` ordinals, and a score of `at_least`, before a deadline."""

    k: int
    allowed: NDArray[np.int64] | None = None
    at_least: int = NO_THRESHOLD
    deadline: float | None = None  # of time.monotonic


Rankings = list[tuple[Ranking, Counts]]


def rank_with_scorer(
    scorer: Scorer,
    queries: Sequence[PreparedQuery],
    segments: Sequence[LiveSegment],
    selection: Selection,
) -> Rankings:
    """Rank by scoring every row, segment by segment."""
    return [_rank_one(scorer, query, segments, selection) for query in queries]


def _rank_one(
    scorer: Scorer, query: PreparedQuery, segments: Sequence[LiveSegment], selection: Selection
) -> tuple[Ranking, Counts]:
    found: list[Ranking] = []
    mentions = sentences = 0
    for number, live in enumerate(segments):
        check_deadline(selection)
        scores = scorer(query, live.segment)
        found.append(best_documents(number, live, scores, selection, query.sentence is None))
        of_lists = (live.segment.mentions_at(live.segment.find(key)) for key in query.keys)
        mentions += sum(part.stop - part.start for part in of_lists)
        sentences += live.segment.n_rows if query.sentence is not None else 0
    return Ranking.joined(found, selection.k), Counts(mentions_scored=mentions, sentences_scored=sentences)


def best_documents(
    number: int,
    live: LiveSegment,
    scores: NDArray[np.int64],
    selection: Selection,
    without_zero: bool,
    rows: NDArray[np.intp] | None = None,
) -> Ranking:
    """The k best documents of one segment; the score of a document is that of its best row.

    `rows` are the rows that the scores belong to, if not all of them.
    """
    documents = live.segment.row_documents if rows is None else live.segment.row_documents[rows]
    if not len(documents):
        return Ranking.of([])
    starts = np.flatnonzero(np.diff(documents, prepend=-1))  # first row of each document
    of_document = np.maximum.reduceat(scores, starts)
    mask = mask_of(live, selection.allowed)
    kept = of_document >= selection.at_least
    if mask is not None:
        kept &= mask[starts if rows is None else rows[starts]].astype(bool)
    places = np.flatnonzero(kept)
    found = []
    for place in places[top_k(of_document[places], selection.k, without_zero)].tolist():
        end = starts[place + 1] if place + 1 < len(starts) else len(documents)
        row = int(starts[place] + np.argmax(scores[starts[place] : end]))
        of_segment = row if rows is None else int(rows[row])
        found.append(Ranked(int(of_document[place]), int(documents[row]), number, of_segment))
    return Ranking.of(found)


def mask_of(live: LiveSegment, allowed: NDArray[np.int64] | None) -> NDArray[np.uint8] | None:
    """A byte per row, 0 if the row must not be found; None if all may be."""
    if allowed is None:
        return None if live.alive is None else live.alive.astype(np.uint8)
    mask = is_among(live.segment.row_documents, allowed)
    return (mask if live.alive is None else mask & live.alive).astype(np.uint8)


def check_deadline(selection: Selection) -> None:
    """Raise SearchTimeout after the deadline."""
    if selection.deadline is not None and time.monotonic() > selection.deadline:
        raise SearchTimeout("the search exceeded its time limit", "request fewer hits, or allow more time")


class NativeRanker:
    """Fused scoring and top-k over segments; pruning skips what provably cannot be a hit."""

    def __init__(
        self,
        segments: Sequence[LiveSegment],
        threads: int = 1,
        instruction_set: str | None = None,
        range_rows: int | None = None,
    ) -> None:
        self._range_rows = range_rows
        self._scorer = NativeScorer(instruction_set)
        self.instruction_set = self._scorer.instruction_set
        self._segments = segments
        self._native_segments = [self._scorer.segment(live.segment) for live in segments]
        self._masks = [mask_of(live, None) for live in segments]
        self._threads = threads

    def _usual_range(self, queries: Sequence[PreparedQuery], prune: bool) -> int:
        if prune and all(query.keys for query in queries):  # few scores are written
            return MOST_ROWS if len(self._segments) >= 2 * self._threads or self._threads == 1 else RANGE_ROWS
        few = len(self._segments) < 4 * self._threads and self._threads > 1  # threads divide work by ranges
        return BATCH_ROWS if few or (len(queries) >= BATCH and not prune) else RANGE_ROWS

    def rank(self, queries: Sequence[PreparedQuery], selection: Selection, prune: bool = True) -> Rankings:
        """The k best documents of each query. Without pruning, a list is read once for all its queries."""
        masks = self._masks
        if selection.allowed is not None:
            masks = [mask_of(live, selection.allowed) for live in self._segments]
        check_deadline(selection)
        rankings: Rankings = []
        for dense in (False, True):  # a query without a sentence vector has no hit at exactly 0
            chosen = [query for query in queries if (query.sentence is not None) == dense]
            if len(chosen) not in (0, len(queries)):
                return [pair for query in queries for pair in self.rank([query], selection, prune)]
            if chosen:
                rankings = self._search(chosen, masks, selection, prune, without_zero=not dense)
        return rankings

    def _search(
        self,
        queries: Sequence[PreparedQuery],
        masks: Sequence[NDArray[np.uint8] | None],
        selection: Selection,
        prune: bool,
        without_zero: bool,
    ) -> Rankings:
        left = 0.0 if selection.deadline is None else max(selection.deadline - time.monotonic(), 1e-9)
        k = min(max(selection.k, 0), _n_rows(self._segments))
        if self._range_rows is None and selection.at_least == NO_THRESHOLD:  # tests set `range_rows`
            prune = prune and k * WORTH_PRUNING <= _n_rows(self._segments)
        prune = prune and all(query.floor for query in queries)  # negative contributions have no useful bound
        with native_errors():
            answers: Any = self._scorer.native.search(
                instruction_set=self._scorer.instruction_set,
                segments=[of.read for of in self._native_segments],
                masks=masks,
                queries=[query.native for query in queries],
                k=k,
                prune=prune,
                without_zero=without_zero,
                at_least=selection.at_least,
                threads=self._threads,
                seconds=left,
                range_rows=self._range_rows or self._usual_range(queries, prune),
            )
        if answers is None:
            raise SearchTimeout(
                "the search exceeded its time limit", "request fewer hits, or allow more time"
            )
        return [(Ranking(*columns), Counts(*counts)) for *columns, counts in answers]


def _n_rows(segments: Sequence[LiveSegment]) -> int:
    return sum(live.segment.n_rows for live in segments)


def fits_kernels(segments: Sequence[LiveSegment]) -> bool:
    """Whether the vectors are narrow enough for the native kernels."""
    widths = ((live.segment.vectors.dim, live.segment.sentences.dim) for live in segments)
    return all(max(pair) <= WIDEST for pair in widths)
