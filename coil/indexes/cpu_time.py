"""CPU time of this process, of other programs, and how long the same work takes without them."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NamedTuple

_STAT = Path("/proc/stat")  # of Linux; elsewhere, other programs are not seen
_COUNTED, _IDLE = slice(1, 9), slice(3, 5)  # fields of its first line, and those among them without work


class CpuTime(NamedTuple):
    """Seconds: by the clock, of CPU time of this process and of other programs, and of idle cores."""

    clock: float
    ours: float
    others: float
    idle: float

    @classmethod
    def now(cls) -> CpuTime:
        """As of now."""
        ours, (busy, idle) = time.process_time(), machine_seconds()
        return cls(time.monotonic(), ours, busy - ours, idle)

    def until(self, end: CpuTime) -> CpuTime:
        """What was used from here to the end."""
        return CpuTime(*(later - earlier for earlier, later in zip(self, end, strict=True)))

    def seconds_alone(self, cores: int) -> float:
        """How long the work would take without other programs, on at most so many cores.

        Cores that were idle anyway were not taken from this process.
        """
        if not self.ours or not self.clock:
            return self.clock
        taken = max(0.0, self.others - self.idle)
        used, possible = self.ours / self.clock, (self.ours + taken) / self.clock
        return self.clock * min(1.0, used / min(possible, max(used, cores)))


def machine_seconds() -> tuple[float, float]:
    """The seconds that the cores of this machine were busy and idle so far; 0 where that is unknown."""
    try:
        ticks = [int(field) for field in _STAT.read_text().split()[_COUNTED]]
        idle, per_second = sum(ticks[_IDLE]), os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0, 0.0
    return (sum(ticks) - idle) / per_second, idle / per_second
