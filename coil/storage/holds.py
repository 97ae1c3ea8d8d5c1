"""Holds: counts the references to a resource; the last holder closes it."""

from __future__ import annotations

from coil.forks import make_lock

# One lock for all: the garbage collector may free unreferenced hits, and thereby release a snapshot, at any
# step of any thread. No thread waits for anything else while it holds the lock, and the lock is only acquired
# by `with`: no signal can arrive between acquiring it and the guarantee of its release.
_LOCK = make_lock()


class Holds:
    """Counts the holders of a resource, initially one; the last one to release it closes it."""

    def __init__(self) -> None:
        self._count = 1

    def take(self) -> bool:
        """Add a holder; False if there is none left."""
        with _LOCK:
            is_held = self._count > 0
            self._count += is_held
        return is_held

    def let_go(self) -> bool:
        """Remove a holder; return whether it was the last, which is reported once."""
        with _LOCK:
            left = self._count = self._count - 1
        return left == 0
