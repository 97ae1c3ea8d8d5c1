"""Tracking of calls into compiled code, none of which may be running when the process exits or forks.

At exit, Python ends a daemon thread when it returns from compiled code. C code can handle that; C++ and Rust
(onnxruntime, tokenizers, torch, COIL's kernels) cannot, and the process aborts. If a process is forked while
a thread is in a library, including SQLite, its locks and half-finished changes stay as they are in the child.
The same holds for a module that a thread was importing: Python never unlocks it in the child.

A call that needs a lock acquires it within the call, and that lock is acquired nowhere else: a thread that
held it while waiting for a fork would block the calls that the fork waits for.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from types import ModuleType

from coil.errors import ProcessProblem, out_of_threads

PATIENCE = 30.0  # most seconds that a fork or an exit waits for calls, and calls for it
_STEP = 0.001


class Calls:
    """The running calls, by thread.

    A fork and the end of the process wait for them, while other threads start none. A call needs no lock:
    setting and reading are atomic.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()  # threads
        self._only: list[int] = []  # the thread that forks or ends the process
        self._forking = threading.RLock()
        self._is_broken = False

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Guard a call; calls may be nested."""
        me = get_ident()
        is_outermost = me not in self._inside
        try:
            self._inside.add(me)  # before the check: `_await_others` sees this thread, or it waits below
            if is_outermost and (self._must_wait(me) or self._is_broken):
                self._wait(me)
            yield
        finally:  # an interruption may arrive at any step
            if is_outermost:
                self._inside.discard(me)

    def _must_wait(self, me: int) -> bool:
        return self._only not in ([], [me])

    def _wait(self, me: int) -> None:
        until = time.monotonic() + PATIENCE
        while self._must_wait(me):
            self._inside.discard(me)
            if time.monotonic() > until:
                raise ProcessProblem("the process is exiting", "use indexes before the process exits")
            time.sleep(_STEP)  # at the end of the process, Python ends the thread here
            self._inside.add(me)
        if self._is_broken:
            raise ProcessProblem(
                "this process was forked during a call that did not finish",
                "start processes with `spawn`, or fork them before threads search or write",
            )

    def _await_others(self) -> None:
        me = get_ident()
        self._only[:] = [me]
        until = time.monotonic() + PATIENCE
        while self._inside - {me} and time.monotonic() < until:
            time.sleep(_STEP)

    def end(self) -> None:
        """Wait for calls at the end of the process."""
        self._await_others()

    def pause(self) -> None:
        """Wait for calls before a fork."""
        self._await_others()

    def renew(self) -> None:
        """Reset the state in the forked process, which has only one thread."""
        self._is_broken = self._is_broken or bool(self._inside - {get_ident()})
        self._inside.clear()

    def watch_forks(self) -> None:
        """Wait for calls before every fork, and allow them again after it.

        Python discards what a signal handler raises in these steps, and with it the rest of the step. So
        those that must not be missed are single calls of compiled code, which no signal handler interrupts.
        The last ones registered are the first before a fork.
        """
        begin, allow, end = self._forking.acquire, self._only.clear, self._forking.release
        os.register_at_fork(before=self.pause, after_in_parent=allow, after_in_child=self.renew)
        os.register_at_fork(before=begin, after_in_parent=end, after_in_child=allow)
        os.register_at_fork(after_in_child=end)


_calls = Calls()
compiled_code = importing = _calls.guarded


def import_undisturbed(name: str) -> ModuleType:
    """Import a library in a thread that no signal handler interrupts.

    An exception from a signal, such as Ctrl-C, would leave some libraries half-initialized, or end the
    process. Python raises such exceptions in its main thread, so another thread imports the library.
    """
    with importing():
        if name in sys.modules or threading.current_thread() is not threading.main_thread():
            return importlib.import_module(name)
        failed: list[BaseException] = []
        done = threading.Event()

        def load() -> None:
            try:
                importlib.import_module(name)
            except BaseException as error:  # raised in the calling thread, below
                failed.append(error)
            done.set()

        try:
            threading.Thread(target=load, name="coil-import", daemon=True).start()
        except RuntimeError as error:
            raise out_of_threads(error) from error
        try:
            done.wait()
        finally:  # also after Ctrl-C: no fork or exit may happen during the import
            done.wait()
        if failed:
            raise failed[0]
        return importlib.import_module(name)


atexit.register(_calls.end)
if hasattr(os, "register_at_fork"):
    _calls.watch_forks()
