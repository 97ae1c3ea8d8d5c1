"""Distribution of work over the cores of this machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

MOST_ENCODING = 16  # threads: each needs memory for the activations of a batch


def usable_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def map_on_threads(work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """The results of `work(item)`, in the order of the items. The calling thread is one of the threads.

    After an error or an interruption, no further item is started, and the error is raised once all threads
    have stopped.
    """
    left = deque(enumerate(items))
    found: dict[int, R] = {}
    failed: list[BaseException] = []

    def run() -> None:
        while not failed:
            try:
                place, item = left.popleft()
            except IndexError:
                return
            try:
                found[place] = work(item)
            except BaseException as error:  # raised in the calling thread, below
                failed.append(error)

    helpers: list[Thread] = []
    try:
        for _ in range(min(threads, len(items)) - 1):
            helper = Thread(target=run, name="coil-encode", daemon=True)
            try:
                helper.start()
            except RuntimeError:  # too many threads, or the process is exiting: use the ones that started
                break
            helpers.append(helper)
        run()
    finally:
        left.clear()
        for helper in helpers:
            helper.join()
    if failed:
        raise failed[0]
    return [found[place] for place in range(len(items))]
