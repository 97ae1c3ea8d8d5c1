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
    """What is pinned does not change, however many commits follow, even if the index is closed.

    Each shard has a lock of its own. `claim` locks the whole, so that a second writer is refused before the
    first shard is changed, not after.
    """

    def __init__(
        self,
        manifest: WholeManifest,
        calls: LocalCalls,
        encoder: Encoder,
        claim: Callable[[], AbstractContextManager[None]],
        check_whole: Callable[[], object],
    ) -> None:
        """`check_whole` raises an error unless the manifest of the whole still exists."""
        self._ledger, self._shards = Ledger(calls, looks=True), calls.shards
        super().__init__(manifest, calls, self._ledger, encoder, close=calls.close, hold=self._hold)
        self._claim, self._changing, self._check_whole = claim, make_lock(), check_whole
        self._counting = make_lock()
        self._pins, self._closing = 0, False

    @property
    def folders(self) -> list[Path]:
        """The folder of each shard."""
        return [shard.index.folder for shard in self._shards]

    @contextmanager
    def pinned(self) -> Iterator[ShardedReader]:
        """The current state of the index, for several reads."""
        with self._counting:
            self._pins += 1
        try:
            still, kept = self._keep()
            with kept:
                yield still
        finally:
            with self._counting:
                self._pins -= 1
                last = self._closing and not self._pins
            if last:
                super().close()

    def _keep(self) -> tuple[ShardedReader, ExitStack]:
        """A reader, and what releases its states. A commit may remove a state just before it is kept."""
        for _ in range(_TRIES):
            still = ShardedReader(self._whole, self._ledger.versions())
            with ExitStack() as kept:
                for shard, version in zip(self._shards, still.versions, strict=True):
                    if version is None or not shard.keep(version):
                        break
                    kept.callback(shard.let_go, version)
                else:
                    return still, kept.pop_all()
        return still, ExitStack()  # the index is closed: reading it is an error

    def _hold(self, versions: Vector) -> Callable[[], object] | None:
        """Hold the files of a state for as long as somebody may read them; None if it is gone.

        The garbage collector may release them, at any step of any thread: only the holds of snapshots allow
        that.
        """
        with ExitStack() as held:
            for shard, version in zip(self._shards, versions, strict=True):
                snapshot = None if version is None else shard.hold(version)
                if snapshot is None:
                    return None
                held.callback(snapshot.release)
            return held.pop_all().close

    def close(self) -> None:
        """Release the shards as soon as nobody reads them any more."""
        with self._counting:
            first, self._closing = not self._closing, True
            unused = first and not self._pins
        if unused:
            super().close()

    def update(self, documents: Texts, left_out: LeftOut | None = None, *how: Any, **columns: Any) -> int:
        """Add documents, replacing those with the same ids: see `ShardedIndex.update`."""
        with self._changing_all():
            return super().update(documents, left_out, *how, **columns)

    add = update

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Delete documents: see `ShardedIndex.delete`."""
        with self._changing_all():
            return super().delete(doc_ids, missing)

    @contextmanager
    def _changing_all(self) -> Iterator[None]:
        with self._changing:
            self.refresh()  # report a missing folder as such
            with self._claim():
                yield

    def refresh(self) -> None:
        """See what others have committed; an error says why it cannot be read. See `Index.refresh`."""
        self._check_whole()
        self._ledger.look()

    def check_sizes(self) -> None:
        """Detect files that are missing or have the wrong size, without reading them."""
        for shard in self._shards:
            shard.index.check_sizes()
