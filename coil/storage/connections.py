"""Connection: reads a file of documents with SQLite, by one thread at a time.

A signal handler that reads the index may interrupt the thread that uses a connection. It may use the same
connection, except within a statement that is watched: SQLite allows no other while it asks whether to stop.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator

from coil.errors import ProcessProblem
from coil.forks import is_mine, make_lock


class Watch:
    """Stops a statement at its deadline, on Ctrl-C, or after more steps than any file that we write takes.

    An exception from a signal handler arrives at the first step of what SQLite calls, which would discard it.
    So that is a generator, which continues inside its `try`.
    """

    steps = 20_000  # of SQLite's virtual machine between two checks of the deadline

    def __init__(self, deadline: float | None, most_steps: int) -> None:
        self._deadline, self._left = deadline, most_steps
        self.interruption: BaseException | None = None

    @property
    def is_late(self) -> bool:
        """Whether the deadline is over."""
        return self._deadline is not None and time.monotonic() > self._deadline

    @property
    def is_endless(self) -> bool:
        """Whether the statement has taken more steps than it could."""
        return self._left < 0

    def checks(self) -> Iterator[bool]:
        """Whether to stop, asked between steps; the first time, before the statement."""
        try:
            while True:
                yield self.is_late or self.is_endless
                self._left -= self.steps
        except GeneratorExit:
            raise
        except BaseException as error:
            self.interruption = error
        yield True


class Connection:
    """A connection and its lock."""

    def __init__(self, opened: sqlite3.Connection) -> None:
        self._opened = opened
        self.lock = make_lock()
        self.is_watched = False  # whether the statement that it executes is watched

    @property
    def is_mine(self) -> bool:
        """Whether this thread is using it: a signal handler has interrupted that."""
        return is_mine(self.lock)

    @property
    def opened(self) -> sqlite3.Connection:
        """The connection, for the thread that holds the lock."""
        if self.is_watched:
            raise ProcessProblem(
                "a signal handler has interrupted a filter of another signal handler",
                "do not search in signal handlers that interrupt one another",
            )
        return self._opened
