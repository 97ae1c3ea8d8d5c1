"""ShardedSearcher: queries are encoded once, weighted by the statistics of all shards, and ranked by each.

The shards' results are merged by the same rule for ties: score, then ordinal, which is the order of insertion
over all shards. So the hits and scores are those of a single index, to the last bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from coil.hits.answering import Answering, check_parts
from coil.hits.rankers import NO_THRESHOLD, Rankings, Selection, check_deadline
from coil.hits.ranking import Ranking
from coil.scores.prepared import PreparedQuery
from coil.shards.collection import ShardedCollection
from coil.shards.exchange import (
    Narrowing,
    PackedQueries,
    PlacedRanking,
    PlacedRankings,
    RankAsk,
    RankReply,
    Wanted,
    seconds_left,
)
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder, read_queries
from coil.vectors.token_vectors import TokenVectors

_WITH_IDS = 100  # hits of a query whose ids come with the ranking
_WITH_TEXTS = 256  # hits of all queries and shards whose texts come with the ranking
_FEW = 8  # queries at most whose words are counted while they are encoded


class ShardedSearcher(Answering[ShardedCollection]):
    """Answers from one state of each shard; `narrowing` says which documents may be hits."""

    def __init__(
        self, encoder: Encoder, collection: ShardedCollection, precision: str, narrowing: Narrowing
    ) -> None:
        super().__init__(encoder, collection)
        self._precision, self._narrowing = precision, narrowing

    @property
    def exact_in(self) -> str:
        """The form of the vectors in which hits and scores are exact."""
        return self._precision.rpartition("+")[2] if self.collection.statistics.n_rows else ""

    def encode(
        self, queries: Sequence[str], by: By, selection: Selection | None = None
    ) -> list[TokenVectors]:
        """The vectors of queries. Meanwhile, shards in other processes count the words if there are few
        queries, whose answers would otherwise take noticeably longer."""
        profile = check_parts(self.encoder.config, by)
        encodes = profile.beta != 0.0 or profile.uses_sentence
        apart = self.collection.state.is_apart and len(queries) <= _FEW
        if not (encodes and apart and profile.weight == "bm25"):
            return super().encode(queries, by, selection)
        with ThreadPoolExecutor(1) as pool:
            counting = pool.submit(self._count_words, queries)
            vectors = super().encode(queries, by, selection)
            counting.result()
            return vectors

    def _count_words(self, queries: Sequence[str]) -> None:
        words = read_queries(self.encoder, queries)
        self.collection.statistics.learn(key for query in words for key in query.keys if key is not None)

    def prepare(self, queries: Sequence[TokenVectors], by: By = "coil") -> list[PreparedQuery]:
        """Encoded queries with the weights that the statistics of all shards give them."""
        profile = check_parts(self.encoder.config, by)
        keys: Iterable[str] = ()
        if profile.weight == "bm25":
            keys = (key for query in queries for key in query.keys if key is not None)
        totals = self.collection.statistics.learn(keys)
        return [PreparedQuery.of(query, profile, totals) for query in queries]

    def rank_prepared(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """The k best of all shards; a score that k documents of early shards reach bounds the others."""
        assert selection.allowed is None, "shards find out themselves which documents are allowed"
        if not queries:
            return []
        asked, wanted = PackedQueries.of(queries), self._wanted(len(queries), selection.k)
        best: PlacedRankings | None = None
        for wave in self.collection.state.waves:
            check_deadline(selection)
            seconds = seconds_left(selection.deadline)
            thresholds = None if best is None else _thresholds(best, selection.k)
            ask = RankAsk(
                asked, selection.k, self._narrowing, selection.at_least, thresholds, seconds, wanted
            )
            replies: Mapping[int, RankReply] = self.collection.state.ask(
                "rank", ask, of=wave, meanwhile=lambda: [query.own_score for query in queries]
            )
            for reply in replies.values():
                if reply.looked_up is not None:
                    self.collection.know(reply.rankings.found.ordinals.tolist(), reply.looked_up)
            parts = [replies[number].rankings for number in wave]
            best = PlacedRankings.joined(parts if best is None else [best, *parts], selection.k)
        assert best is not None, "there is a shard to ask"
        return list(best.each())

    def _wanted(self, queries: int, k: int) -> Wanted:
        """What comes with a ranking, though most of it is not among the best of all shards: texts if there
        are few, which saves another call."""
        if queries * k * len(self.collection.state.numbers) <= _WITH_TEXTS:
            return "texts"
        return "ids" if k <= _WITH_IDS else "nothing"

    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Look these documents up, all at once."""
        self.collection.expect(ordinals, texts)

    def chunks(self, found: Ranking) -> list[tuple[int, int]]:
        """The passage of the text that gave each document its score."""
        assert isinstance(found, PlacedRanking)
        return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def _thresholds(best: PlacedRankings, k: int) -> tuple[int, ...]:
    """What a document must score to be among the k best of each query; one that ties may come first."""
    if k <= 0:
        return (NO_THRESHOLD,) * len(best.lengths)
    scores, ends = best.found.grid_scores, np.cumsum(best.lengths)
    return tuple(
        int(scores[end - 1]) if length >= k else NO_THRESHOLD
        for end, length in zip(ends.tolist(), best.lengths.tolist(), strict=True)
    )
