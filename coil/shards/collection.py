"""The documents and the statistics of all shards together, in one state of each shard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from coil.errors import MissingShard, UnknownId
from coil.forks import make_lock
from coil.scores.statistics import Totals, rarity
from coil.shards.calls import Arguments, ShardCalls, missing_shards
from coil.shards.exchange import LookedUp, seconds_left
from coil.shards.routing import Routing
from coil.texts.questions import check_id
from coil.texts.values import Document, clean

Vector = tuple[int | None, ...]
"""The version of each shard; None for one that is missing."""

_REMEMBERED = 1 << 16  # keys
_BLOCK, _BLOCK_BYTES = 64, 1 << 20  # documents, and bytes of their texts, that are read at once
_AHEAD = 1024  # documents that are read along with the requested ones
_KEPT_BYTES = 32 << 20  # of documents that were read ahead


class State:
    """One state of each shard, and the shards that are asked about it. `versions` may be resolved when
    they are first needed: meanwhile queries are encoded."""

    def __init__(
        self, calls: ShardCalls, versions: Vector | Callable[[], Vector], partial: bool = False
    ) -> None:
        self._calls, self._partial = calls, partial
        self._find = versions if callable(versions) else None
        self._versions = None if callable(versions) else versions
        self._finding = make_lock()
        self.routing = Routing(calls.count)

    @property
    def versions(self) -> Vector:
        """The version of each shard; None for a missing one."""
        with self._finding:
            if self._versions is None:
                assert self._find is not None, "versions are known or can be found"
                found = self._find()
                if self._versions is None:  # not found by a signal handler meanwhile
                    self._versions = found
            return self._versions

    @property
    def is_apart(self) -> bool:
        """Whether the shards run in other processes, so that a call to them takes a while."""
        return self._calls.is_apart

    @property
    def numbers(self) -> list[int]:
        """The shards that are available."""
        return [number for number, version in enumerate(self.versions) if version is not None]

    def check_there(self) -> None:
        """Shards without a known version are missing from the start."""
        gone = [number for number, version in enumerate(self.versions) if version is None]
        if gone and (not self._partial or len(gone) == len(self.versions)):
            raise MissingShard(missing_shards(gone, len(self.versions)), "try again later", gone)

    @property
    def waves(self) -> list[list[int]]:
        """Which of the available shards rank first."""
        self.check_there()
        there = set(self.numbers)
        waves = ([number for number in wave if number in there] for wave in self._calls.waves)
        return [wave for wave in waves if wave]

    def ask(
        self,
        method: str,
        *arguments: Any,
        of: Sequence[int] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[int, Any]:
        """Ask all available shards, or some of them, the same question about this state."""
        return self.ask_each(method, lambda _: arguments, of, meanwhile)

    def ask_each(
        self,
        method: str,
        arguments: Arguments,
        of: Iterable[int] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[int, Any]:
        """Ask each shard a question of its own about this state; missing shards are left out."""
        self.check_there()
        versions = self.versions
        there = [n for n in (range(len(versions)) if of is None else of) if versions[n] is not None]
        return self._calls.ask(
            there, method, lambda number: (versions[number], *arguments(number)), meanwhile
        )

    def ask_parts(self, method: str, ordinals: Sequence[int], *arguments: Any) -> list[tuple[list[int], Any]]:
        """Ask about documents, each shard about its own: these, and what it answers."""
        parts = self.routing.split(ordinals)
        answers = self.ask_each(method, lambda number: (parts[number], *arguments), parts)
        return [(parts[number], answer) for number, answer in answers.items()]


class WholeStatistics:
    """N, mentions and document frequencies of all shards, each key asked for once."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._totals: Totals | None = None  # what was asked for so far
        self._lock = make_lock()

    def learn(self, keys: Iterable[str]) -> Totals:
        """The statistics with these keys: all shards are asked at once for those not yet known."""
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
        """The number of rows."""
        return self.learn(()).n_rows

    @property
    def mean_length(self) -> float:
        """The average number of mentions of a row."""
        return self.learn(()).mean_length

    def rows_with(self, key: str) -> int:
        """The number of rows with this key."""
        return self.learn([key]).rows[key]

    def rarity(self, key: str) -> float:
        """The weight of a match of this key, by its rarity."""
        found = self.learn([key])
        return rarity(found.n_rows, found.rows[key])


