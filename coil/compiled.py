"""Calls into compiled code, and how they end with the process.

Python ends a daemon thread when it comes back from compiled code while the process ends. C is fine with that;
C++ and Rust (onnxruntime, tokenizers, torch, our own kernels) are not, and the process aborts.
"""

from __future__ import annotations

import atexit
import os
import time
from threading import get_ident
from types import TracebackType

from coil.errors import CoilError

PATIENCE = 30.0  # seconds that the end of the process and a call wait for each other, at most


class CompiledCode:
    """Wraps calls into C++ and Rust; they must not be nested.

    At the end of the process, calls under way are awaited, and other threads than the one that ends it begin
    no more. There is no lock in it that a fork could leave locked: setting and asking are single steps.
    """

    def __init__(self) -> None:
        self._inside: set[int] = set()  # threads
        self._ended_by: int | None = None

    def __enter__(self) -> None:
        me = get_ident()
        self._inside.add(me)  # before asking: either `end` sees this thread, or this thread sees the end
        if self._ended_by not in (None, me):
            self._inside.discard(me)
            time.sleep(PATIENCE)  # as a rule, Python ends the thread here
            raise CoilError("the process is ending", "search and change indexes before it ends")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.discard(get_ident())

    def end(self) -> None:
        """Wait for the calls of other threads, and let none begin."""
        self._ended_by = get_ident()
        until = time.monotonic() + PATIENCE
        while self._inside - {self._ended_by} and time.monotonic() < until:
            time.sleep(0.001)

    def forget(self) -> None:
        """The threads of the parent are not in a process that it forked."""
        self._inside.clear()


compiled_code = CompiledCode()
atexit.register(compiled_code.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=compiled_code.forget)
