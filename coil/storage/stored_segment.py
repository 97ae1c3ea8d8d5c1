"""StoredSegment: the open files of one segment, shared by all snapshots that contain it."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from coil.errors import (
    DamagedManifest,
    DamagedSegment,
    IndexProblem,
    MissingSegment,
    OutputError,
    ReplacedIndex,
)
from coil.interruptions import let_through
from coil.lists.segment import Segment
from coil.lists.segment_file import REMEDY, check_mentions, open_segment, segment_bytes
from coil.storage.disk import FileFacts, Folder, remedy_for
from coil.storage.document_file import StoredDocument, write_documents
from coil.storage.documents import DocumentReader
from coil.storage.holds import Holds
from coil.storage.manifest import MANIFEST_FILE, SEGMENTS_FOLDER, SegmentEntry

_OTHER_TEXT = "the rows of a document do not cover its text"
_FORMS = {"int8": "int8", "float16": "fp16", "float32": "fp32"}


class StoredSegment:
    """One mapping of the lists and two connections to the documents: three file descriptors.

    The last array that refers to the mapping frees it; the last `release` closes the connections.
    """

    def __init__(self, folder: Folder, entry: SegmentEntry) -> None:
        self.name = entry.name
        self.is_suspect = False
        """Whether a file had a wrong size: from then on, all snapshots check before each read."""
        self._holds = Holds()
        check_sizes(folder, entry)
        self._map = _map(folder, entry)
        self.mapped = memoryview(self._map)
        self._where = where = str(folder.path / entry.lists_file)
        self.segment: Segment = open_segment(self.mapped, where, entry.header_sha256)
        if (self.segment.n_rows, self.segment.n_mentions) != (entry.rows, entry.mentions):
            raise DamagedSegment(f"{where} is not the segment listed in the manifest", REMEDY)
        try:
            self.documents = DocumentReader(folder, entry.documents_file)
        except FileNotFoundError as error:
            raise _missing(folder, entry.documents_file) from error

    def retain(self) -> StoredSegment:
        """Hold it as well."""
        is_open = self._holds.take()
        assert is_open
        return self

    def release(self) -> None:
        """Release it; the last holder closes the connections."""
        if self._holds.let_go():
            self.documents.close()

    def check_length(self) -> None:
        """Detect a truncated mapped file before access to the missing part kills the process."""
        if self._map.size() < len(self.mapped):
            self.is_suspect = True
            raise DamagedSegment(f"{self._where} was truncated while it was open", REMEDY)

    def check_sizes(self, folder: Folder, entry: SegmentEntry) -> None:
        """Check the sizes of the files that are now in the folder; see `check_sizes`."""
        try:
            check_sizes(folder, entry)
        except DamagedSegment:
            self.is_suspect = True
            raise

    @property
    def form(self) -> tuple[int, int, str]:
        """The widths of token and sentence vectors, and their precision as the settings name it."""
        segment = self.segment
        precision = _FORMS[segment.vectors.values.dtype.name]
        if segment.precise_vectors is not None:
            precision += f"+{_FORMS[segment.precise_vectors.values.dtype.name]}"
        return segment.vectors.dim, segment.sentences.dim, precision

    def rows_of(self, ordinal: int) -> slice:
        """The rows of a document, none if it is not in this segment."""
        begin, end = np.searchsorted(self.segment.row_documents, [ordinal, ordinal + 1])
        return slice(int(begin), int(end))


def check_sizes(folder: Folder, entry: SegmentEntry) -> None:
    """Check that both files exist and have the length that was written.

    Access to the missing part of a truncated mapped file would kill the process: the system allows no
    exception there. So sizes are checked at every opening and refresh, and once a second while reading, or
    before every read once one of them was wrong.
    """
    for name, facts in ((entry.lists_file, entry.lists), (entry.documents_file, entry.texts)):
        try:
            found = folder.stat(name)
        except FileNotFoundError as error:
            raise _missing(folder, name) from error
        except OSError as error:
            let_through(error)
            raise DamagedSegment(
                f"{folder.path / name} cannot be read: {error.strerror}", remedy_for(error, "check the disk")
            ) from error
        if not stat.S_ISREG(found.st_mode):  # SQLite would block on a pipe
            raise DamagedSegment(f"{folder.path / name} is not a file", REMEDY)
        if found.st_size != facts.bytes:
            raise DamagedSegment(
                f"{folder.path / name} has {found.st_size:,} bytes; expected {facts.bytes:,}", REMEDY
            )


def write_stored_segment(
    folder: Folder, number: int, segment: Segment, documents: Iterable[StoredDocument]
) -> SegmentEntry:
    """Write a segment and its documents; both are on disk when this returns, but not yet in a manifest."""
    # The name is unique, even if two indexes were swapped: nothing is ever overwritten.
    name = f"{number:010d}-{os.urandom(8).hex()}"
    lists_file, documents_file = (f"{SEGMENTS_FOLDER}/{name}.{kind}" for kind in ("lists", "documents"))
    try:
        whose = folder.permissions(MANIFEST_FILE)  # who may read the manifest, may read what it lists
        folder.make(SEGMENTS_FOLDER, whose and whose.for_folder())
        readable = whose and whose.for_file()
        header, parts = segment_bytes(segment)
        lists = folder.write(lists_file, parts, readable)
        try:
            texts, count = write_documents(folder, documents_file, documents, readable)
            folder.sync(SEGMENTS_FOLDER)
        except BaseException:
            folder.discard(lists_file)
            folder.discard(documents_file)
            raise
    except OSError as error:
        let_through(error)
        if not folder.is_at_its_path:  # such as another index that is mounted there
            raise ReplacedIndex(
                f"{folder.path} was replaced while it was written",
                "reopen it; the index that was open is unchanged",
            ) from error
        raise OutputError(
            f"{folder.path / SEGMENTS_FOLDER} cannot be written: {error.strerror or error}",
            remedy_for(error, "free some disk space or choose another location; the index is unchanged"),
        ) from error
    return SegmentEntry(name, segment.n_rows, segment.n_mentions, count, count, lists, header, texts)


def check_bytes(folder: Folder, entry: SegmentEntry, stored: StoredSegment) -> None:
    """Compare every byte of both files with what was written."""
    if FileFacts(len(stored.mapped), hashlib.sha256(stored.mapped).hexdigest()) != entry.lists:
        raise _changed(folder, entry.lists_file)
    try:
        found = folder.digest(entry.documents_file)
    except FileNotFoundError as error:
        raise _missing(folder, entry.documents_file) from error
    except OSError as error:
        let_through(error)
        raise IndexProblem(
            f"{folder.path / entry.documents_file} cannot be read: {error.strerror}",
            remedy_for(error, "check the disk"),
        ) from error
    if found != entry.texts:
        raise _changed(folder, entry.documents_file)


def check_stored(folder: Folder, entry: SegmentEntry, stored: StoredSegment) -> None:
    """Like `check_bytes`, and read everything that a search or an explanation would."""
    check_bytes(folder, entry, stored)
    check_mentions(stored.segment, str(folder.path / entry.lists_file))
    ordinals, firsts = np.unique(stored.segment.row_documents, return_index=True)
    _check_counts(folder, entry, firsts)
    spans = stored.segment.row_spans
    ends = np.maximum.reduceat(spans[:, 1], firsts)  # the rows cover all of the text that was read
    lasts = np.append(firsts[1:], len(spans)) - 1
    if spans[firsts, 0].any() or not np.array_equal(spans[lasts, 1], ends):
        raise DamagedSegment(f"{folder.path / entry.lists_file}: {_OTHER_TEXT}", REMEDY)
    lengths, truncated = stored.documents.check(ordinals)
    if ((ends != lengths) & ~truncated | (ends > lengths)).any():
        raise DamagedSegment(f"{folder.path / entry.lists_file}: {_OTHER_TEXT}", REMEDY)


def _check_counts(folder: Folder, entry: SegmentEntry, firsts: NDArray[np.int64]) -> None:
    """Check the manifest's counts, and that it deletes all rows of a document or none."""
    alive = np.ones(entry.rows, dtype=bool) if entry.alive is None else entry.alive
    rows = np.diff(np.append(firsts, entry.rows))
    left = np.add.reduceat(alive, firsts, dtype=np.int64)
    wrong, living = "", int(np.count_nonzero(left))
    if ((left > 0) & (left < rows)).any():
        wrong = "deletes some rows of a document and not the others"
    elif (entry.documents, entry.living) != (len(rows), living):
        wrong = (
            f"lists {entry.documents:,} documents, {entry.living:,} of them not deleted, but there are "
            f"{len(rows):,} and {living:,}"
        )
    if wrong:
        raise DamagedManifest(f"the manifest of {folder.path} {wrong} ({entry.lists_file})", REMEDY)


def _changed(folder: Folder, name: str) -> DamagedSegment:
    return DamagedSegment(f"{folder.path / name} is damaged: its checksum does not match", REMEDY)


def _missing(folder: Folder, name: str) -> MissingSegment:
    return MissingSegment(f"{folder.path / name} is missing", REMEDY)


def _map(folder: Folder, entry: SegmentEntry) -> mmap.mmap:
    try:
        file = folder.open_file(entry.lists_file)
    except FileNotFoundError as error:
        raise _missing(folder, entry.lists_file) from error
    with file as handle:
        size = os.fstat(handle).st_size
        if size != entry.lists.bytes or not size:  # it was correct a moment ago
            raise DamagedSegment(f"{folder.path / entry.lists_file} has {size:,} bytes", REMEDY)
        return mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