class ShardedCollection:
    """Documents by their ordinals, in any shard. Those that will be needed are read many at once.

    `hold` keeps the state for longer than a single call, if that is possible, and returns a function to
    release it.
    """

    def __init__(
        self,
        state: State,
        statistics: Callable[[State], WholeStatistics],
        hold: Callable[[Vector], Callable[[], object] | None] = lambda _: None,
    ) -> None:
        self.state, self._find_statistics, self._hold = state, statistics, hold
        self._ids: dict[int, str] = {}
        self._sizes: dict[int, int] = {}
        self._documents: dict[int, Document] = {}
        self._bytes = 0  # of these documents
        self._expected: dict[int, None] = {}  # in the order of the hits, not read yet
        self._holding: list[Callable[[], object]] = []
        self._lock = make_lock()

    @property
    def statistics(self) -> WholeStatistics:
        """The statistics that weights are computed from."""
        return self._find_statistics(self.state)

    def retain(self) -> bool:
        """Keep the state; False if it cannot be kept. See `Shelf`."""
        let_go = self._hold(self.state.versions)
        if let_go is None:
            return False
        self._holding.append(let_go)
        return True

    def release(self) -> None:
        """Undo one `retain`."""
        self._holding.pop()()

    def know(self, ordinals: Sequence[int], found: LookedUp) -> dict[int, Document]:
        """Remember what a shard says about documents; returns the documents whose texts were included."""
        columns = zip(ordinals, found.doc_ids, found.texts, found.fields, strict=False)  # of the first ones
        read = {ordinal: Document(doc_id, text, fields) for ordinal, doc_id, text, fields in columns}
        with self._lock:
            if len(self._ids) > _REMEMBERED:
                self._ids = {}
            self._ids.update(zip(ordinals, found.doc_ids, strict=True))
            if read:
                if self._bytes > _KEPT_BYTES:
                    self._documents, self._sizes, self._bytes = {}, {}, 0
                self._sizes.update(zip(ordinals, found.sizes, strict=True))
                self._bytes += sum(found.sizes[: len(read)])
                self._documents.update(read)
                for ordinal in read:
                    self._expected.pop(ordinal, None)
        return read

    def expect(self, ordinals: Sequence[int], texts: bool) -> None:
        """Register documents that will be fetched; if `texts`, they are read now."""
        wanted = dict.fromkeys(ordinals)
        with self._lock:
            self._expected = {**self._expected, **wanted} if len(self._expected) < _REMEMBERED else wanted
        if texts:
            self._read([ordinal for ordinal in wanted if ordinal not in self._documents])
        else:
            self._ids_of(list(wanted))

    def _ids_of(self, ordinals: Sequence[int]) -> dict[int, str]:
        known = {ordinal: doc_id for ordinal in ordinals if (doc_id := self._ids.get(ordinal)) is not None}
        missing = [ordinal for ordinal in dict.fromkeys(ordinals) if ordinal not in known]
        for some, found in self._ask_parts("look_up", missing, False):
            self.know(some, found)
            known.update(zip(some, found.doc_ids, strict=True))
        return known

    def _read(self, ordinals: Sequence[int]) -> dict[int, Document]:
        """Read documents, as many as the answer includes."""
        read: dict[int, Document] = {}
        for some, found in self._ask_parts("look_up", ordinals, True):
            read |= self.know(some, found)
        return read

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order; faster without texts and fields.

        Other expected documents are read with them: a caller who reads some texts usually reads the next
        ones.
        """
        if not texts:
            ids = self._ids_of(ordinals)
            return [Document(ids[ordinal], "") for ordinal in ordinals]
        known = {o: document for o in ordinals if (document := self._documents.get(o)) is not None}
        missing = [ordinal for ordinal in dict.fromkeys(ordinals) if ordinal not in known]
        if missing:
            with self._lock:
                ahead = list(islice(self._expected, _AHEAD))
            known |= self._read(list(dict.fromkeys((*missing, *ahead))))
        large = [ordinal for ordinal in missing if ordinal not in known]
        for some, found in self._ask_parts("fetch", large):
            known.update(zip(some, found, strict=True))
        return [known[ordinal] for ordinal in ordinals]

    def _ask_parts(self, method: str, ordinals: Sequence[int], *how: Any) -> list[tuple[list[int], Any]]:
        return self.state.ask_parts(method, ordinals, *how) if ordinals else []

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The values of a field, for those of these documents that have it."""
        parts, seconds = self.state.routing.split(ordinals), seconds_left(deadline)
        answers = self.state.ask_each("field_values", lambda number: (name, parts[number], seconds), parts)
        for found in answers.values():
            yield from found

    def blocks(self, ordinals: Sequence[int]) -> Iterator[list[int]]:
        """Split documents into blocks to read at once: small in bytes, or a single document."""
        for begin in range(0, len(ordinals), _BLOCK):
            some = ordinals[begin : begin + _BLOCK]
            block, size = list[int](), 0
            for ordinal, more in zip(some, self.sizes_of(some), strict=True):
                if block and size + more > _BLOCK_BYTES:
                    yield block
                    block, size = [], 0
                block.append(ordinal)
                size += more
            yield block

    def sizes_of(self, ordinals: Sequence[int]) -> list[int]:
        """The bytes of each document's text and fields."""
        known = {o: size for o in ordinals if (size := self._sizes.get(o)) is not None}
        missing = [ordinal for ordinal in dict.fromkeys(ordinals) if ordinal not in known]
        for some, found in self._ask_parts("sizes_of", missing):
            known.update(zip(some, found, strict=True))
        return [known[ordinal] for ordinal in ordinals]

    def find(self, doc_id: object) -> int | None:
        """The ordinal of a document, None if no document has this id."""
        if not isinstance(doc_id, str):
            return None
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
    """The error for an unknown id, with the message of `Snapshot`."""
    return UnknownId(
        f"no document has the id {doc_id!r:.200}", "ids are case-sensitive; copy one from a result"
    )
