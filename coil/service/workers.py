"""Workers: threads that answer, from one bounded queue, several questions at once where they fit together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from coil.errors import SearchTimeout
from coil.service.problems import busy

MOST_TOGETHER = 32


@dataclass(eq=False)
class Job:
    """One question. Jobs of one `kind` are answered by one call; None stays alone.

    `answer` gets the jobs' values and the seconds that are left, and returns as many results.
    """

    kind: Hashable | None
    value: Any
    answer: Callable[[list[Any], float], list[Any]]
    deadline: float
    asked: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)


class Workers:
    """A fixed number of threads. A lone question never waits for company; company is what waits already."""

    def __init__(self, threads: int, most_waiting: int, heard: Callable[[int, float], object]) -> None:
        """`heard` is told the size of each batch and how long its first job had waited."""
        self._most_waiting, self._heard = most_waiting, heard
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._free = 0
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs nobody has begun."""
        return len(self._waiting)

    def submit(self, job: Job) -> Future[Any]:
        """Queue a job; a full queue is a Problem."""
        with self._changed:
            if self._stopping or len(self._waiting) >= self._most_waiting:
                raise busy(f"{len(self._waiting)} requests are waiting already")
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def stop(self) -> None:
        """Answer what waits, then end."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while jobs := self._take():
            now = time.monotonic()
            self._heard(len(jobs), now - jobs[0].asked)
            due = []
            for job in jobs:
                if not job.future.set_running_or_notify_cancel():
                    continue
                if job.deadline <= now:
                    job.future.set_exception(_late())
                else:
                    due.append(job)
            self._answer(due)

    def _take(self) -> list[Job]:
        """The first job that waits and those that fit to it: this thread's share of them."""
        with self._changed:
            self._free += 1
            while not self._waiting and not self._stopping:
                self._changed.wait()
            share = -(-len(self._waiting) // self._free)
            self._free -= 1
            if not self._waiting:
                return []
            first = self._waiting.popleft()
            if first.kind is None:
                return [first]
            most = min(share, MOST_TOGETHER)
            together = [first]
            for job in [job for job in self._waiting if job.kind == first.kind][: most - 1]:
                self._waiting.remove(job)
                together.append(job)
            return together

    def _answer(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        try:
            left = max(min(job.deadline for job in jobs) - time.monotonic(), 0.0)
            results = jobs[0].answer([job.value for job in jobs], left)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One of them made all fail: each alone, so that only that one does.
            for job in jobs:
                if isinstance(error, SearchTimeout) and job.deadline <= time.monotonic():
                    job.future.set_exception(_late())
                else:
                    self._answer([job])
            return
        for job, result in zip(jobs, results, strict=True):
            job.future.set_result(result)


def _late() -> SearchTimeout:
    return SearchTimeout("the request took longer than it was given", "ask for less, or ask again")
