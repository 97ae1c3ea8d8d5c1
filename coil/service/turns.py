"""Turns: requests that were sent ahead of answers begin few at a time."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets few of the requests begin that were sent ahead of answers, so that the event loop gets to others.

    A client can send thousands of them at once. Each that ends would otherwise start the next one, and
    whoever connects meanwhile would wait for all of them several times.
    """

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._due = False

    async def __aenter__(self) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._call()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                await self.__aexit__()
            raise

    async def __aexit__(self, *_: object) -> None:
        """Let the next one begin."""
        self._free += 1
        self._call()

    def _call(self) -> None:
        if not self._due and self._free and self._waiting:
            self._due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._due = False
        while self._free and self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._free -= 1
                turn.set_result(None)
