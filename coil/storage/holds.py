"""Holds: counts the references to a resource; the last holder closes it."""

from __future__ import annotations

from coil.forks import make_reentrant_lock

# One for all, and it may be taken again by the thread that has it: the garbage collector may let go of hits
# that nobody wants any more, and thereby of a snapshot, at any step of any thread. Nothing else is waited for
# while it is held, and it is only taken by `with`: no signal comes between taking it and being sure to give
# it back.
_LOCK = make_reentrant_lock()


class Holds:
    """Counts who holds something; one does from the beginning, and the last to let go closes it."""

    def __init__(self) -> None:
        self._count = 1

    def take(self) -> bool:
        """Hold it as well; False where nobody held it any more."""
        with _LOCK:
            is_held = self._count > 0
            self._count += is_held
        return is_held

    def let_go(self) -> bool:
        """Hold it no more; returns whether nobody does now, which is told once."""
        with _LOCK:
            left = self._count = self._count - 1
        return left == 0
