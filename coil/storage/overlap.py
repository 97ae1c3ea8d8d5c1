"""Two things at once: reading while the caller encodes, and committing while the caller goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
_PATIENCE = 0.1  # seconds between looks at whether the caller has gone


def read_ahead(items: Iterator[T]) -> Generator[T]:
    """The same items and errors in the same order; one is read by a thread while the caller has another.

    Closing this iterator stops the thread, after the item it is at.
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
    thread.start()
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
    """Runs one job at a time beside the caller, who hears what came of it, errors too, from `result`."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._job: Future[T] | None = None

    def __enter__(self) -> Background[T]:
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the job at hand: a commit is whole, whatever else went wrong."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)

    def start(self, job: Callable[[], T]) -> None:
        """Begin a job; the one before must have been asked for its result."""
        assert self._job is None
        if self._pool is None:
            self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="coil-writing")
        self._job = self._pool.submit(job)

    @property
    def finished(self) -> bool:
        """Whether there is a result that nobody has asked for yet."""
        return self._job is not None and self._job.done()

    def result(self) -> T | None:
        """What the job gave, once it is done; None if there was no job."""
        if self._job is None:
            return None
        job, self._job = self._job, None
        return job.result()
