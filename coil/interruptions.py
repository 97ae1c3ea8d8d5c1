"""Exceptions of signal handlers, such as a time limit that the program sets with SIGALRM.

Python raises them wherever it is at that moment, so they can arrive inside any `try`. One that is an OSError,
as TimeoutError is, must not be taken for an error of the disk.
"""

from __future__ import annotations

import signal
from functools import partial
from types import CodeType


def let_through(error: BaseException) -> None:
    """Raise an exception again if it comes from a signal handler: it belongs to the program, not to COIL."""
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in handlers:
            raise error
        step = step.tb_next


def _code_of(handler: object) -> CodeType | None:
    """The code of a handler; None for one of the system or in C, such as that of Ctrl-C."""
    while isinstance(handler, partial):
        handler = handler.func
    if not hasattr(handler, "__code__") and callable(handler):  # an object with the method __call__
        handler = handler.__call__
    code = getattr(handler, "__code__", None)
    return code if isinstance(code, CodeType) else None
