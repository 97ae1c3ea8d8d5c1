"""What Ray Serve runs: replicas of shards, and the ledger of an index."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from coil.cluster.calls import Outcome, RayCalls
from coil.cluster.joining import VERSION
from coil.errors import CoilError, MixedShards
from coil.shards.exchange import Refusal
from coil.shards.ledger import Deleted, Ledger, Updated
from coil.shards.opening import serve_shard
from coil.shards.places import Place
from coil.shards.shard import Shard
from coil.shards.whole import WholeManifest
from coil.texts.values import Document
from coil.vectors.encoder import Encoder

_THREADS = 8  # per replica: one per core ranks, the others do lookups meanwhile
_TRY_AGAIN_SECONDS = 1.0  # after a shard could not be opened


@dataclass(frozen=True)
class Served:
    """What is served: a sharded index as it was when it was deployed, and where it is kept."""

    name: str
    place: Place
    manifest: WholeManifest
    encoder: Callable[[], Encoder] | None = None  # creates one that has no model folder
    threads: int = 1
    version: str = VERSION

    def check_version(self) -> None:
        """Refuse to run on a node with another version of this package."""
        if self.version != VERSION:
            raise MixedShards(
                f"this node has version {VERSION} of coil-ir, but the index is served by {self.version}",
                "install the same version on all nodes",
            )


class ShardReplica:
    """One copy of a shard. If it cannot be opened, it tells callers why, and tries again."""

    def __init__(self, served: Served, number: int) -> None:
        self._served, self._number = served, number
        self._shard: Shard | None = None
        self._refusal: Refusal | None = None
        self._tried = 0.0
        self._opening = asyncio.Lock()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="shard")
        self._open()

    def _open(self) -> None:
        self._tried = time.monotonic()
        try:
            served = self._served
            served.check_version()
            encoder = served.encoder() if served.encoder is not None else None
            place, manifest = served.place, served.manifest
            self._shard = serve_shard(place, manifest, self._number, encoder, served.threads)
            self._shard.state()
            self._refusal = None
        except CoilError as error:
            self._refusal = Refusal.of(error)

    async def call(self, method: str, arguments: Sequence[Any]) -> Outcome:
        """Call a method of the shard in a thread; an error of this library is returned as a value."""
        loop = asyncio.get_running_loop()
        if self._refusal is not None:
            async with self._opening:
                if self._refusal is not None and time.monotonic() - self._tried > _TRY_AGAIN_SECONDS:
                    await loop.run_in_executor(self._pool, self._open)
            if self._refusal is not None:
                return Outcome(refusal=self._refusal)
        return await loop.run_in_executor(self._pool, self._call, method, arguments)

    def _call(self, method: str, arguments: Sequence[Any]) -> Outcome:
        assert self._shard is not None
        try:
            return Outcome(getattr(self._shard, method)(*arguments))
        except CoilError as error:
            return Outcome(refusal=Refusal.of(error))


class LedgerReplica:
    """The ledger: one per index. Serve starts another if it dies."""

    def __init__(self, served: Served, app: str) -> None:
        self._served = served
        self._calls = RayCalls(app, len(served.manifest.shards))
        self._ledger: Ledger | None = None
        self._making = asyncio.Lock()
        self._pool = ThreadPoolExecutor(4, thread_name_prefix="ledger")

    def about(self) -> Served:
        """What is served, for whoever connects."""
        return self._served

    async def call(self, method: str, arguments: Sequence[Any]) -> Outcome:
        """Call a method of the ledger."""
        loop = asyncio.get_running_loop()
        if self._ledger is None:
            async with self._making:
                if self._ledger is None:
                    made = await loop.run_in_executor(self._pool, self._make)
                    if made is not None:
                        return Outcome(refusal=made)
        return await loop.run_in_executor(self._pool, self._call, method, arguments)

    def _make(self) -> Refusal | None:
        try:
            self._ledger = Ledger(self._calls)
        except CoilError as error:
            return Refusal.of(error)
        return None

    def _call(self, method: str, arguments: Sequence[Any]) -> Outcome:
        assert self._ledger is not None
        do: dict[str, Callable[..., Any]] = {
            "versions": self._ledger.versions,
            "update": self._update,
            "delete": self._delete,
        }
        try:
            return Outcome(do[method](*arguments))
        except CoilError as error:
            return Outcome(refusal=Refusal.of(error))

    def _update(self, documents: Sequence[Document]) -> Updated:
        assert self._ledger is not None
        return self._ledger.update(documents)

    def _delete(self, doc_ids: Sequence[str]) -> Deleted:
        assert self._ledger is not None
        return self._ledger.delete(doc_ids)
