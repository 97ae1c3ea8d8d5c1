"""Progress of long work: a bar on a terminal, otherwise a plain line now and then, as for a log file."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from time import monotonic
from typing import Any, TypeVar

from tqdm import tqdm

FIRST_LINE, EVERY = 10.0, 30.0  # seconds
ENOUGH = 5.0  # seconds of work that a rate can be measured from
BYTES = "B"  # the unit whose numbers are shown as sizes

T = TypeVar("T")


class ProgressBar:
    """What is done, the rate, and the remaining time if the total is known."""

    def __init__(
        self,
        what: str,
        unit: str,
        total: int | None = None,
        before: int = 0,
        leave: bool = True,
        hidden: bool = False,
    ) -> None:
        """`before`: how much earlier runs have done, which does not count for the rate. `leave`: whether the
        bar stays on the terminal."""
        self.what, self.unit, self.done, self.note = what, unit, before, ""
        shows_bar = not hidden and _has_room(sys.stderr)
        self.is_plain = not hidden and not shows_bar
        self._options = {
            "desc": what,
            "unit": BYTES if unit == BYTES else f" {unit}",
            "unit_scale": unit == BYTES,
            "leave": leave,
            "smoothing": 0.05,
            "disable": not shows_bar,
        }
        self._bar = tqdm(total=total, initial=before, **self._options)
        self._total = total
        self._began, self._first = monotonic(), before
        self._due = self._began + FIRST_LINE

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    @property
    def total(self) -> int | None:
        """How much there is to do, None if that is unknown; it may change."""
        return self._total

    @total.setter
    def total(self, total: int | None) -> None:
        self._total = self._bar.total = total

    @property
    def can_estimate(self) -> bool:
        """Whether enough was done to know the rate."""
        return self.done > self._first and monotonic() - self._began >= ENOUGH

    def update(self, count: int = 1) -> None:
        """So much more is done."""
        self.done += count
        self._bar.update(count)
        if self.is_plain and monotonic() >= self._due:
            self._due = monotonic() + EVERY
            with suppress(OSError, ValueError, AttributeError):  # closed, or missing
                sys.stderr.write(f"{self._line()}\n")
                sys.stderr.flush()

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items, counted as they are taken."""
        with self:
            for item in items:
                yield item
                self.update()

    def measure_from(self, done: int) -> None:
        """Measure the rate from now on, with so much done: the time so far was spent on other work."""
        self.done = self._first = done
        self._began = monotonic()
        self._due = self._began + FIRST_LINE
        self._bar.leave = False
        self._bar.close()
        self._bar = tqdm(total=self.total, initial=done, **self._options)

    def annotate(self, note: str) -> None:
        """Show a note after the figures."""
        self.note = note
        self._bar.set_postfix_str(note, refresh=False)

    def _line(self) -> str:
        share = f" ({min(1.0, self.done / self.total):.0%})" if self.total else ""
        parts = [f"{self.what}: {self._amount(self.done)}{share}"]
        if self.can_estimate:
            rate = (self.done - self._first) / (monotonic() - self._began)
            parts.append(self._rate(rate))
            if self.total:
                parts.append(f"{tell_time(max(0, self.total - self.done) / rate)} left")
        return ", ".join(filter(None, [*parts, self.note]))

    def _rate(self, rate: float) -> str:
        if rate < 1 and self.unit != BYTES:
            return f"{self._number(60 * rate)} per minute"
        return f"{self._number(rate)} per second"

    def _amount(self, count: float) -> str:
        return self._number(count) if self.unit == BYTES else f"{self._number(count)} {self.unit}"

    def _number(self, count: float) -> str:
        if self.unit == BYTES:
            return tell_size(count)
        return f"{count:,.1f}" if isinstance(count, float) and count < 10 else f"{count:,.0f}"


def tell_time(seconds: float) -> str:
    """A human-readable duration."""
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


def tell_size(size: float) -> str:
    """A human-readable size."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _has_room(stream: Any) -> bool:
    """Whether a bar fits: on a terminal that knows its width."""
    try:
        return stream.isatty() and os.get_terminal_size(stream.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):  # closed, or no file
        return False
