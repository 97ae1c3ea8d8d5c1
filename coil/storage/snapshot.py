"""Snapshot: an index as it was at one moment, immutable.

A snapshot owns its segments, its searcher and what these have computed. Readers hold it, and the last one to
release it closes the files: readers never block a writer, nor the other way round.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import distinct, is_among
from coil.compiled import compiled_code
from coil.errors import (
    DamagedManifest,
    DamagedSegment,
    IndexProblem,
    MissingSegment,
    UnknownId,
)
from coil.forks import cached, make_lock
from coil.hits.searcher import Searcher
from coil.interruptions import let_through
from coil.lists.segment import LiveSegment
from coil.lists.segment_file import REMEDY
from coil.scores.statistics import Statistics
from coil.storage.disk import MORE_FILES, Folder
from coil.storage.documents import may_remember
from coil.storage.filters import parse_filter
from coil.storage.holds import Holds
from coil.storage.manifest import MANIFEST_FILE, Manifest, read_manifest
from coil.storage.stored_segment import StoredSegment
from coil.texts.questions import check_id
from coil.texts.values import Document, clean
from coil.tokens.contexts import ContextRule

if TYPE_CHECKING:
    from coil.storage.facts import IndexFacts

_TRIES = 100  # attempts while a writer merges segments away faster than we can open them
_CHECK_SECONDS = 1.0
_BLOCK, _BLOCK_BYTES = 64, 1 << 20  # documents, and bytes of their texts and fields, read at once
_FILTERS = 16  # filters whose documents are cached

Identity = tuple[int, int]
Stamp = tuple[int, int, int, int]


class Snapshot:
    """Segments and documents of one state of an index: what a `Searcher` searches."""

    def __init__(
        self,
        path: Path,
        identity: Identity,
        manifest: Manifest,
        stored: Sequence[StoredSegment],
        stamp: Stamp | None = None,
    ) -> None:
        """`stored` are the manifest's segments, retained for this snapshot."""
        self.path, self.identity, self.manifest, self.stamp = path, identity, manifest, stamp
        self._stored = list(stored)
        self._holds, self._lock = Holds(), make_lock()
        self._searcher: Searcher | None = None
        self._checked = time.monotonic()
        self._fields: dict[str, bool] = {}  # names, and whether a document has such a field
        self._selected: OrderedDict[str, NDArray[np.int64]] = OrderedDict()
        self.facts: dict[int, IndexFacts] = {}  # last counts, by how many lists they name
        try:
            self.segments = [
                LiveSegment(of.segment, entry.alive)
                for entry, of in zip(manifest.segments, stored, strict=True)
            ]
            self._firsts = self._first_ordinals()
            self._check_form()
        except BaseException:
            self.release()
            raise

    @property
    def context(self) -> ContextRule:
        """The context that rows begin with; an index made before there were contexts has none."""
        settings = self.manifest.settings
        return ContextRule(int(settings.get("context", 0)), bool(settings.get("front_matter", False)))

    @classmethod
    def open(
        cls, folder: Folder, manifest: Manifest | None = None, earlier: Snapshot | None = None
    ) -> Snapshot:
        """Open the state of a folder: that of `manifest`, or the current one.

        Segments that are also in `earlier`, which must be held, are not opened again.
        """
        known = {} if earlier is None else {of.name: of for of in earlier._stored}
        stamp = None
        for attempt in range(_TRIES):
            if manifest is None or attempt:
                stamp = stamp_of(
                    folder
                )  # before the manifest: if that is newer than its stamp, it is read again
                manifest = read_manifest(folder)
            opened: list[StoredSegment] = []
            try:
                for entry in manifest.segments:
                    if (shared := known.get(entry.name)) is not None:
                        shared.check_sizes(folder, entry)
                        opened.append(shared.retain())
                    else:
                        opened.append(StoredSegment(folder, entry))
            except BaseException as error:
                for of in opened:
                    of.release()
                # A writer may have merged the segment away after we read the manifest.
                if isinstance(error, OSError):
                    let_through(error)
                    raise IndexProblem(
                        f"{folder.path} cannot be read: {error.strerror or error}",
                        f"check the permissions of its files and {MORE_FILES}",
                    ) from error
                superseded = isinstance(error, MissingSegment) and attempt + 1 < _TRIES
                if superseded and read_manifest(folder).digest != manifest.digest:
                    continue
                raise
            return cls(folder.path, folder.identity, manifest, opened, stamp)
        raise AssertionError("the last try returns or raises")

    def retain(self) -> bool:
        """Hold it as well; False if the last holder has already released it."""
        return self._holds.take()

    def release(self) -> None:
        """Release it; the last holder closes the files."""
        if not self._holds.let_go():
            return
        # The last holder of native objects frees what they refer to, from within C++: see `compiled_code`.
        with compiled_code():
            stored, self._stored = self._stored, []
            self._searcher = None
            self.segments = []
            self._selected.clear()
            for of in stored:
                of.release()
            del stored

    def check_files(self) -> None:
        """Detect a file that was truncated: once a second, and always if one had a wrong size before."""
        now = time.monotonic()
        if now > self._checked + _CHECK_SECONDS or any(of.is_suspect for of in self._stored):
            for of in self._stored:
                of.check_length()
            self._checked = now  # not set on errors: the next reader gets them as well

    # ---- contents

    @property
    def version(self) -> int:
        """Increases with every change of the index."""
        return self.manifest.version

    @property
    def stored(self) -> Sequence[StoredSegment]:
        """The open files of each segment."""
        return self._stored

    @cached
    def statistics(self) -> Statistics:
        """The statistics that weights are based on: those of the living rows of this state."""
        return Statistics(self.segments)

    def searcher(self, make: Callable[[Snapshot], Searcher]) -> Searcher:
        """The only searcher of this state, created on first use."""
        with self._lock:
            if self._searcher is None:
                made = make(self)
                if self._searcher is None:  # not created by a signal handler meanwhile
                    self._searcher = made
            return self._searcher

    def document(self, ordinal: int) -> Document:
        """A document by its ordinal."""
        return self.fetch([ordinal])[0]

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their ordinals, in this order; faster without texts and fields."""
        found: dict[int, Document] = {}
        for place, some in self._by_segment(ordinals).items():
            self._stored[place].documents.fetch_into(found, some, texts)
        try:
            return [found[ordinal] for ordinal in ordinals]
        except KeyError as error:
            raise DamagedSegment(f"{self.path} has no document {error}", "run `coil verify`") from error

    def has_all(self, ordinals: Sequence[int]) -> bool:
        """Whether the documents with these ordinals can be fetched; deleted ones can until a merge."""
        places = self._places(ordinals)
        rows = (self._stored[p].rows_of(o) if p >= 0 else None for p, o in zip(places, ordinals, strict=True))
        return all(of is not None and of.start < of.stop for of in rows)

    def find(self, ordinal: int) -> Document | None:
        """A document by its ordinal, None if there is none, or no longer."""
        [place] = self._places([ordinal])
        if place < 0 or not self._is_alive(place, ordinal):
            return None
        return self._stored[place].documents.fetch([ordinal]).get(ordinal)

    def ordinal_of(self, doc_id: str) -> int:
        """The ordinal of a document; raises InputError if the id is unknown."""
        doc_id = check_id(doc_id)
        found = self.ordinals_of([doc_id])
        if doc_id not in found:
            raise UnknownId(
                f"no document has the id {doc_id!r:.200}", "ids are case-sensitive; copy one from a result"
            )
        return found[doc_id]

    def ordinals_of(self, doc_ids: Sequence[str]) -> dict[str, int]:
        """The ordinals of those ids that exist."""
        return {doc_id: ordinal for doc_id, (_, ordinal) in self.places_of(doc_ids).items()}

    def places_of(self, doc_ids: Sequence[str]) -> dict[str, tuple[int, int]]:
        """The segment and the ordinal of those ids that exist, keyed by the ids as stored."""
        found: dict[str, tuple[int, int]] = {}
        wanted = [clean(doc_id) for doc_id in doc_ids if isinstance(doc_id, str)]
        for place in range(len(self._stored) - 1, -1, -1):
            if not wanted:
                break
            here = self._stored[place].documents.ordinals_of(wanted)
            for doc_id, ordinal in here.items():
                if self._is_alive(place, ordinal):
                    found[doc_id] = (place, ordinal)
            wanted = [doc_id for doc_id in wanted if doc_id not in found]
        return found

    def select(self, expression: str, deadline: float | None = None) -> NDArray[np.int64]:
        """The ordinals of the documents that match a filter, ascending; SearchTimeout after the deadline."""
        with self._lock:
            remembered = self._selected.pop(expression, None)
            if remembered is not None:
                self._selected[expression] = remembered  # the last one in the order
                return remembered
        wanted = parse_filter(expression)
        parts = [np.zeros(0, np.int64)]
        for live, of in zip(self.segments, self._stored, strict=True):
            kept = of.documents.select(wanted, deadline)
            if live.alive is not None:
                kept = kept[is_among(kept, living_documents(live))]
            parts.append(kept)
        selected = np.concatenate(parts)
        with self._lock:
            self._selected[expression] = selected
            while len(self._selected) > _FILTERS:
                self._selected.popitem(last=False)
        return selected

    def check_ids(self) -> None:
        """Check that ids are unique; a document that was damaged when it was updated may exist twice."""
        digests, places = [], []
        for place, (live, of) in enumerate(zip(self.segments, self._stored, strict=True)):
            kept = None if live.alive is None else set(living_documents(live).tolist())
            for ordinal, doc_id in of.documents.ids():
                if kept is None or ordinal in kept:
                    digests.append(blake2b(doc_id.encode(), digest_size=16).digest())
                    places.append((place, ordinal))
        values = np.array(digests, dtype="S16")
        order = np.argsort(values, kind="stable")
        [same] = np.nonzero(values[order][1:] == values[order][:-1])
        if len(same):
            ordinal = places[int(order[same[0]])][1]
            raise DamagedManifest(
                f"{self.path} has a duplicate id {self.document(ordinal).doc_id!r:.80}",
                "delete the id and add the document again",
            )

    def has_field(self, name: str, deadline: float | None = None) -> bool:
        """Whether any document has a field of this name; deleted documents do not count."""
        known = self._fields.get(name)
        if known is None:
            known = any(
                of.documents.has_field(name, None if live.alive is None else living_documents(live), deadline)
                for live, of in zip(self.segments, self._stored, strict=True)
            )
            if may_remember(self._fields, name):
                self._fields[name] = known
        return known

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None, word: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The values of a field for those of these documents that have it, segment by segment.

        With `word`, some values without it are left out; see `DocumentReader.field_values`.
        """
        for place, some in self._by_segment(ordinals).items():
            yield from self._stored[place].documents.field_values(name, some, deadline, word)

    def blocks(self, ordinals: Sequence[int]) -> Iterator[list[int]]:
        """Documents in blocks to be read at once: of few bytes, or a single document."""
        block: list[int] = []
        size = 0
        for ordinal, more in zip(ordinals, self.sizes_of(ordinals), strict=True):
            if block and (len(block) == _BLOCK or size + more > _BLOCK_BYTES):
                yield block
                block, size = [], 0
            block.append(ordinal)
            size += more
        if block:
            yield block

    def sizes_of(self, ordinals: Sequence[int]) -> Iterator[int]:
        """The size of the texts and fields of existing documents in bytes."""
        for ordinal, place in zip(ordinals, self._places(ordinals), strict=True):
            yield self._stored[place].documents.size_of(ordinal)

    def count_truncated(self, deadline: float | None = None) -> int:
        """How many documents were truncated because they were too long."""
        return sum(
            of.documents.count_truncated(None if live.alive is None else living_documents(live), deadline)
            for live, of in zip(self.segments, self._stored, strict=True)
        )

    def _by_segment(self, ordinals: Sequence[int]) -> dict[int, list[int]]:
        """Group ordinals by segment, omitting those that are in none."""
        by_segment: dict[int, list[int]] = {}
        for ordinal, place in zip(ordinals, self._places(ordinals), strict=True):
            if place >= 0:
                by_segment.setdefault(place, []).append(ordinal)
        return by_segment

    def _places(self, ordinals: Sequence[int]) -> list[int]:
        """The segment whose range contains each ordinal; -1 before the first."""
        places: list[int] = (np.searchsorted(self._firsts, ordinals, side="right") - 1).tolist()
        return places

    def _is_alive(self, place: int, ordinal: int) -> bool:
        rows = self._stored[place].rows_of(ordinal)
        alive = self.segments[place].alive
        return rows.start < rows.stop and (alive is None or bool(alive[rows.start]))

    def _check_form(self) -> None:
        """Check that every segment has vectors of the widths and the precision in the settings."""
        config = self.manifest.settings.get("config")
        widths = [config.get(name) for name in ("n_t", "n_c")] if isinstance(config, dict) else [None, None]
        expected = (*widths, self.manifest.settings.get("precision"))
        for entry, of in zip(self.manifest.segments, self._stored, strict=True):
            if of.form != expected:
                raise DamagedManifest(
                    f"{self.path / entry.lists_file} has n_t, n_c and precision {of.form}, but the settings "
                    f"of the index require {expected!r:.80}",
                    REMEDY,
                )

    def _first_ordinals(self) -> NDArray[np.int64]:
        """The first ordinal of each segment; checks that segments are in order and do not overlap."""
        last = 0
        firsts = []
        for entry, of in zip(self.manifest.segments, self._stored, strict=True):
            first, after = (int(ordinal) for ordinal in of.segment.row_documents[[0, -1]])
            if first <= last or after >= self.manifest.next_ordinal:
                raise DamagedSegment(
                    f"{self.path / entry.lists_file}: its ordinals are out of range",
                    REMEDY,
                )
            firsts.append(first)
            last = after
        return np.array(firsts, dtype=np.int64)


def stamp_of(folder: Folder) -> Stamp | None:
    """A value that changes when the manifest is replaced, without reading it; None if it is inaccessible."""
    try:
        found = folder.stat(MANIFEST_FILE)
    except OSError as error:  # reading it will raise the error
        let_through(error)
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def open_snapshot(path: Path) -> Snapshot:
    """Open the current state of the index at a path; the caller releases it."""
    with Folder.open(path) as folder:
        return Snapshot.open(folder)


def living_documents(live: LiveSegment) -> NDArray[np.int64]:
    """The ordinals of a segment's living documents, ascending."""
    documents = live.segment.row_documents
    return distinct(documents if live.alive is None else documents[live.alive])
