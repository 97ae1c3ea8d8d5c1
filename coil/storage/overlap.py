"""Overlap: reads while the caller encodes, and commits while the caller continues."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from coil.errors import out_of_threads

T = TypeVar("T")
_PATIENCE = 0.1  # seconds between checks whether the caller has gone


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """Yield the same items and errors in order; a thread reads one ahead while the caller uses another.

    Closing this iterator stops the thread after its current item.
    """
    waiting: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    gone = threading.Event()

    def put(item: T | None, error: BaseException | None) -> bool:
        while not gone.is_set():
            try:
                waiting.put((item, error), timeout=_PATIENCE)
            except queue.Full:
                continue
            return True
        return False

    def read() -> None:
        try:
            for item in items:
                if not put(item, None):
                    return
        except BaseException as error:  # the caller gets it
            put(None, error)
        else:
            put(None, StopIteration())

    thread = threading.Thread(target=read, name="coil-reading", daemon=True)
    try:
        thread.start()
    except RuntimeError as refusal:
        raise out_of_threads(refusal) from refusal
    try:
        while True:
            item, error = waiting.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            assert item is not None
            yield item
    finally:
        gone.set()
        thread.join()


class Background(Generic[T]):
    """Runs one job at a time in the background; `result` returns its result or raises its error.

    However often the caller is interrupted, no job outlives it: a commit must end before the lock is
    released.
    """

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], T], Future[T]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._job: Future[T] | None = None
        self._last: Future[T] | None = None  # the last one started, whether or not its result was retrieved

    def __enter__(self) -> Background[T]:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the current job, deferring interruptions until it is done."""
        interruption: BaseException | None = None
        while self._last is not None and not self._last.done():
            try:
                wait([self._last])  # not for the thread: an interrupted join marks it as ended
            except BaseException as error:  # Ctrl-C, or from a signal handler of the program
                interruption = error
        self._jobs.put(None)
        if interruption is not None:
            raise interruption
        if self._last is not None and self._thread is not None:
            self._thread.join()

    def start(self, job: Callable[[], T]) -> None:
        """Start a job; the result of the previous one must have been retrieved."""
        assert self._job is None
        if self._thread is None:  # known before it runs, and it runs before it has anything to do
            self._thread = threading.Thread(target=self._work, name="coil-writing", daemon=True)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = None
                raise out_of_threads(error) from error
        self._job = self._last = Future()
        self._jobs.put((job, self._job))

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            job, future = given
            try:
                future.set_result(job())
            except BaseException as error:  # the caller gets it
                future.set_exception(error)

    @property
    def finished(self) -> bool:
        """Whether there is a result that has not been retrieved yet."""
        return self._job is not None and self._job.done()

    def result(self) -> T | None:
        """Wait for the job and return its result; None if there was no job."""
        if self._job is None:
            return None
        job, self._job = self._job, None
        return job.result()
