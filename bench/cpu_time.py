"""CPU seconds of this process with its descendants, and of the whole machine, from Linux's /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coil.indexes.cpu_time import machine_seconds

_TICKS = os.sysconf("SC_CLK_TCK")  # per second


class CpuTime(NamedTuple):
    """In seconds."""

    ours: float
    of_all: float

    @classmethod
    def now(cls) -> CpuTime:
        """As used so far. Processes that have ended are not among ours, but they count for the machine."""
        parents, seconds = dict[int, int](), dict[int, float]()
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):  # it has ended
                fields = path.read_text().rpartition(")")[2].split()
                pid = int(path.parent.name)
                parents[pid] = int(fields[1])
                seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        ours, found = set[int](), {os.getpid()}
        while found:
            ours |= found
            found = {pid for pid, parent in parents.items() if parent in found}
        busy, _ = machine_seconds()
        return cls(sum(seconds[pid] for pid in ours), busy)
