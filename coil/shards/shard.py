"""Shard: an index with a part of the documents, queried at one of its states, by version.

A query makes several calls to a shard, all about the same state. So a shard keeps its recent states.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import ref

import numpy as np

from coil.errors import SearchTimeout, StateGone
from coil.explanations.explainer import Explainer
from coil.explanations.explanation import Explanation
from coil.forks import is_mine, make_lock
from coil.hits.collection import PartCollection
from coil.hits.rankers import NO_THRESHOLD, WORTH_PRUNING, Rankings, Selection
from coil.hits.ranking import Ranking
from coil.hits.searcher import Searcher
from coil.hits.spelling import CollectionWords
from coil.indexes.index import Index
from coil.indexes.questions import narrow
from coil.scores.statistics import Totals
from coil.shards.exchange import (
    ExplainAsk,
    LookedUp,
    PlacedRanking,
    PlacedRankings,
    Put,
    RankAsk,
    RankReply,
    ShardFacts,
    ShardState,
    deadline_in,
)
from coil.storage.facts import gather_facts, list_lengths
from coil.storage.numbered import Numbered
from coil.storage.snapshot import Snapshot
from coil.texts.values import Document
from coil.tokens.tokenizer import GoOn

KEPT_SECONDS = 60.0  # that a state is kept after a newer one: longer than any request takes
MOST_KEPT = 32  # states
_CATCH_UP_SECONDS = 2.0  # until an announced commit is visible on a shared file system
_LOOK_AGAIN = 0.02
COME_ALONG = 2 << 20  # bytes of documents that are sent at a time
WITH_RANKING = 256 << 10  # of those that may not be among the best of all shards


class Shard:
    """One shard. Thread-safe.

    `follow` updates the folder if its files come from elsewhere; it is called before each look. `commit`
    copies them back after a change. Of the states that nobody has asked to keep, it keeps at most
    `most_kept`.
    """

    def __init__(
        self,
        index: Index,
        number: int,
        follow: Callable[[], object] | None = None,
        commit: Callable[[], object] | None = None,
        most_kept: int = MOST_KEPT,
    ) -> None:
        self.index, self.number, self._most_kept = index, number, most_kept
        self._follow, self._commit = follow, commit
        self._kept: dict[int, Snapshot] = {}
        self._used: dict[int, float] = {}  # their last use, or when a newer one came, whichever is later
        # References without callbacks: Python discards exceptions raised there, such as that of Ctrl-C.
        self._open: dict[int, ref[Snapshot]] = {}  # also those that others hold
        self._keeping: dict[ref[object], int] = {}  # who reads a version for longer than one call
        self._lock, self._looking = make_lock(), make_lock()

    def close(self) -> None:
        """Release the files as soon as nobody reads them any more."""
        none: dict[int, Snapshot] = {}
        with self._lock:
            kept, self._kept = self._kept, none
        for snapshot in kept.values():
            snapshot.release()
        self.index.close()

    # ---- states

    def state(self) -> ShardState:
        """The newest state."""
        if not is_mine(self._looking):  # a signal handler may interrupt a look
            with self._looking:
                self._look()
        with self.index.held() as snapshot:
            self._keep(snapshot)
            return self._tell(snapshot)

    def refresh(self, version: int) -> int:
        """See a version that was committed elsewhere, or a newer one; returns which."""
        is_interrupting = is_mine(self._looking)  # a look or a change of this thread, which cannot go on
        with self._looking:
            until = time.monotonic() + _CATCH_UP_SECONDS
            while True:
                with self.index.held() as snapshot:
                    self._keep(snapshot)
                    if snapshot.version >= version:
                        return snapshot.version
                    late = is_interrupting or time.monotonic() > until
                if late:
                    raise StateGone(
                        f"shard {self.number} should have version {version}, but has {snapshot.version}",
                        "check that its folder is on a file system that all nodes share",
                        snapshot.version,
                        self.number,
                    )
                self._look()
                time.sleep(0 if self.index.version >= version else _LOOK_AGAIN)

    def _look(self) -> None:
        if self._follow is not None:
            self._follow()
        self.index.refresh()

    def _tell(self, snapshot: Snapshot) -> ShardState:
        manifest = snapshot.manifest
        exact_in = self.index.searcher_of(snapshot).exact_in if snapshot.segments else ""
        return ShardState(snapshot.version, manifest.next_ordinal, manifest.n_documents, exact_in)

    def _keep(self, snapshot: Snapshot) -> None:
        """Keep a state that is held, and release those that no caller can still need.

        A signal handler that reads the index may run this between any two calls.
        """
        now, version = time.monotonic(), snapshot.version
        with self._lock:
            before = max(self._kept, default=0)
            if version not in self._kept and snapshot.retain():
                if self._kept.setdefault(version, snapshot) is not snapshot:
                    snapshot.release()
                self._open[version] = ref(snapshot)
                self._used[version] = self._used[before] = now  # others read it until the change is complete
            found = [self._kept.pop(old, None) for old in self._unneeded(now)]
            self._prune()
        for of in found:
            if of is not None:
                of.release()

    def _unneeded(self, now: float) -> list[int]:
        newest = max(self._kept, default=0)
        asked = {version for reader, version in list(self._keeping.items()) if reader() is not None}
        unasked = [version for version in list(self._kept) if version not in asked]
        surplus = len(unasked) - self._most_kept
        return [
            version
            for place, version in enumerate(unasked)
            if version < newest and (place < surplus or now - self._used.get(version, now) > KEPT_SECONDS)
        ]

    def _prune(self) -> None:
        """Forget readers and states that are gone."""
        for reader in [of for of in list(self._keeping) if of() is None]:
            self._keeping.pop(reader, None)
        for version in [version for version, of in list(self._open.items()) if of() is None]:
            self._open.pop(version, None)
        for version in set(self._used) - set(self._kept):
            self._used.pop(version, None)

    def keep(self, version: int, reader: object) -> bool:
        """Keep a state for as long as the reader exists, instead of what it kept before, however many newer
        ones come; False if it is already gone."""
        asking = ref(reader)
        with self._lock:
            if version not in self._kept:
                return False
            self._keeping[asking] = version
            return True

    @contextmanager
    def _at(self, version: int) -> Iterator[Snapshot]:
        """The state of a version; a StateGone says which version there is instead."""
        snapshot = self._take_at(version)
        try:
            snapshot.check_files()
            yield snapshot
        finally:
            snapshot.release()

    def _take_at(self, version: int) -> Snapshot:
        snapshot = self._take(version)
        if snapshot is None:
            found = self.refresh(version)
            snapshot = self._take(version)
            if snapshot is None:
                raise StateGone(
                    f"shard {self.number} has version {found}, but version {version} was requested",
                    "search again",
                    found,
                    self.number,
                )
        return snapshot

    def _take(self, version: int) -> Snapshot | None:
        with self._lock:
            snapshot, opened = self._kept.get(version), self._open.get(version)
            if snapshot is None and opened is not None:
                snapshot = opened()
            if snapshot is None or not snapshot.retain():
                return None
            self._used[version] = time.monotonic()
            return snapshot

    def hold(self, version: int) -> Snapshot | None:
        """A state, held until its `release`, however many newer ones come; None if it is gone."""
        return self._take(version)

    @contextmanager
    def _having(self, version: int, ordinals: Sequence[int]) -> Iterator[Snapshot]:
        """The state of a version; if it is gone, the newest, provided that it has these documents: they
        are the same, because no ordinal is assigned twice."""
        try:
            snapshot = self._take_at(version)
        except StateGone:
            newest = self._newest(ordinals)
            if newest is None:
                raise
            snapshot = newest
        try:
            snapshot.check_files()
            yield snapshot
        finally:
            snapshot.release()

    def _newest(self, ordinals: Sequence[int]) -> Snapshot | None:
        with self.index.held() as snapshot:
            return snapshot if snapshot.has_all(ordinals) and snapshot.retain() else None

    # ---- questions

    def totals(self, version: int, keys: Sequence[str]) -> Totals:
        """What this shard adds to the statistics of the whole."""
        with self._at(version) as snapshot:
            return Totals.of(snapshot.statistics, keys)

    def rank(self, version: int, ask: RankAsk) -> RankReply:
        """The best documents of this shard for each query."""
        deadline = deadline_in(ask.seconds)
        with self._at(version) as snapshot:
            narrowing = ask.narrowing
            allowed = None if narrowing.filter is None else snapshot.select(narrowing.filter, deadline)
            if narrowing.conditions:
                allowed = narrow(snapshot, self.index.encoder, narrowing.conditions, allowed, deadline)
            searcher = self.index.searcher_of(snapshot)
            selection = Selection(ask.k, allowed, ask.at_least, deadline)
            rankings = self._placed(searcher, self._rank(searcher, ask, selection))
            looked_up = None
            if ask.wanted != "nothing":
                most = WITH_RANKING if ask.wanted == "texts" else 0
                looked_up = _look_up(snapshot, rankings.found.ordinals.tolist(), most)
            return RankReply(rankings, looked_up)

    def _rank(self, searcher: Searcher, ask: RankAsk, selection: Selection) -> Rankings:
        queries, thresholds = ask.queries.unpack(), ask.thresholds
        rows = sum(live.segment.n_rows for live in searcher.collection.segments)
        if thresholds is None or max(thresholds, default=NO_THRESHOLD) == NO_THRESHOLD:
            return searcher.rank_prepared(queries, selection)
        if ask.k * WORTH_PRUNING > rows:  # nothing is pruned: lists are read once for all queries
            return searcher.rank_prepared(queries, selection)
        found: Rankings = []
        for query, threshold in zip(queries, thresholds, strict=True):
            at_least = max(ask.at_least, threshold)
            narrowed = Selection(selection.k, selection.allowed, at_least, selection.deadline)
            found += searcher.rank_prepared([query], narrowed)
        return found

    def _placed(self, searcher: Searcher, ranked: Rankings) -> PlacedRankings:
        """A copy with this shard in place of its segments, and with the characters of the rows."""
        columns = [np.concatenate(of) for of in zip(*(found.columns for found, _ in ranked), strict=True)]
        spans = searcher.spans(Ranking(*columns))
        scores, ordinals, _, rows = columns
        shards = np.full(len(rows), self.number, dtype=np.int32)
        return PlacedRankings(
            PlacedRanking(scores, ordinals, shards, rows, spans[:, 0].copy(), spans[:, 1].copy()),
            np.array([len(found) for found, _ in ranked], np.int64),
            np.array([tuple(vars(counts).values()) for _, counts in ranked], np.int64),
        )

    def look_up(self, version: int, ordinals: Sequence[int], texts: bool) -> LookedUp:
        """Ids of documents; with `texts` also sizes, and the first documents as far as they fit."""
        with self._having(version, ordinals) as snapshot:
            return _look_up(snapshot, ordinals, COME_ALONG if texts else 0)

    def fetch(self, version: int, ordinals: Sequence[int]) -> list[Document]:
        """Documents by their ordinals."""
        with self._having(version, ordinals) as snapshot:
            return snapshot.fetch(ordinals)

    def sizes_of(self, version: int, ordinals: Sequence[int]) -> list[int]:
        """The bytes of texts and fields."""
        with self._having(version, ordinals) as snapshot:
            return list(snapshot.sizes_of(ordinals))

    def field_values(
        self, version: int, name: str, ordinals: Sequence[int], seconds: float | None
    ) -> list[tuple[int, Any]]:
        """The values of a field, for those of these documents that have it."""
        with self._at(version) as snapshot:
            return list(snapshot.field_values(name, ordinals, deadline_in(seconds)))

    def has_field(self, version: int, name: str, seconds: float | None) -> bool:
        """Whether any document has a field of this name."""
        with self._at(version) as snapshot:
            return snapshot.has_field(name, deadline_in(seconds))

    def ordinals_of(self, version: int, doc_ids: Sequence[str]) -> dict[str, int]:
        """The ordinals of the ids that exist."""
        with self._at(version) as snapshot:
            return snapshot.ordinals_of(doc_ids)

    def written(self, version: int, key: str, forms: Collection[str]) -> list[tuple[int, str | None]]:
        """How a word is written in the first texts that contain it."""
        with self._at(version) as snapshot:
            return list(CollectionWords(self.index.encoder, snapshot).written(key, forms))

    def explain(self, version: int, ask: ExplainAsk) -> list[Explanation]:
        """Why documents of this shard score what they score in the whole."""
        deadline = deadline_in(ask.seconds)

        def go_on() -> None:
            if deadline is not None and time.monotonic() > deadline:
                raise SearchTimeout("the explanation exceeded its time limit", "request less at a time")

        with self._at(version) as snapshot:
            collection = PartCollection(snapshot, snapshot.segments, ask.totals)
            searcher = Searcher(self.index.encoder, collection)
            explainer = Explainer(searcher, ask.query, ask.by, ask.vectors)
            return list(explainer.explain_many(ask.doc_ids, ask.sentence_parts, go_on))

    def count_documents(self, version: int) -> int:
        """The number of documents."""
        with self._at(version) as snapshot:
            return snapshot.manifest.n_documents

    def facts(self, version: int, seconds: float | None) -> ShardFacts:
        """What is in this shard, counted within this time."""
        deadline = deadline_in(seconds)
        with self._at(version) as snapshot:
            stored = sum(live.segment.n_mentions for live in snapshot.segments)
            lengths = dict(list_lengths(snapshot.segments, deadline))
            facts = gather_facts(snapshot, self.index.is_unfinished, 0, seconds)
            return ShardFacts(facts, lengths, stored)

    # ---- changes

    def put(self, numbered: Numbered, go_on: GoOn | None = None) -> Put:
        """Add documents under ordinals of the whole; a second try adds only what the first did not. What
        `go_on` raises ends it before anything is written."""
        empty: list[str] = []
        with self._looking:
            self._look()
            self.index.put(numbered, empty.extend, go_on)
            return Put(self._committed(), empty)

    def delete(self, doc_ids: Sequence[str]) -> Put:
        """Delete those of the documents that exist."""
        with self._looking:
            self._look()
            self.index.delete(doc_ids)
            return Put(self._committed(), [])

    def _committed(self) -> ShardState:
        if self._commit is not None:
            self._commit()
        with self.index.held() as snapshot:
            self._keep(snapshot)
            return self._tell(snapshot)


def _look_up(snapshot: Snapshot, ordinals: Sequence[int], most: int) -> LookedUp:
    """Ids of documents, with at most `most` bytes of texts and fields."""
    if not most:
        found = snapshot.fetch(ordinals, texts=False)
        return LookedUp([document.doc_id for document in found], [], [], [])
    sizes = list(snapshot.sizes_of(ordinals))
    fit = int(np.searchsorted(np.cumsum(sizes), most, side="right"))
    documents = snapshot.fetch(ordinals[:fit])
    others = snapshot.fetch(ordinals[fit:], texts=False)
    return LookedUp(
        [document.doc_id for document in (*documents, *others)],
        sizes,
        [document.text for document in documents],
        [document.fields for document in documents],
    )
