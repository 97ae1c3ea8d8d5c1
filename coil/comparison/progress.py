"""What hears how a comparison goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Whoever watches: the command line, or nobody."""

    def say(self, text: str) -> None:
        """One line."""

    def stage(
        self, what: str, total: int | None, unit: str
    ) -> AbstractContextManager[Callable[[int], object]]:
        """A part of the work that takes time; what it gives hears how many more units are done."""
