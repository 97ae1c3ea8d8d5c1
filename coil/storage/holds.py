"""Holds: how many hold something that the last of them closes."""

from __future__ import annotations

from collections import deque

from coil.forks import make_lock


class Holds:
    """Counts who holds something; one does from the beginning, and the last to let go closes it.

    Letting go never waits for a lock, because the garbage collector may do it, at any step of a thread that
    has this lock or another: hits that nobody wants any more hold a snapshot. It is put down first; whoever
    has the lock meanwhile looks again after giving it back, so nothing that is put down stays there.
    """

    def __init__(self) -> None:
        self._count, self._lock = 1, make_lock()
        self._gone: deque[None] = deque()  # those who let go and are not counted yet

    def take(self) -> bool:
        """Hold it as well; False where nobody held it any more."""
        with self._lock:
            is_held = self._count > 0
            self._count += is_held
        self._settle()  # it is not the last that goes here: the caller holds it
        return is_held

    def let_go(self) -> bool:
        """Hold it no more; returns whether nobody does now, which is told once."""
        self._gone.append(None)
        return self._settle()

    def _settle(self) -> bool:
        is_last = False
        while self._gone and self._lock.acquire(blocking=False):
            try:
                while self._gone:
                    self._gone.pop()
                    self._count -= 1
                    is_last = is_last or not self._count
            finally:
                self._lock.release()
        return is_last
