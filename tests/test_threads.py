"""Threads that share what was found, or an open index."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

from coil.hits.hit import Shelf
from coil.indexes.opening import create
from coil.storage import holds
from coil.storage.holds import Holds
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder


class CountedCollection:
    """Documents whose files are closed by the last holder; the first read waits to be told to go on."""

    def __init__(self) -> None:
        self.users = 1
        self.reading, self.go_on = threading.Event(), threading.Event()
        self.was_open: list[bool] = []

    def retain(self) -> bool:
        self.users += self.users > 0
        return self.users > 0

    def release(self) -> None:
        self.users -= 1

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        if not self.reading.is_set():
            self.reading.set()
            assert self.go_on.wait(10)
        self.was_open.append(self.users > 0)
        return [Document(str(ordinal), "a text", {}) for ordinal in ordinals]


def test_the_files_stay_open_while_a_thread_reads_hits_that_another_has_read() -> None:
    collection = CountedCollection()
    shelf = Shelf(collection, range(3))
    collection.release()  # the index is closed: the hits alone hold its files
    slow = threading.Thread(target=shelf.document, args=(0,))
    slow.start()
    assert collection.reading.wait(10)
    assert shelf.document(2).doc_id == "2"  # now all of them are read, and the shelf lets go
    collection.go_on.set()
    slow.join()
    assert collection.was_open == [True, True]
    assert collection.users == 0
    assert shelf.document(0).doc_id == "0"


class CollectsWhenLookedUp(str):
    """A filter that has the garbage collector run while it is looked up, as Python may do at any step."""

    def __hash__(self) -> int:
        gc.collect()
        return super().__hash__()


def test_hits_may_be_collected_while_their_snapshot_is_locked(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}])
        forgotten: list[object] = [index.search("river")]
        forgotten.append(forgotten)  # a circle: only the collector frees it
        del forgotten
        wanted = CollectsWhenLookedUp('id = "a"')
        searching = threading.Thread(
            target=index.search, args=("river",), kwargs={"filter": wanted}, daemon=True
        )
        searching.start()
        searching.join(10)
        assert not searching.is_alive()


def test_whoever_is_in_the_middle_of_it_may_let_go() -> None:
    held = Holds()
    assert held.take()
    with holds._LOCK:  # as the garbage collector would, in the middle of `take`
        assert not held.let_go()
    assert held.take()
    assert not held.let_go()
    assert held.let_go()  # the first holder: now it is closed, once
    assert not held.take()


def test_an_interruption_leaves_nobody_waiting() -> None:
    """Ctrl-C at any step: what another thread does afterwards does not wait for ever."""
    held, random, interrupted = Holds(), Random(1), 0
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(20e-6, 200e-6))
                while True:
                    held.take()
                    held.let_go()
            except KeyboardInterrupt:
                interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 50
    other = threading.Thread(target=held.take, daemon=True)
    other.start()
    other.join(10)
    assert not other.is_alive()


def test_of_many_threads_one_is_the_last_to_let_go() -> None:
    held, lasts = Holds(), []

    def hold_and_let_go() -> None:
        for _ in range(200):
            assert held.take()
            lasts.append(held.let_go())

    threads = [threading.Thread(target=hold_and_let_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(lasts)
    assert held.let_go()
