"""Ledger: changes to a sharded index, one after another, and the resulting versions.

It numbers the documents over all shards, so there is one per index. It stores nothing that the shards do not
have: a ledger that replaces it asks them for their states.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import RLock
from typing import Any

from coil.errors import (
    CoilError,
    IndexLocked,
    MissingShard,
    OrdinalsTaken,
    PartlyChanged,
    how_many,
    reason_of,
    tell_added,
)
from coil.forks import is_mine, make_lock
from coil.shards.calls import ShardCalls, missing_shards
from coil.shards.exchange import Put, ShardState
from coil.shards.routing import Routing
from coil.texts.values import Document, clean

TOGETHER, CHARACTERS = 512, 4 << 20  # documents, and characters of their texts, that are one change at most
_TRIES = 5


@dataclass(frozen=True)
class Updated:
    """An update's result: how many documents were added, which have no text, and how many there are."""

    added: int
    empty: tuple[str, ...]
    documents: int


@dataclass(frozen=True)
class Deleted:
    """A deletion's result: how many documents were deleted, which were missing, and how many there are."""

    deleted: int
    missing: tuple[str, ...]
    documents: int


class Ledger:
    """Changes the shards behind `calls`; threads may call it, and wait for one another.

    With `looks`, it checks each time whether others have changed the shards, for shards in this process.
    """

    def __init__(self, calls: ShardCalls, looks: bool = False) -> None:
        self._calls, self._routing, self._looks = calls, Routing(calls.count), looks
        self._changing = make_lock()
        self._states: Mapping[int, ShardState] = {}  # of the shards that have answered
        self._next_place = 1
        self._look()

    def _look(self) -> None:
        """Ask the shards for their states; those that do not answer are left out."""
        try:
            found = self._calls.ask(range(self._calls.count), "state", lambda _: ())
        except MissingShard as error:
            others = [number for number in range(self._calls.count) if number not in error.numbers]
            found = self._calls.ask(others, "state", lambda _: ())
        self._note(found)

    def _note(self, states: Mapping[int, ShardState]) -> None:
        newest = dict(self._states)
        for number, state in states.items():
            known = newest.get(number)
            if known is None or state.version >= known.version:
                newest[number] = state
        self._states = newest  # in one step: concurrent readers see all of a change or none of it
        next_ordinals = (state.next_ordinal for state in self._states.values())
        self._next_place = max(self._next_place, self._routing.next_place(next_ordinals))

    def versions(self) -> tuple[int | None, ...]:
        """The version of each shard after the last change that has returned, or a later one; None for a shard
        that has never answered.

        Local shards are known: if one cannot be looked at, its last state is the newest there is.
        """
        with suppress(*((CoilError, OSError) if self._looks else ())):
            if self._looks or len(self._states) < self._calls.count:
                self.look()
        states = self._states
        found = (states.get(number) for number in range(self._calls.count))
        return tuple(None if state is None else state.version for state in found)

    def find_versions(self) -> Callable[[], tuple[int | None, ...]]:
        """They are local: see `versions`."""
        found = self.versions()
        return lambda: found

    def look(self) -> None:
        """See what others have committed, unless a change is running, which looks itself."""
        if is_mine(self._changing):  # a callback of the change reads the index
            return
        acquired: list[bool] = []
        try:
            acquired.extend(map(self._changing.acquire, (False,)))  # in one step: see `Handle`
            if True in acquired:
                self._look()
        finally:
            if True in acquired:
                self._changing.release()

    def update(self, documents: Iterable[Document], go_on: Callable[[], object] | None = None) -> Updated:
        """Add documents, replacing those with the same ids; they are searchable when this returns. `go_on`
        is called between changes, and by shards close by within them; what it raises ends the call."""
        added, empty = 0, dict[str, None]()
        check_change(self._changing)
        with self._changing:
            if self._looks:  # report an unreachable shard before another one is changed
                self._look()
            try:
                for some in together(documents):
                    if go_on is not None:
                        go_on()
                    self._check()
                    found = self._put(some, go_on)
                    added += sum(not document.is_empty for document in some)
                    for document in some:  # the last document with an id counts
                        if not document.is_empty:
                            empty.pop(document.doc_id, None)
                    empty.update((doc_id, None) for put in found for doc_id in put.empty)
            except CoilError as error:
                tell_added(error, added)
                raise
            return Updated(added, tuple(empty), self._count())

    def _check(self) -> None:
        """Without every shard, the order in which documents were added is not known."""
        if len(self._states) < self._calls.count:
            self._look()
        missing = [number for number in range(self._calls.count) if number not in self._states]
        if missing:
            raise MissingShard(
                f"nothing was changed: {missing_shards(missing, self._calls.count)}",
                "try again later",
                missing,
            )

    def _put(self, documents: Sequence[Document], go_on: Callable[[], object] | None) -> list[Put]:
        """One change. Of documents with the same id the last counts, as in an update of a single index."""
        last = {document.doc_id: place for place, document in enumerate(documents)}
        for attempt in range(_TRIES):
            first, self._next_place = self._next_place, self._next_place + len(documents)
            parts: dict[int, list[tuple[int, Document]]] = {}
            for place in sorted(last.values()):
                shard = self._routing.shard_of(documents[place].doc_id)
                ordinal = self._routing.ordinal(first + place, shard)
                parts.setdefault(shard, []).append((ordinal, documents[place]))
            try:
                return self._change("put", parts, *([go_on] if self._looks else []))
            except OrdinalsTaken:  # by the previous ledger, whose last change has finished since
                if attempt + 1 == _TRIES:
                    raise
                self._look()
        raise AssertionError("the last try returns or raises")

    def delete(self, doc_ids: Sequence[str]) -> Deleted:
        """Delete documents."""
        check_change(self._changing)
        with self._changing:
            self._check()
            wanted = list(dict.fromkeys(clean(doc_id) for doc_id in doc_ids))
            parts: dict[int, list[str]] = {}
            for doc_id in wanted:
                parts.setdefault(self._routing.shard_of(doc_id), []).append(doc_id)
            # Looked up before: a shard that dies after its commit is asked again, and finds nothing then.
            versions = {number: self._states[number].version for number in parts}
            there = self._calls.ask(
                list(parts), "ordinals_of", lambda number: (versions[number], parts[number])
            )
            known = {doc_id for found in there.values() for doc_id in found}
            kept = {number: [one for one in part if one in known] for number, part in parts.items()}
            self._change("delete", {number: part for number, part in kept.items() if part})
            missing = tuple(doc_id for doc_id in wanted if doc_id not in known)
            return Deleted(len(known), missing, self._count())

    def _change(self, method: str, parts: Mapping[int, Any], *how: Any) -> list[Put]:
        """Change some shards, all at once, and record their new states."""
        before = {number: self._states[number].version for number in parts}
        try:
            found: Mapping[int, Put] = self._calls.ask(
                list(parts), method, lambda number: (parts[number], *how)
            )
        except CoilError as error:
            self._look()  # some of them may have changed anyway
            made = sum(self._states[number].version > version for number, version in before.items())
            if not made or isinstance(error, OrdinalsTaken):
                raise
            raise PartlyChanged(
                f"the change was made in {made} of the {how_many(len(parts), 'shard')} that it concerns: "
                f"{reason_of(error)}",
                "make it again; what is there already is replaced",
            ) from error
        self._note({number: put.state for number, put in found.items()})
        return list(found.values())

    def _count(self) -> int:
        return sum(state.documents for state in self._states.values())


def check_change(lock: RLock) -> None:
    """Refuse a change within a change that this thread is making: it cannot be waited for.

    The lock itself is acquired with a plain `with`, which no exception of a signal handler can leave locked.
    """
    if is_mine(lock):
        raise IndexLocked(
            "the index is being changed by this thread",
            "make this change after the other one; you can search in the meantime",
        )


def together(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Split documents into parts of bounded size."""
    part: list[Document] = []
    characters = 0
    for document in documents:
        part.append(document)
        characters += document.size
        if len(part) == TOGETHER or characters >= CHARACTERS:
            yield part
            part, characters = [], 0
    if part:
        yield part
