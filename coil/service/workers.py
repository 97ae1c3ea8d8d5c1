"""Workers: threads that answer jobs from a bounded queue, and group compatible jobs.

Jobs are quick (a plain search, a document) or slow (a filter, an explanation, a slice of a batch, a search
for a long text). Quick jobs come first, and slow ones never occupy all threads, so that a plain search does
not wait for them.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from coil.errors import SearchTimeout
from coil.service.problems import busy

MOST_TOGETHER = 32
MOST_CHARACTERS = 4_000  # of the queries that are answered by one call: long ones take long, and others wait
SECONDS_TO_END = 5.0  # for threads whose clients have been answered or given up
_PATIENCE = 0.5  # seconds after which a slow job takes turns with quick ones, so that it is answered at all


@dataclass(eq=False)
class Job:
    """One request. Up to `together` jobs of one `kind` are answered by one call; None is answered alone.

    `size` is the characters to be read, of which a call has at most MOST_CHARACTERS, unless one job has more.

    `answer` gets the jobs' values and the seconds that are left, and returns as many results; an exception
    among them is the result of that job alone.
    """

    kind: Hashable | None
    value: Any
    answer: Callable[[list[Any], float], list[Any]]
    deadline: float
    slow: bool = False
    together: int = MOST_TOGETHER
    size: int = 0
    asked: float = field(default_factory=time.monotonic)
    future: Future[Any] = field(default_factory=Future)


class Workers:
    """A fixed number of threads. A single job is never delayed to form a group: only waiting jobs join it."""

    def __init__(self, threads: int, most_waiting: int, heard: Callable[[int, float], object]) -> None:
        """`heard` is called with the size of each group and how long its first job had waited."""
        self._most_waiting, self._heard = most_waiting, heard
        self._most_slow_waiting = max(most_waiting * 3 // 4, 1)  # the other places are for quick jobs
        self._quick: deque[Job] = deque()
        self._slow: deque[Job] = deque()
        self._changed = threading.Condition()
        self._free = 0
        self.slow_places = max(threads - 1, 1)  # threads that slow jobs may occupy
        self._slow_running = 0
        self._slow_was_last = False
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._work, name=f"search-{i}", daemon=True) for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """The number of jobs that no thread has started."""
        return len(self._quick) + len(self._slow)

    def submit(self, job: Job, admitted: bool = False) -> Future[Any]:
        """Queue a job; a full queue is a Problem, unless the job continues something already admitted."""
        with self._changed:
            full = self.waiting >= self._most_waiting or (
                job.slow and len(self._slow) >= self._most_slow_waiting
            )
            if self._stopping or (full and not admitted):
                raise busy(f"{self.waiting} requests are already waiting")
            (self._slow if job.slow else self._quick).append(job)
            self._changed.notify()
        return job.future

    def stop(self, seconds: float = SECONDS_TO_END) -> int:
        """Answer waiting jobs, then end; returns how many threads still run after this many seconds."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0.0))
        return sum(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while jobs := self._take():
            slow = jobs[0].slow
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
            del jobs, due  # or what they hold would stay in memory until the next jobs
            if slow:
                with self._changed:
                    self._slow_running -= 1
                    self._changed.notify()

    def _take(self) -> list[Job]:
        """The first job of a queue and those compatible with it: this thread's share of them."""
        with self._changed:
            self._free += 1
            while (queue := self._next_queue()) is None and not (self._stopping and not self.waiting):
                self._changed.wait()
            free, self._free = self._free, self._free - 1
            if queue is None:
                self._changed.notify_all()  # the others can end, too
                return []
            first = queue.popleft()
            together = [first]
            if first.kind is not None:
                share = -(-(len(queue) + 1) // free)
                most, room = min(share, first.together), MOST_CHARACTERS - first.size
                for job in [job for job in queue if job.kind == first.kind][: most - 1]:
                    if (room := room - job.size) < 0:
                        break
                    queue.remove(job)
                    together.append(job)
            self._slow_running += first.slow
            self._slow_was_last = first.slow
            if self.waiting:
                self._changed.notify()
            return together

    def _next_queue(self) -> deque[Job] | None:
        """The queue of the next job; None if no waiting job may be started by this thread."""
        slow = self._slow if self._slow and self._slow_running < self.slow_places else None
        if not self._quick:
            return slow
        if slow is None or self._slow_was_last or time.monotonic() - slow[0].asked < _PATIENCE:
            return self._quick
        return slow

    def _answer(self, jobs: list[Job]) -> None:
        if not jobs:
            return
        try:
            left = max(min(job.deadline for job in jobs) - time.monotonic(), 0.0)
            results = jobs[0].answer([job.value for job in jobs], left)
        except Exception as error:
            _let_go(error)
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One of them made all fail: retry each alone, so that only that one fails.
            for job in jobs:
                if isinstance(error, SearchTimeout) and job.deadline <= time.monotonic():
                    job.future.set_exception(_late())
                else:
                    self._answer([job])
            return
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)


def _let_go(error: BaseException) -> None:
    """Free what the frames of an error hold, such as texts that were too many for an answer."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__context__


def _late() -> SearchTimeout:
    return SearchTimeout("the request exceeded its time limit", "request less at a time, or try again later")
