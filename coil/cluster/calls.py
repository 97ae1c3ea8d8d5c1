"""Calls to shards and to their ledger through handles of Ray Serve.

Serve chooses a replica, and notices those that die. A call whose replica dies is sent again: queries change
nothing, and a shard applies the same change only once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from coil.errors import CoilError, MissingShard, ReplacedIndex, tell_added
from coil.forks import make_lock
from coil.shards.calls import Arguments, missing_shards
from coil.shards.collection import Vector
from coil.shards.exchange import Refusal, ShardState
from coil.shards.ledger import Deleted, Updated, together
from coil.texts.values import Document

_T = TypeVar("_T")
LEDGER = "ledger"
PATIENCE = 15.0  # seconds that a shard may take to answer, or to come back
CHANGE_PATIENCE = 120.0
_GONE_PATIENCE = 0.3  # for a shard that did not answer last time
REFUSED_PATIENCE = 1.5  # for a replica that cannot open its shard; it tries again after a second
_AGAIN_SECONDS = 0.05  # before a call is sent to another replica
_LEDGER_PATIENCE = 1.0
_WITHOUT_LEDGER = 2.0  # seconds until a ledger that did not answer is asked again
_CHANGES = ("put", "delete")


def shard_name(number: int) -> str:
    """The name of a shard's deployment."""
    return f"shard-{number}"


