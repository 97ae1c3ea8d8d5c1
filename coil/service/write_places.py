"""WritePlaces: limits how many changes of an index may wait at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from coil.service.problems import busy


class WritePlaces:
    """A limited number of places for changes, so that waiting documents do not fill the memory."""

    def __init__(self, most: int) -> None:
        self._most, self.taken = most, 0
        self._counting = threading.Lock()

    @contextmanager
    def take(self) -> Iterator[None]:
        """One of the places, taken before a client sends what it wants to change."""
        with self._counting:
            if self.taken >= self._most:
                raise busy(f"{self.taken} changes of this index are already waiting", seconds=5)
            self.taken += 1
        try:
            yield
        finally:
            with self._counting:
                self.taken -= 1
