"""Turns: requests start a few at a time, and only a few pipelined requests are processed at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable

from starlette.requests import ClientDisconnect

from coil.service.problems import busy


class Starts:
    """Starts a few requests in each iteration of the event loop.

    Hundreds of requests that arrive at once would otherwise all start before the loop checks its sockets
    again, and likewise at each of their steps; a client that connects meanwhile would wait for all of them.

    Urgent requests have a queue of their own, which gets the first start of each iteration. It gets the
    other starts only if nothing else waits: otherwise a flood of urgent requests would starve all others.
    """

    def __init__(self, at_once: int) -> None:
        """`at_once` is at least 2, so that each queue has a share."""
        self._at_once = at_once
        self._urgent: deque[Callable[[], object]] = deque()
        self._waiting: deque[Callable[[], object]] = deque()
        self._due = False

    def begin(self, start: Callable[[], object], urgent: bool = False) -> None:
        """Call `start` after those before it in its queue have started."""
        (self._urgent if urgent else self._waiting).append(start)
        self._call()

    def _call(self) -> None:
        if not self._due and (self._urgent or self._waiting):
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        for start in range(min(self._at_once, len(self._urgent) + len(self._waiting))):
            queue = (self._urgent or self._waiting) if start == 0 else (self._waiting or self._urgent)
            queue.popleft()()
        self._call()


class Turns:
    """Lets only a few pipelined requests be answered at once, so that the event loop gets to others.

    A client can send thousands of them at once. Each that ends would otherwise start the next one, and a
    client that connects meanwhile would wait for all of them several times.
    """

    def __init__(self, at_once: int, most_waiting: int, seconds: float) -> None:
        self._free, self._most, self._seconds = at_once, most_waiting, seconds
        self._waiting: OrderedDict[Turn, asyncio.Future[None]] = OrderedDict()
        self._due = False

    async def wait(self, turn: Turn) -> None:
        """Wait for a turn: not for long, and not behind many others."""
        if len(self._waiting) >= self._most:
            raise busy(f"{self._most:,} pipelined requests are already waiting")
        waited = self._waiting[turn] = asyncio.get_running_loop().create_future()
        self._call()
        try:
            await asyncio.wait_for(waited, self._seconds)
        except asyncio.TimeoutError:
            raise busy(f"the pipelined request timed out after {self._seconds:g} seconds") from None
        finally:
            self._waiting.pop(turn, None)
            if waited.done() and not waited.cancelled() and waited.exception() is None:
                turn.is_held = True

    def give_back(self) -> None:
        """Let the next one start."""
        self._free += 1
        self._call()

    def leave(self, turn: Turn) -> None:
        """Its client is gone."""
        waited = self._waiting.pop(turn, None)
        if waited is not None and not waited.done():
            waited.set_exception(ClientDisconnect())

    def _call(self) -> None:
        if not self._due and self._free and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        while self._free and self._waiting:
            _, waited = self._waiting.popitem(last=False)
            if not waited.done():
                self._free -= 1
                waited.set_result(None)


class Turn:
    """The turn of one request: from its complete arrival until its answer starts."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._asked = self.is_held = False

    async def take(self) -> None:
        """Wait for it, once; a Problem if that would take too long."""
        if not self._asked:
            self._asked = True
            await self._turns.wait(self)

    def give_back(self) -> None:
        """End it, if it was taken at all."""
        if self.is_held:
            self.is_held = False
            self._turns.give_back()

    def leave(self) -> None:
        """Nobody waits for the answer any more."""
        self._turns.leave(self)
