"""ShardWriter: the actor that writes one shard. It commits when the build tells it to."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from coil.cluster.encoding import EncodedWindow
from coil.errors import CoilError
from coil.shards.building import ShardBuilder
from coil.shards.exchange import Refusal
from coil.shards.opening import entry_of, open_shard
from coil.shards.places import Place
from coil.shards.whole import ShardEntry, WholeManifest
from coil.shards.windows import Reached
from coil.storage.intake import OnDuplicate


@dataclass(frozen=True)
class Started:
    """A writer that is ready: its current life, and the progress of its shard."""

    life: str
    next_ordinal: int


@dataclass(frozen=True)
class Taken:
    """What a writer received, and how far the corpus had been read by then. `is_full` asks for a commit."""

    documents: int
    empty: tuple[str, ...]
    reached: Reached
    is_last: bool
    refusal: Refusal | None
    is_full: bool


class ShardWriter:
    """One shard. Callers name the life that they started: what an earlier life received but did not commit
    is lost, and later parts must not be written without it."""

    def __init__(self, place: Place, manifest: WholeManifest, number: int, on_duplicate: OnDuplicate) -> None:
        self._place, self._manifest, self._number = place, manifest, number
        self._on_duplicate = on_duplicate
        self._life = ""
        self._builder: ShardBuilder | None = None

    def start(self) -> Started | Refusal:
        """Start from what is committed; anything uncommitted is discarded."""
        try:
            self._stop()
            index = open_shard(self._place, self._manifest, self._number)
            push = partial(self._place.push, self._manifest.shards[self._number].path)
            self._builder = ShardBuilder(index, self._on_duplicate, push, commits_itself=False)
            self._life = uuid.uuid4().hex
            return Started(self._life, self._builder.next_ordinal)
        except CoilError as error:
            return Refusal.of(error)

    def take(self, life: str, block: pa.Table) -> Taken | Refusal | None:
        """Receive the parts of this shard; None if that life is over."""
        builder = self._builder
        if builder is None or life != self._life:
            return None
        try:
            documents, empty, last = 0, list[str](), None
            for window in EncodedWindow.rows_of(block, self._number):
                last = window
                for part in window.parts:
                    builder.put(part)
                    documents += len(part.documents)
                    empty += [document.doc_id for _, document, _ in part.documents if document.is_empty]
            assert last is not None, "no block is without a window"
            return Taken(documents, tuple(empty), last.reached, last.is_last, last.refusal, builder.is_full)
        except CoilError as error:
            return Refusal.of(error)

    def commit(self, life: str) -> bool | Refusal:
        """Commit what was received; False if that life is over."""
        return self._do(life, "commit")

    def finish(self, life: str) -> ShardEntry | Refusal | bool:
        """Commit the rest and merge; returns the shard's entry for the manifest."""
        done = self._do(life, "finish")
        if done is not True:
            return done
        self._stop()
        try:
            name = self._manifest.shards[self._number].path
            with open_shard(self._place, self._manifest, self._number) as index:
                return entry_of(index, name)
        except CoilError as error:
            return Refusal.of(error)

    def _do(self, life: str, what: str) -> bool | Refusal:
        if self._builder is None or life != self._life:
            return False
        try:
            getattr(self._builder, what)()
            return True
        except CoilError as error:
            return Refusal.of(error)

    def _stop(self) -> None:
        if self._builder is not None:
            self._builder.close()
            self._builder = None


def writer_options() -> dict[str, Any]:
    """How Ray runs a writer: on any node, restarted after it dies. It waits far more than it computes."""
    return {"num_cpus": 0, "max_restarts": -1, "max_task_retries": 0, "scheduling_strategy": "SPREAD"}
