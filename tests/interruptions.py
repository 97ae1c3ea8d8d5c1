"""Interrupt the steps of readers and writers at random moments, and count the files that stay open.

    python -m tests.interruptions INDEX SECONDS

It is a process of its own because Python tells and forgets an interruption in a destructor: that would be an
error of the test.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
import time
from pathlib import Path

from coil.storage.lock import writer_lock
from coil.storage.manifest import read_manifest
from coil.storage.stored_segment import StoredSegment


def use(path: Path) -> None:
    """The steps of a writer and of its readers."""
    with writer_lock(path) as lock, lock.held():
        folder = lock.folder
        [entry] = read_manifest(folder).segments
        folder.digest(entry.documents_file)
        StoredSegment(folder, entry).release()
        folder.discard("segments/new")
        folder.write("segments/new", [b"river"])
        folder.sync("segments")
        folder.discard("segments/new")


def main(index: str, seconds: str) -> None:
    """Print how often it was interrupted, and how many files were open before and after."""
    rng, interrupted = random.Random(0), 0
    use(Path(index))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 2e-3))
            use(Path(index))
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.collect()
    print(interrupted, before, len(os.listdir("/proc/self/fd")))


if __name__ == "__main__":
    main(*sys.argv[1:])
