"""Locks that stay usable in a process that was forked while other threads were working.

Those threads do not exist in the new process, so a lock held by one of them would never be released.

A signal handler, or a destructor that the garbage collector runs, may use an index at any step of the thread
that it interrupts, even while that thread holds a lock. So that thread may acquire the lock again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, Generic, TypeVar, cast, overload
from weakref import ref

T = TypeVar("T")
# Not a WeakSet: that runs Python code when a lock is freed, and Python discards an exception raised there,
# such as that of Ctrl-C.
_LOCKS: dict[ref[threading.RLock], None] = {}
_MADE = count(1)
_PRUNED_EVERY = 256


def make_lock() -> threading.RLock:
    """A lock that is free in a forked process, and that the thread that holds it may acquire again.

    What it guards must be consistent after every Python step.
    """
    lock = threading.RLock()
    _LOCKS[ref(lock)] = None
    if next(_MADE) % _PRUNED_EVERY == 0:
        for found in list(_LOCKS):
            if found() is None:
                _LOCKS.pop(found, None)  # another thread may have removed it
    return lock


def is_mine(lock: threading.RLock) -> bool:
    """Whether this thread holds the lock."""
    return bool(cast("Any", lock)._is_owned())  # as threading.Condition does; it is untyped


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
    """Reset all locks, except those of the only thread that is left: it releases them itself.

    `locked` and `release` are not enough: a thread that has just acquired a lock, but has not returned to
    Python yet, holds a lock that does not report it.
    """
    for found in list(_LOCKS):
        if (lock := found()) is not None and not is_mine(lock):
            cast("Any", lock)._at_fork_reinit()  # as threading does with its own locks; it is untyped


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_free_locks)
