"""ShardBuilder: receives the parts of a shard that others have encoded, and commits each document once.

Parts come in order. The progress of a shard is its next ordinal, which a commit changes together with the
documents: everything before it is stored, and is not added a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np

from coil.arrays import is_among
from coil.errors import DuplicateId, IndexLocked
from coil.indexes.index import Index
from coil.lists.segment import MOST_ROWS, Segment
from coil.lists.segment_file import open_segment
from coil.shards.encoding import Part
from coil.storage.intake import OnDuplicate
from coil.storage.writer import IndexWriter
from coil.texts.values import Document

if TYPE_CHECKING:
    from typing import Self

COMMIT_DOCUMENTS = 16_384
COMMIT_BYTES = 64 << 20  # of lists and texts that wait for a commit
COMMIT_SECONDS = 5.0  # of work lost at most if the writer is killed
_LOCK_SECONDS = 30.0  # until the lock of a writer that was killed is free


class ShardBuilder:
    """The only writer of a shard while the index is built. `push` publishes what was committed.

    Unless `commits_itself`, its owner decides when to commit.
    """

    def __init__(
        self,
        index: Index,
        on_duplicate: OnDuplicate,
        push: Callable[[], object] | None = None,
        commits_itself: bool = True,
    ) -> None:
        self._index, self._on_duplicate, self._push = index, on_duplicate, push
        self._commits_itself = commits_itself
        self._stack = ExitStack()
        self._writer = self._enter()
        self._forget()
        self._since = time.monotonic()

    def _enter(self) -> IndexWriter:
        """The writer; one that was killed may hold the lock for a moment longer."""
        until = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                return self._stack.enter_context(self._index.taking())
            except IndexLocked:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the shard; anything uncommitted is discarded."""
        self._stack.close()
        self._index.close()

    def _forget(self) -> None:
        self._segments: list[Segment] = []
        self._documents: list[tuple[int, Document, int]] = []
        self._dropped: set[int] = set()  # ordinals replaced by another document with the same id
        self._pending: dict[str, int] = {}
        self._emptied: dict[str, None] = {}
        self._bytes = self._rows = 0
        self._reached = self.next_ordinal

    @property
    def next_ordinal(self) -> int:
        """All documents of this shard with lower ordinals are committed."""
        with self._index.held() as snapshot:
            return snapshot.manifest.next_ordinal

    def put(self, part: Part) -> bool:
        """Add a part, unless it is already stored; returns whether something was committed."""
        committed = False
        if part.last < self._reached:
            return False
        segment = open_segment(memoryview(part.segment), "a part", part.header) if part.segment else None
        if segment is not None and self._rows + segment.n_rows > MOST_ROWS:
            committed = self.commit()
        known = self._known(part)
        for ordinal, document, dropped in part.documents:
            if ordinal < self._reached:  # of a part that was committed in two
                self._dropped.add(ordinal)
                continue
            self._take(ordinal, document, dropped, known)
        if segment is not None:
            self._segments.append(segment)
            self._rows += segment.n_rows
        self._bytes += len(part.segment) + sum(document.size for _, document, _ in part.documents)
        self._reached = part.last + 1
        if self._commits_itself and (self.is_full or time.monotonic() - self._since > COMMIT_SECONDS):
            committed = self.commit()
        return committed

    @property
    def is_full(self) -> bool:
        """Whether enough has been added to commit it."""
        return len(self._documents) >= COMMIT_DOCUMENTS or self._bytes >= COMMIT_BYTES

    def _known(self, part: Part) -> dict[str, int]:
        """The ordinals of the ids that are in the index."""
        if self._on_duplicate == "update":
            return {}
        with self._index.held() as snapshot:
            return snapshot.ordinals_of([document.doc_id for _, document, _ in part.documents])

    def _take(self, ordinal: int, document: Document, dropped: int, known: dict[str, int]) -> None:
        doc_id = document.doc_id
        earlier = self._pending.get(doc_id, known.get(doc_id))
        if earlier is not None and self._on_duplicate == "error":
            shard = self._index.shard
            count = shard.count if shard is not None else 1
            first, second = (f"document {at // count:,} of the corpus" for at in (earlier, ordinal))
            raise DuplicateId(doc_id, first, second, "set --on-duplicate to update or skip")
        if earlier is not None and self._on_duplicate == "skip":
            self._dropped.add(ordinal)
            return
        if doc_id in self._pending:
            self._dropped.add(self._pending.pop(doc_id))
        if document.is_empty:
            self._emptied[doc_id] = None
            return
        self._emptied.pop(doc_id, None)
        self._pending[doc_id] = ordinal
        self._documents.append((ordinal, document, dropped))

    def commit(self) -> bool:
        """Commit what was added; returns whether there was anything."""
        self._since = time.monotonic()
        if self._reached <= self.next_ordinal:
            return False
        gone = sorted(self._dropped)
        living = [row for row in self._documents if row[0] not in self._dropped]
        alive = [~is_among(segment.row_documents, np.array(gone, np.int64)) for segment in self._segments]
        self._writer.take(
            self._segments,
            alive,
            living,
            [document.doc_id for _, document, _ in living] + list(self._emptied),
            self._reached,
        )
        self._forget()
        if self._push is not None:
            self._push()
        return True

    def finish(self) -> None:
        """Commit the rest, and merge the segments that many commits have left."""
        self.commit()
        self._writer.finish()
        if self._push is not None:
            self._push()
