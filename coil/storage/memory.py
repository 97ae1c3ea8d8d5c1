"""Divides the memory budget of a build, so that the process stays within it."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from coil.errors import InputError, TooLittleMemory, how_many

DEFAULT = 2 << 30
MOST_THREADS = 1024  # of a search; each takes memory, and no machine has so many cores
SLACK = 32 << 20  # SQLite's cache, heap fragmentation
LEAST_FREE = 64 << 20  # below this, segments are so small that building crawls
WINDOW_SHARE = 0.15  # of free memory: texts read, texts being encoded, and their vectors
WINDOW_CHARACTERS = 4_000_000
# Measured on segments of a hundred mentions a row: finishing and writing a segment takes, with what was
# collected, 3.0 times that; merging takes 5.9 times the merged files, mapped pages included.
FINISHING = 3.2
MERGING = 6.5
LONGEST_LINE_SHARE = 1 / 32
WATCHED_SHARE = 1 / 4  # of a watch: the ids in the files
READING_SHARE = 1 / 8  # four such lines: a long one as bytes or characters, its text, its other values

_MOST = 1 << 60
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class MemoryPlan:
    """How a budget is divided, in bytes unless named otherwise."""

    budget: int
    collected: int  # vectors and texts, before a segment is made of them
    merged: int  # segment files merged at a time
    window_characters: int  # characters of text encoded at a time
    rewritten: int = _MOST  # largest segment file that is rewritten, alone


def parse_size(text: str) -> int:
    """Parse `512M` or `4G` into bytes; K, M, G and T are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InputError(f"{text!r:.80} is not a size", "write a number and a unit, such as 512M or 4G")
    size = float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " ")
    if size > _MOST:
        raise InputError(f"{text!r:.80} is out of range", "write a size such as 512M or 4G")
    return int(size)


def show_size(size: int) -> str:
    """Format a size; from 1M, so that `parse_size` reads it."""
    if size < 2**20:
        return how_many(size, "byte")
    return f"{size / 2**30:.1f}G" if size >= 10 * 2**30 else f"{-(-size // 2**20)}M"


def default_budget() -> int:
    """Two gigabytes, or half of the machine's memory if that is less."""
    try:
        return min(DEFAULT, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2)
    except (AttributeError, ValueError, OSError):
        return DEFAULT


def longest_line(budget: int) -> int:
    """The longest line that can be read within a budget."""
    return int(budget * LONGEST_LINE_SHARE)


def plan_memory(budget: int, resident: int, n_t: int, kept: float = 0.0) -> MemoryPlan:
    """Divide a budget; `resident` is what the process already uses, mainly for its model, and `kept` the
    share that something else will use."""
    free = all_free = int(budget * (1 - kept)) - resident - SLACK
    if free < LEAST_FREE:
        raise TooLittleMemory(
            f"the memory limit of {show_size(budget)} is too low: the program and its model need "
            f"{show_size(resident)}",
            f"raise --memory to at least {show_size(int((resident + SLACK + LEAST_FREE) / (1 - kept)))}",
        )
    free -= int(budget * READING_SHARE)
    # A token takes its vector, and in the tokenizer some 170 bytes; few texts have more than one for two
    # characters. Three windows of text are around: one being read, one waiting, one being encoded.
    a_character = (4 * n_t + 170) / 2 + 6
    characters = min(WINDOW_CHARACTERS, int(free * WINDOW_SHARE / a_character))
    rest = free - int(characters * a_character)
    collected = int(rest / (1 + FINISHING))  # one segment is being finished while the next is collected
    merged = int((rest - collected) / MERGING)
    return MemoryPlan(budget, collected, merged, characters, int(all_free / MERGING))


def resident_bytes() -> int:
    """The memory that the process uses now or, if the system does not report it, its peak."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError, ValueError):
        return peak_bytes()


def peak_bytes() -> int:
    """The peak memory of the process; 0 if the system does not report it."""
    try:  # `getrusage` may report the peak of the parent process
        status = Path("/proc/self/status").read_text(encoding="utf-8")
        return int(re.findall(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)[0]) * 1024
    except (OSError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
