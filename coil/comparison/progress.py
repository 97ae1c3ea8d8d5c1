"""The protocol for reporting the progress of a comparison."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Implemented by the command line."""

    def say(self, text: str) -> None:
        """Report one line."""

    def stage(
        self, what: str, total: int | None, unit: str
    ) -> AbstractContextManager[Callable[[int], object]]:
        """Begin a stage; call the result with the number of units done since the last call."""
