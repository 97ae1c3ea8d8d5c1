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
    """A lock that is free in a forked process; what it guards must be consistent after every Python step."""
    lock = threading.Lock()
    _LOCKS.add(lock)
    return lock


def make_reentrant_lock() -> threading.RLock:
    """Like `make_lock`, but the thread that holds the lock may acquire it again."""
    lock = threading.RLock()
    _LOCKS.add(lock)
    return lock


class cached(Generic[T]):  # noqa: N801  it is used like a property
    """A property that is computed on first access.

    Before Python 3.12, `functools.cached_property` has a lock for all objects of a class, which stays locked
    in a process forked at the wrong moment.
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
    """Reset all locks.

    `locked` and `release` are not enough: a thread that has just acquired a lock, but has not returned to
    Python yet, holds a lock that does not report it.
    """
    for lock in list(_LOCKS):
        cast("Any", lock)._at_fork_reinit()  # as threading does with its own locks; it is untyped


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
