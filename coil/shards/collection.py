"""The documents and the statistics of all shards together, in one state of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from coil.errors import UnknownId
from coil.forks import make_lock
from coil.scores.statistics import Totals, rarity
from coil.shards.calls import Arguments, ShardCalls
from coil.shards.exchange import LookedUp, seconds_left
from coil.shards.routing import Routing
from coil.texts.questions import check_id
from coil.texts.values import Document, clean

Vector = tuple[int | None, ...]
"""The version of each shard; None for one that is missing."""

_REMEMBERED = 1 << 16  # keys
_BLOCK, _BLOCK_BYTES = 64, 1 << 20  # documents, and bytes of their texts, that are read at once
_LOOKED_UP = 1 << 14  # documents whose ids are remembered


class State:
    """One state of each shard, and the shards that are asked about it."""

    def __init__(self, calls: ShardCalls, versions: Vector) -> None:
        self._calls, self.versions = calls, versions
        self.numbers = [number for number, version in enumerate(versions) if version is not None]
        self.routing = Routing(len(versions))

    @property
    def waves(self) -> list[list[int]]:
        """Which shards rank first, of those that are there."""
        waves = ([number for number in wave if number in self.numbers] for wave in self._calls.waves)
        return [wave for wave in waves if wave]

    def ask(self, method: str, *arguments: Any, of: Sequence[int] | None = None) -> Mapping[int, Any]:
        """Ask all shards that are there, or some, the same thing about this state."""
        return self.ask_each(method, lambda _: arguments, of)

    def ask_each(
        self, method: str, arguments: Arguments, of: Iterable[int] | None = None
    ) -> Mapping[int, Any]:
        """Ask each shard something else about this state; those that are missing are left out."""
        there = [number for number in (self.numbers if of is None else of) if number in self.numbers]
        return self._calls.ask(there, method, lambda number: (self.versions[number], *arguments(number)))

    def ask_parts(self, method: str, ordinals: Sequence[int], *arguments: Any) -> dict[int, Any]:
        """Ask about documents: each shard about its own, which answers in their order. By ordinal."""
        parts = self.routing.split(ordinals)
        answers = self.ask_each(method, lambda number: (parts[number], *arguments), parts)
        return {
            ordinal: answer
            for number, found in answers.items()
            for ordinal, answer in zip(parts[number], found, strict=True)
        }


class WholeStatistics:
    """N, mentions and document frequencies of all shards, each key asked for once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._totals: Totals | None = None  # what was asked for so far
        self._lock = make_lock()

    def learn(self, keys: Iterable[str]) -> Totals:
        """The statistics with these keys: what is not known is asked of all shards at once."""
        wanted = list(dict.fromkeys(keys))
        known = self._totals  # read once: other threads replace it
        rows_of = {} if known is None else known.rows
        missing = [key for key in wanted if key not in rows_of]
        if missing or known is None:
            found = self._state.ask("totals", missing).values()
            rows = {key: sum(of.rows[key] for of in found) for key in missing}
            n_rows, n_mentions = sum(of.n_rows for of in found), sum(of.n_mentions for of in found)
            with self._lock:
                newest = {} if self._totals is None else self._totals.rows
                before = {} if len(newest) > _REMEMBERED else newest
                self._totals = Totals(n_rows, n_mentions, {**before, **rows})
            rows = {key: rows[key] if key in rows else rows_of[key] for key in wanted}
            return Totals(n_rows, n_mentions, rows)
        return Totals(known.n_rows, known.n_mentions, {key: known.rows[key] for key in wanted})

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return self.learn(()).n_rows

    @property
    def mean_length(self) -> float:
        """Mentions of a row on average."""
        return self.learn(()).mean_length

    def rows_with(self, key: str) -> int:
        """How many rows have this key."""
        return self.learn([key]).rows[key]

    def rarity(self, key: str) -> float:
        """How much a match of this key says."""
        found = self.learn([key])
        return rarity(found.n_rows, found.rows[key])


class ShardedCollection:
    """Documents by their ordinals, wherever they are. What will be needed can be asked for at once."""

    def __init__(self, state: State, statistics: WholeStatistics) -> None:
        self.state, self.statistics = state, statistics
        self._looked_up: dict[int, LookedUp] = {}

    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Look documents up that will be fetched: one question to each shard."""
        if len(self._looked_up) > _LOOKED_UP:
            self._looked_up.clear()
        self._look_up(list(dict.fromkeys(ordinals)), texts)

    def _look_up(self, ordinals: Sequence[int], texts: bool) -> None:
        if ordinals:
            self._looked_up.update(self.state.ask_parts("look_up", ordinals, texts))

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order; without texts and fields it is quicker."""
        if not texts:
            self._look_up([ordinal for ordinal in ordinals if ordinal not in self._looked_up], False)
            return [Document(self._looked_up[ordinal].doc_id, "") for ordinal in ordinals]
        known = {
            ordinal: found.document
            for ordinal in ordinals
            if (found := self._looked_up.get(ordinal)) is not None and found.document is not None
        }
        missing = [ordinal for ordinal in dict.fromkeys(ordinals) if ordinal not in known]
        if missing:
            known.update(self.state.ask_parts("fetch", missing))
        return [known[ordinal] for ordinal in ordinals]

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The field of those of these documents that have it."""
        parts, seconds = self.state.routing.split(ordinals), seconds_left(deadline)
        answers = self.state.ask_each("field_values", lambda number: (name, parts[number], seconds), parts)
        for found in answers.values():
            yield from found

    def blocks(self, ordinals: Sequence[int]) -> Iterator[list[int]]:
        """Documents in blocks that are read at once: of few bytes, or a single document."""
        for begin in range(0, len(ordinals), _BLOCK):
            some = ordinals[begin : begin + _BLOCK]
            sizes = self._sizes(some)
            block, size = list[int](), 0
            for ordinal in some:
                if block and size + sizes[ordinal] > _BLOCK_BYTES:
                    yield block
                    block, size = [], 0
                block.append(ordinal)
                size += sizes[ordinal]
            yield block

    def _sizes(self, ordinals: Sequence[int]) -> dict[int, int]:
        known = {
            ordinal: found.size
            for ordinal in ordinals
            if (found := self._looked_up.get(ordinal)) is not None and found.size
        }
        missing = [ordinal for ordinal in dict.fromkeys(ordinals) if ordinal not in known]
        if missing:
            known.update(self.state.ask_parts("sizes_of", missing))
        return known

    def find(self, doc_id: str) -> int | None:
        """The ordinal of a document, None where none has this id."""
        wanted = clean(doc_id)
        shard = self.state.routing.shard_of(wanted)
        for found in self.state.ask("ordinals_of", [wanted], of=[shard]).values():
            ordinal: int | None = found.get(wanted)
            return ordinal
        return None

    def ordinal_of(self, doc_id: str) -> int:
        """The ordinal of a document; an unknown id is an InputError."""
        found = self.find(check_id(doc_id))
        if found is None:
            raise unknown_id(doc_id)
        return found


def unknown_id(doc_id: str) -> UnknownId:
    """No document has this id, as `Snapshot` says it."""
    return UnknownId(
        f"no document has the id {doc_id!r:.200}", "ids are case-sensitive; copy one from a result"
    )
