"""Batches: many queries of one request, answered slice by slice from one state of the index."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect

from coil.errors import DamagedSegment, SearchTimeout
from coil.service.answers import Asked
from coil.service.problems import busy
from coil.service.readable import Readable, Served

_QUERIES = 8  # of a slice: enough for the language model to read together, soon done
_HITS = 320  # of a slice: what is held as Python values at once


def slice_size(asked: Asked) -> int:
    """The number of queries answered by one job."""
    return 1 if asked.matches else max(1, min(_QUERIES, _HITS // asked.hits))


class PinnedIndex:
    """One state of an index for several jobs that run one after another.

    It is pinned by the first job, and released when it is closed and no job uses it: a job that is running
    when its client disconnects or its time is over still reads.
    """

    def __init__(self, served: Served) -> None:
        self._served = served
        self._pin = ExitStack()
        self._index: Readable | None = None
        self._turn = threading.Lock()
        self._used = self._closed = False
        self._damage: DamagedSegment | None = None  # what a job found, for whoever serves the index

    @contextmanager
    def use(self) -> Iterator[Readable]:
        """The index, for one job."""
        with self._turn:
            if self._closed:
                raise ClientDisconnect
            self._used = True
        try:
            if self._index is None:
                self._index = self._pin.enter_context(self._served.reading())
            yield self._index
        except DamagedSegment as error:
            self._damage = error
            raise
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._turn:
            self._used, release = False, self._closed
        if release:
            self._release()

    def close(self) -> None:
        """Declare that no further job will use it."""
        with self._turn:
            release = not self._closed and not self._used
            self._closed = True
        if release:
            self._release()

    def _release(self) -> None:
        kind = None if self._damage is None else type(self._damage)
        self._pin.__exit__(kind, self._damage, None)


class BatchTurns:
    """Answers only as many long batches at once as there are threads for them, in order of arrival.

    If all of them took turns, none would be finished in time.
    """

    def __init__(self, at_once: int, most_waiting: int) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._most_waiting, self._waiting = most_waiting, 0

    @asynccontextmanager
    async def turn(self, deadline: float, slices: int, gone: Callable[[], bool]) -> AsyncIterator[None]:
        """Wait for a turn until the deadline; a batch of one slice needs none. Clients that left get none."""
        if slices == 1:
            yield
            return
        if self._waiting >= self._most_waiting:
            raise busy(f"{self._waiting} batches are already waiting")
        self._waiting += 1
        try:
            await asyncio.wait_for(self._turns.acquire(), max(deadline - time.monotonic(), 0.0))
        except asyncio.TimeoutError:
            raise SearchTimeout(
                "the batch waited for other batches until its time limit", "try again later"
            ) from None
        finally:
            self._waiting -= 1
        try:
            if gone():
                raise ClientDisconnect
            yield
        finally:
            self._turns.release()
