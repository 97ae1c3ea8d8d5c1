"""Watch: keeps an index in step with files and folders, in rounds.

A round checks the files, reads those that have changed, and compares their documents with the stored ones.
Only documents that differ are encoded. Then documents that no file contains any more are removed if they came
from a watched source (see `storage.watched`). Documents from other sources are left alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coil.errors import OptionMismatch
from coil.indexes.changes import ChangedDocuments, ids_of, is_own, living
from coil.indexes.claims import Claims
from coil.indexes.index import Encoded, Index
from coil.storage.holder import Holder
from coil.storage.intake import OnDuplicate
from coil.storage.writer import IndexWriter, Listener
from coil.texts.columns import USUAL, Columns
from coil.texts.files import KINDS, Skipped, kind_of, walk
from coil.texts.looking import Changes, Look, find_changes, look_at
from coil.texts.opening import LONGEST, Gauge, name_of

_MOST_RUNS = 1_000  # of ordinals, before they are consolidated

_log = logging.getLogger("coil.index")


@dataclass(frozen=True)
class Round:
    """The result of a round; `is_due` says that another one should follow soon."""

    added: int = 0
    updated: int = 0
    removed: int = 0
    is_due: bool = False

    @property
    def has_changed(self) -> bool:
        """Whether the round has changed the index."""
        return bool(self.added or self.updated or self.removed)


class Watch:
    """An index and the sources that it is kept in sync with."""

    def __init__(
        self,
        index: Index,
        sources: Sequence[str | Path],
        columns: Columns = USUAL,
        on_duplicate: OnDuplicate | None = None,
        longest: int = LONGEST,
    ) -> None:
        """`columns` apply to all sources; a source that was indexed before keeps its own if none are named.

        `on_duplicate`: what to do with a document from elsewhere that has the id of a file.

        "update" replaces it, and "error" ends the round; otherwise it stays, with a warning unless it is
        "skip".
        """
        self._index, self._named, self._on_duplicate = index, columns, on_duplicate
        self._columns: dict[str, Columns] = {}  # of each source
        self.sources = list(dict.fromkeys(Path(os.path.abspath(source)) for source in sources))
        self._names = list(map(str, self.sources))
        self._longest = longest
        self._claims = Claims(longest)
        self._before: Look | None = None
        self._strays: dict[Path, set[str]] = {}  # ids of a source that have not been found in a file yet
        self._roots: dict[Path, tuple[int, int]] = {}
        self._told: set[Path] = set()  # sources already reported as unreachable
        self._is_first = True

    def round(self, encoded: Encoded | None = None) -> Round:
        """Sync the index with the files that have settled.

        Raises IndexLocked if another process is writing; the next round does what this one could not.
        """
        now = self._look()
        changes = find_changes(self._before, now, self._claims.signatures, self._is_first)
        self._before = now
        can_sweep = any(self._is_known(source, now) for source in self._strays)
        if not (changes.ready or changes.gone or self._is_first or can_sweep):
            return Round(is_due=changes.in_motion)

        def follow(writer: IndexWriter, holder: Holder) -> Round:
            if self._is_first:
                self._begin(writer, holder)
                self._is_first = False
            return self._follow(writer, holder, now, changes, encoded)

        return self._index.following(follow)

    def total_bytes(self) -> int:
        """The size of all files at the last check."""
        return sum(signature[2] for signature in self._before.files.values()) if self._before else 0

    def _look(self) -> Look:
        now = look_at(self.sources)
        filled = {file.source for file in now.files}
        for source in self.sources:
            root = root_of(source)
            if source in filled:
                self._roots[source] = root
            elif self._roots.get(source, root) != root and source not in now.blocked:
                now.blocked.append(source)  # an empty folder where a disk used to be mounted
        for path in sorted(set(now.blocked) - self._told):
            _log.warning("%s is unavailable; its documents are kept", name_of(path))
        self._told = set(now.blocked)
        return now

    def _begin(self, writer: IndexWriter, holder: Holder) -> None:
        """Take over what a build of the same sources has added, and look up the stored ids of each source."""
        state = self._index.build_state()
        if state is not None and set(state.sources) != set(self._names):
            state = None
        with holder.held() as current:
            watched = current.manifest.watched
        built = None if state is None else state.columns
        for name in self._names:
            before = watched.columns.get(name, USUAL) if name in watched.runs else built
            self._columns[name] = self._choose(name, before)
        if state is not None:
            with holder.held() as current:
                ordinals = living(current)
                added = np.array([state.added(ordinal) for ordinal in ordinals.tolist()], dtype=bool)
                free = ordinals[added & ~is_own(current, self._names, ordinals)]
            writer.settle([], {self._names[0]: free.tolist()}, self._columns, build=None)
        elif watched.read_with(self._columns) != watched:
            writer.settle([], {}, self._columns)
        with holder.held() as current:
            for source in self.sources:
                self._strays[source] = set(ids_of(current, str(source)))
        skipped = Skipped()
        for source in self.sources:
            if source.is_dir():
                for path in walk(source, []):
                    if kind_of(path) not in KINDS:
                        skipped.count_other(path)
        skipped.warn()

    def _choose(self, name: str, before: Columns | None) -> Columns:
        """The columns of a source that was indexed with those of `before`, if it was."""
        if before is None or not self._named.named:
            return before or self._named
        if before != self._named:
            raise OptionMismatch(
                f"{name} was indexed with {before}, not {self._named}",
                "omit the column options, or build another index with these",
            )
        return before

    def _follow(
        self, writer: IndexWriter, holder: Holder, now: Look, changes: Changes, encoded: Encoded | None
    ) -> Round:
        gauge, skipped = Gauge(self._longest), Skipped()
        released: set[str] = set()
        for file in (*changes.ready, *changes.gone):
            released.update(self._claims.release(file))
        for file in changes.gone:
            self._claims.forget(file)
        added = updated = removed = 0
        is_due = changes.in_motion
        taken: dict[str, list[int]] = {}
        for source in self.sources:
            ready = {file: now.files[file] for file in changes.ready if file.source == source}
            if not ready:
                continue
            documents = ChangedDocuments(
                ready, self._claims, holder, self._names, self._columns[str(source)], self._on_duplicate,
                gauge, skipped,
            )  # fmt: skip
            listener = Listener(encoded=encoded, refused=documents.refuse)
            writer.follow(documents, str(source), listener)
            documents.warn()
            added, updated = added + len(documents.added), updated + len(documents.updated)
            removed, is_due = removed + len(documents.emptied), is_due or documents.in_motion
            taken[str(source)] = documents.taken
        gauge.warn()
        skipped.warn()
        gone, waiting = self._claims.unclaimed(released)
        for source in [source for source in self._strays if self._is_known(source, now)]:
            gone |= self._claims.unclaimed(self._strays.pop(source))[0]
        with holder.held() as current:
            found = current.ordinals_of(sorted(gone))
            own = is_own(current, self._names, np.array(list(found.values()), dtype=np.int64))
            is_scattered = current.manifest.watched.n_runs > _MOST_RUNS
        gone_ids = [doc_id for doc_id, ours in zip(found, own.tolist(), strict=True) if ours]
        if gone_ids or is_scattered or any(taken.values()):
            removed += writer.settle(gone_ids, taken)
        return Round(added, updated, removed, is_due or waiting)

    def _is_known(self, source: Path, now: Look) -> bool:
        """Whether the ids of all files of a source are known."""
        return not self._claims.has_unknown(source) and not now.has_blocked(source)


def root_of(source: Path) -> tuple[int, int]:
    """Identifies a folder, so that a replacement at the same path is detected."""
    try:
        found = os.stat(source)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino
