"""Threads that share what was found, or an open index."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from coil.hits.hit import Shelf
from coil.texts.values import Document


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
