"""ServedShards: a sharded index on a cluster, with many readers and one writer."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from coil.errors import CoilError, DamagedSegment, reason_of
from coil.service.readable import Changeable
from coil.service.write_places import WritePlaces
from coil.shards.index import ShardedIndex
from coil.shards.reader import ShardedReader

_log = logging.getLogger("coil.service")


class ServedShards:
    """One sharded index by its name. Its shards manage their files themselves."""

    def __init__(
        self,
        name: str,
        index: ShardedIndex,
        writes_waiting: int,
        close: Callable[[], object] | None = None,
    ) -> None:
        """`close` releases whatever provides the shards, after the last change."""
        self.name, self.index, self._close = name, index, close
        self.trouble = self.damage = ""
        self._documents = 0
        self._writer = ThreadPoolExecutor(1, thread_name_prefix=f"write-{name}")
        self._places = WritePlaces(writes_waiting)

    @contextmanager
    def reading(self) -> Iterator[ShardedReader]:
        """The newest state of every shard."""
        with self.index.pinned() as pinned:
            yield pinned

    def count_documents(self) -> int:
        """The number of documents, or the number before shards went missing."""
        with suppress(CoilError):
            self._documents = len(self.index)
        return self._documents

    def place_to_write(self) -> AbstractContextManager[None]:
        """One of the limited places for changes."""
        return self._places.take()

    def write(self, change: Callable[[Changeable], Any]) -> Future[Any]:
        """Queue a change behind those waiting; it is searchable when the future is done."""
        return self._writer.submit(lambda: change(self.index))

    def take_over(self, newer: ShardedIndex) -> None:
        """Serve another index from now on; running requests are answered from the previous one."""
        self.index = newer

    @property
    def writes_waiting(self) -> int:
        """The number of changes waiting or running."""
        return self._places.taken

    def check(self) -> None:
        """Check that the shards answer: problems are recorded in `trouble` and `damage`."""
        self.trouble = self.damage = ""
        try:
            len(self.index)
        except DamagedSegment as error:
            self._note("damaged", error)
            self.damage = "is damaged"
        except CoilError as error:
            self._note("cannot be reached", error)
            self.trouble = "has shards that cannot be reached"

    def _note(self, what: str, error: CoilError) -> None:
        _log.error(what, extra={"index": self.name, "reason": reason_of(error)})

    def close(self) -> None:
        """Finish pending writes, and release the shards."""
        self._writer.shutdown(wait=True)
        self.index.close()
        if self._close is not None:
            self._close()
