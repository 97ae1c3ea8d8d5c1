"""LocalShards: a sharded index whose shards are all open in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar
from weakref import ref

from coil.forks import make_lock
from coil.shards.calls import LocalCalls
from coil.shards.collection import Vector
from coil.shards.index import ShardedIndex
from coil.shards.ledger import Ledger, check_change
from coil.shards.places import Claim
from coil.shards.reader import ShardedReader
from coil.shards.whole import WholeManifest
from coil.vectors.encoder import Encoder

T = TypeVar("T")
_TRIES = 100


class _Pin:
    """Keeps a state of each shard for as long as it exists."""


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
        claim: Callable[[], Claim],
        check_whole: Callable[[], object],
        reopen: Callable[[], LocalShards],
    ) -> None:
        """`check_whole` raises an error unless the manifest of the whole still exists; `reopen` can be
        pickled."""
        self._ledger, self._shards = Ledger(calls, looks=True), calls.shards
        super().__init__(manifest, calls, self._ledger, encoder, close=calls.close, hold=self._hold)
        self._claim, self._changing, self._check_whole = claim, make_lock(), check_whole
        self._reopen = reopen
        self._pins, self._closing = set[ref[_Pin]](), False

    def __reduce__(self) -> tuple[Callable[[], LocalShards], tuple[()]]:
        """Pickle it for another process, which opens it by its path: see `Index.__reduce__`."""
        return self._reopen, ()

    @property
    def folders(self) -> list[Path]:
        """The folder of each shard."""
        return [shard.index.folder for shard in self._shards]

    @contextmanager
    def pinned(self) -> Iterator[ShardedReader]:
        """The current state of the index, for several reads."""
        pin = _Pin()
        try:
            self._pins.add(ref(pin))
            yield self._keep(pin)
        finally:
            del pin  # now: an exception may refer to this frame
            if not self._is_pinned() and self._closing:
                super().close()

    def _is_pinned(self) -> bool:
        for gone in [pin for pin in list(self._pins) if pin() is None]:
            self._pins.discard(gone)
        return bool(self._pins)

    def _keep(self, pin: _Pin) -> ShardedReader:
        """A reader of the newest states. A commit may remove one of them just before it is kept."""
        for _ in range(_TRIES):
            still = ShardedReader(self._whole, self._ledger.versions())
            states = zip(self._shards, still.versions, strict=True)
            if all(version is not None and shard.keep(version, pin) for shard, version in states):
                break
        return still  # if none could be kept, the index is closed: reading it is an error

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
        self._closing = True
        if not self._is_pinned():
            super().close()

    def _change(self, change: Callable[[], T]) -> T:
        check_change(self._changing)
        with self._changing:
            self.refresh()  # report a missing folder as such
            with self._claim() as claim, claim.held():
                return change()

    def refresh(self) -> None:
        """See what others have committed; an error says why it cannot be read. See `Index.refresh`."""
        self._check_whole()
        self._ledger.look()

    def check_sizes(self) -> None:
        """Detect files that are missing or have the wrong size, without reading them."""
        for shard in self._shards:
            shard.index.check_sizes()
