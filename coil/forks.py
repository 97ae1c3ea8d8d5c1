"""Locks that stay usable in a process that was forked while other threads were working.

Those threads do not exist in the new process, so a lock held by one of them would never be released.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload
from weakref import WeakSet

T = TypeVar("T")
_LOCKS: WeakSet[threading.Lock | threading.RLock] = WeakSet()


def make_lock() -> threading.Lock:
    """A lock that is free in a forked process. What it guards must be whole between any two Python steps."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def make_reentrant_lock() -> threading.RLock:
    """The same, but the thread that has it may take it again."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


class cached(Generic[T]):  # noqa: N801  it is used like a property
    """A property that is computed when it is first asked for.

    Before Python 3.12, that of functools has a lock for all objects of a class, which a fork may leave so.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> cached[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached[T] | T:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._compute(instance)
        return found


def _free_locks() -> None:
    """Make them anew. `locked` and `release` would not do: a thread that had waited for a lock and has just
    got it, but has not come back to Python yet, holds one that does not say so."""
    for lock in list(_LOCKS):
        cast("Any", lock)._at_fork_reinit()  # as threading does with its own; the types do not know it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
