"""LocalShards: a sharded index whose shards are all open in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from coil.forks import make_lock
from coil.indexes.index import LeftOut
from coil.shards.calls import LocalCalls
from coil.shards.collection import Vector
from coil.shards.index import ShardedIndex
from coil.shards.ledger import Ledger
from coil.shards.reader import ShardedReader
from coil.shards.whole import WholeManifest
from coil.texts.given import Texts
from coil.vectors.encoder import Encoder

_TRIES = 100


class LocalShards(ShardedIndex):
    """What is pinned stays as it is, however many commits follow, and although the index is closed.

    Each shard has a lock of its own. `claim` holds the whole, so that who comes second is refused before the
    first shard is changed, not after.
    """

    def __init__(
        self,
        manifest: WholeManifest,
        calls: LocalCalls,
        encoder: Encoder,
        claim: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._ledger, self._shards = Ledger(calls, looks=True), calls.shards
        super().__init__(manifest, calls, self._ledger, encoder, close=calls.close, hold=self._hold)
        self._claim, self._changing = claim, make_lock()
        self._counting = make_lock()
        self._pins, self._closing = 0, False

    @property
    def folders(self) -> list[Path]:
        """The folder of each shard."""
        return [shard.index.folder for shard in self._shards]

    @contextmanager
    def pinned(self) -> Iterator[ShardedReader]:
        """The index as it is now, to read several times."""
        for _ in range(_TRIES):  # a commit may take a state away just before it is kept
            still = ShardedReader(self._whole, self._ledger.versions())
            let_go = self._hold(still.versions)
            if let_go is not None:
                break
        try:
            yield still  # of an index that is closed: reading it is an error
        finally:
            if let_go is not None:
                let_go()

    def _hold(self, versions: Vector) -> Callable[[], object] | None:
        """Keep a state of all shards for as long as somebody reads it; None where it is gone."""
        with ExitStack() as kept:
            with self._counting:
                self._pins += 1
            kept.callback(self._unpin)
            for shard, version in zip(self._shards, versions, strict=True):
                if version is None or not shard.keep(version):
                    return None
                kept.callback(shard.let_go, version)
            return kept.pop_all().close

    def _unpin(self) -> None:
        with self._counting:
            self._pins -= 1
            last = self._closing and not self._pins
        if last:
            super().close()

    def close(self) -> None:
        """Let go of the shards as soon as nobody reads them any more."""
        with self._counting:
            first, self._closing = not self._closing, True
            unused = first and not self._pins
        if unused:
            super().close()

    def update(self, documents: Texts, left_out: LeftOut | None = None, *how: Any, **columns: Any) -> int:
        """Add documents, or put them in the place of those with the same ids: see `ShardedIndex.update`."""
        with self._changing_all():
            return super().update(documents, left_out, *how, **columns)

    add = update

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Take documents out: see `ShardedIndex.delete`."""
        with self._changing_all():
            return super().delete(doc_ids, missing)

    @contextmanager
    def _changing_all(self) -> Iterator[None]:
        with self._changing:
            self.refresh()  # a folder that is gone is told as such
            with self._claim():
                yield

    def refresh(self) -> None:
        """See what others have committed; an error tells why that cannot be read. See `Index.refresh`."""
        self._ledger.look()

    def check_sizes(self) -> None:
        """Detect files that are missing or have the wrong size, without reading them."""
        for shard in self._shards:
            shard.index.check_sizes()
