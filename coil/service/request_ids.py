"""Request ids, from clients or generated here. They identify requests in the log and are not secret."""

from __future__ import annotations

import random
import re

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_random = random.Random()


def choose_request_id(given: str) -> str:
    """The id given by the client if it is valid, otherwise a new one."""
    return given if _ID.fullmatch(given) else make_request_id()


def make_request_id() -> str:
    """A new id.

    Not `uuid4`: that asks the system for random bytes, and after any system call, the event loop waits until
    a search thread lets it run again.
    """
    return f"{_random.getrandbits(128):032x}"