def away_from_loops(do: Callable[[], _T]) -> _T:
    """Run something in a thread without an event loop, as Ray requires for blocking: a notebook has one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return do()
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(do).result()


# While Ray Serve makes or reads a configuration, it registers a module for the whole process.
# Two threads that do so at the same time would unregister it for each other.
serving = make_lock()


class Outcome(NamedTuple):
    """What a replica answers: a value, or an error of this library."""

    value: Any = None
    refusal: Refusal | None = None

    def get(self) -> Any:
        """Return the value, or raise the error."""
        if self.refusal is not None:
            raise self.refusal.error()
        return self.value


def applications() -> dict[str, Any]:
    """The status of each application of Ray Serve, by name."""
    from ray import serve

    with serving:
        found: dict[str, Any] = serve.status().applications
    return found


def handle_of(deployment: str, app: str) -> Any:
    """A deployment, called directly from process to process.

    By default, arguments and results go through Ray's object store: that takes twice as long for messages of
    the sizes that searches have.
    """
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)  # importing it has changed the level
    handle = serve.get_deployment_handle(deployment, app_name=app)
    how = {"request_serialization": "pickle", "response_serialization": "pickle"}
    return handle.options(_by_reference=False, **how)


class RayCalls:
    """The shards of an application of Ray Serve. Thread-safe."""

    is_apart = True

    def __init__(self, app: str, count: int, patience: float = PATIENCE) -> None:
        self.count, self._patience = count, patience
        self._handles = [handle_of(shard_name(number), app) for number in range(count)]
        self._gone: set[int] = set()
        # The first quarter of the shards shows what a hit must score, and the others need not search further
        # down. Few shards all rank at once: waiting for one of them would cost more than it saves.
        first = count // 4
        numbers = range(count)
        self.waves = [list(wave) for wave in (numbers[:first], numbers[first:]) if wave]

    def ask(
        self,
        numbers: Sequence[int],
        method: str,
        arguments: Arguments,
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[int, Any]:
        """Call a method of `Shard` on each of these, all at once; returns the answers by number."""
        return away_from_loops(lambda: self._ask(numbers, method, arguments, meanwhile))

    def _ask(
        self,
        numbers: Sequence[int],
        method: str,
        arguments: Arguments,
        meanwhile: Callable[[], object] | None,
    ) -> Mapping[int, Any]:
        patience = CHANGE_PATIENCE if method in _CHANGES else self._patience
        began = time.monotonic()
        found: dict[int, Any] = {}
        missing: list[int] = []
        asked = {number: arguments(number) for number in numbers}
        waiting = {number: self._send(number, method, of) for number, of in asked.items()}
        if meanwhile is not None:
            meanwhile()
        while waiting:
            again: list[int] = []
            for number, response in waiting.items():
                until = began + (_GONE_PATIENCE if number in self._gone else patience)
                outcome = _wait_for(response, until)
                error = None if outcome is None or outcome.refusal is None else outcome.refusal.error()
                is_refused = isinstance(error, MissingShard)  # another replica may have its shard
                if is_refused:
                    until = min(until, began + REFUSED_PATIENCE)
                if (outcome is None or is_refused) and time.monotonic() < until:
                    again.append(number)
                    continue
                if outcome is None or is_refused:
                    missing.append(number)
                    self._gone.add(number)
                    continue
                self._gone.discard(number)
                if error is not None:
                    raise error
                found[number] = outcome.value
            if again:
                time.sleep(_AGAIN_SECONDS)
            waiting = {number: self._send(number, method, asked[number]) for number in again}
        if missing:
            raise MissingShard(missing_shards(missing, self.count), "try again later", missing)
        return found

    def _send(self, number: int, method: str, arguments: tuple[Any, ...]) -> Any:
        return self._handles[number].call.remote(method, arguments)


def _wait_for(response: Any, until: float) -> Outcome | None:
    """What a replica answers; None if it dies first, or takes too long."""
    from grpc.aio import AioRpcError
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        outcome: Outcome = response.result(timeout_s=max(until - time.monotonic(), 0.0))
        return outcome
    except TimeoutError:
        response.cancel()
        return None
    except (AioRpcError, asyncio.CancelledError):  # the replica is being stopped
        return None
    except (RayError, RayServeException) as error:
        cause = getattr(error, "cause", None)
        if cause is not None and not isinstance(cause, RayError | RayServeException):
            raise  # of our own code
        return None


class RayChanges:
    """The ledger of an application, or its shards while the ledger does not answer."""

    def __init__(self, app: str, calls: RayCalls) -> None:
        self._handle = handle_of(LEDGER, app)
        self._app, self._calls = app, calls
        self._skip_until = 0.0

    def _ask(self, method: str, *arguments: Any, patience: float) -> Outcome | None:
        until = time.monotonic() + patience
        return away_from_loops(lambda: _wait_for(self._handle.call.remote(method, arguments), until))

    def find_versions(self) -> Callable[[], Vector]:
        """Start asking for the version of each shard after the last change that has returned, or a later one;
        the returned function waits for the answer.

        Without the ledger, the shards are asked: each looks at what is committed.
        """
        if time.monotonic() < self._skip_until:
            return self._versions_of_shards
        until = time.monotonic() + _LEDGER_PATIENCE
        response = away_from_loops(lambda: self._handle.call.remote("versions", ()))

        def wait() -> Vector:
            outcome = away_from_loops(lambda: _wait_for(response, until))
            if outcome is not None and outcome.refusal is None:
                found: Vector = outcome.value
                return found
            self._skip_until = time.monotonic() + _WITHOUT_LEDGER
            self._check_served()
            return self._versions_of_shards()

        return wait

    def _versions_of_shards(self) -> Vector:
        states: Mapping[int, ShardState]
        everyone = range(self._calls.count)
        try:
            states = self._calls.ask(everyone, "state", lambda _: ())
        except MissingShard as error:
            others = [number for number in everyone if number not in error.numbers]
            states = self._calls.ask(others, "state", lambda _: ())
        return tuple(states[number].version if number in states else None for number in everyone)

    def _check_served(self) -> None:
        """An application that was deleted will not come back."""
        if self._app not in applications():
            raise ReplacedIndex("the index is no longer served by this application", "connect again")

    def update(self, documents: Iterable[Document], go_on: Callable[[], object] | None = None) -> Updated:
        """Add documents, replacing those with the same ids."""
        added, empty, there = 0, dict[str, None](), 0
        try:
            for some in together(documents):
                if go_on is not None:
                    go_on()
                found: Updated = self._change("update", some)
                added, there = added + found.added, found.documents
                for document in some:  # the last document with an id counts
                    if not document.is_empty:
                        empty.pop(document.doc_id, None)
                empty.update((doc_id, None) for doc_id in found.empty)
        except CoilError as error:
            tell_added(error, added)
            raise
        return Updated(added, tuple(empty), there)

    def delete(self, doc_ids: Sequence[str]) -> Deleted:
        """Delete documents."""
        found: Deleted = self._change("delete", list(doc_ids))
        return found

    def _change(self, method: str, values: Sequence[Any]) -> Any:
        """A change, sent again if the ledger dies: replacing documents with themselves changes nothing,
        but only the ledger that deleted documents knows how many there were."""
        until = time.monotonic() + CHANGE_PATIENCE
        while True:
            outcome = self._ask(method, values, patience=until - time.monotonic())
            if outcome is not None:
                return outcome.get()
            if method == "delete" or time.monotonic() > until:
                raise MissingShard(
                    "the ledger of the index died during a change; part of the change may have been applied",
                    "send it again",
                )
            time.sleep(_AGAIN_SECONDS)
