"""ShardedSearcher: queries are encoded once, weighed by the statistics of all shards, and ranked by each.

What the shards find is merged by the one rule for ties: score, then ordinal, which is the order of insertion
over all shards. So the hits and scores are those of a single index, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coil.hits.answering import Answering
from coil.hits.rankers import NO_THRESHOLD, Counts, Rankings, Selection, check_deadline
from coil.hits.ranking import Ranking
from coil.scores.prepared import PreparedQuery
from coil.shards.collection import ShardedCollection
from coil.shards.exchange import Narrowing, PlacedRanking, RankAsk, seconds_left
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

_NONE, _NO_PLACES = np.zeros(0, np.int64), np.zeros(0, np.int32)
_NOTHING = PlacedRanking(_NONE, _NONE, _NO_PLACES, _NO_PLACES, _NONE, _NONE)


class ShardedSearcher(Answering[ShardedCollection]):
    """Answers from one state of each shard; `narrowing` says which documents may be hits."""

    def __init__(
        self, encoder: Encoder, collection: ShardedCollection, exact_in: str, narrowing: Narrowing
    ) -> None:
        super().__init__(encoder, collection)
        self._exact_in, self._narrowing = exact_in, narrowing

    @property
    def exact_in(self) -> str:
        """The form of the vectors in which hits and scores are exact."""
        return self._exact_in

    def prepare(self, queries: Sequence[TokenVectors], by: By = "coil") -> list[PreparedQuery]:
        """Encoded queries with the weights that the statistics of all shards give them."""
        if self.encoder.config.profile.answering(by).weight == "bm25":
            self.collection.statistics.learn(
                key for query in queries for key in query.keys if key is not None
            )
        return super().prepare(queries, by)

    def rank_prepared(self, queries: Sequence[PreparedQuery], selection: Selection) -> Rankings:
        """The k best of all shards; what k documents of early shards reach, the others must reach as well."""
        assert selection.allowed is None, "shards find out themselves which documents are allowed"
        if not queries:
            return []
        asked = tuple(RankAsk.query(query) for query in queries)
        best: list[PlacedRanking] = [_NOTHING] * len(queries)
        costs = [Counts()] * len(queries)
        for wave in self.collection.state.waves:
            check_deadline(selection)
            seconds = seconds_left(selection.deadline)
            thresholds = tuple(_threshold(found, selection.k) for found in best)
            ask = RankAsk(asked, selection.k, self._narrowing, selection.at_least, thresholds, seconds)
            replies = self.collection.state.ask("rank", ask, of=wave)
            for place in range(len(queries)):
                parts = [replies[number][place] for number in wave]
                best[place] = PlacedRanking.joined(
                    [best[place], *(part.found for part in parts)], selection.k
                )
                for part in parts:
                    costs[place] = costs[place].plus(part.counts)
        return list(zip(best, costs, strict=True))

    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Look these documents up, all at once."""
        self.collection.expect(ordinals, texts)

    def chunks(self, found: Ranking) -> list[tuple[int, int]]:
        """The part of the text that gave each document its score."""
        assert isinstance(found, PlacedRanking)
        return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def _threshold(found: Ranking, k: int) -> int:
    """What a document must score to be among the k best; one that ties may come first."""
    return int(found.grid_scores[-1]) if 0 < k <= len(found) else NO_THRESHOLD
