"""The documents of changed files, if they differ from those in the index."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from coil.errors import DuplicateId, InputError, MissingExtra, how_many, reason_of
from coil.indexes.claims import Claims, size_of
from coil.interruptions import let_through
from coil.storage.holder import Holder
from coil.storage.intake import OnDuplicate, size_in_memory
from coil.storage.snapshot import Snapshot, living_documents
from coil.texts.columns import Columns
from coil.texts.corpora import read_part
from coil.texts.files import Skipped
from coil.texts.looking import Signature, SourceFile, signature_of
from coil.texts.opening import Gauge, name_of
from coil.texts.values import Document

_AT_ONCE = 256  # documents compared together, and at most how much memory they take
_BATCH_BYTES = 1 << 20
_SHOWN = 3  # ids in a warning

_log = logging.getLogger("coil.index")


class ChangedDocuments:
    """Reads files of one source, passes on new documents, and counts the changes to the index.

    A file of records is read twice: if it cannot be read to its end, none of it is used.
    """

    def __init__(
        self,
        files: Mapping[SourceFile, Signature],
        claims: Claims,
        holder: Holder,
        names: Sequence[str],
        columns: Columns,
        on_duplicate: OnDuplicate | None,
        gauge: Gauge,
        skipped: Skipped,
    ) -> None:
        """`names`: all watched sources; `claims` has released the files."""
        self._files, self._claims, self._holder, self._names = files, claims, holder, names
        self._columns, self._on_duplicate = columns, on_duplicate
        self._gauge, self._skipped = gauge, skipped
        self._paths: list[str] = []
        self.added: set[str] = set()
        self.updated: set[str] = set()
        self.emptied: set[str] = set()  # their files no longer have text
        self.taken: list[int] = []  # ordinals of documents that match the files, but came from elsewhere
        self.in_motion = False  # a file changed while it was read
        self._twice: list[str] = []
        self._from_elsewhere: list[str] = []

    def __iter__(self) -> Iterator[Document]:
        for file, signature in self._files.items():
            self._paths.append(name_of(file.path))
            yield from self._read(file, signature)

    @property
    def mark(self) -> int:
        """The number of the file."""
        return len(self._paths) - 1

    def place_of(self, mark: int, doc_id: str) -> str:
        """A document's place in words."""
        path = self._paths[mark]
        return path if path.endswith(doc_id) else f"{path}, {doc_id!r:.80}"

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._gauge.bytes_read

    def refuse(self, document: Document, error: InputError) -> None:
        """Note that the index rejects a document; an existing one with its id stays."""
        self.added.discard(document.doc_id)
        self.updated.discard(document.doc_id)
        _log.warning("skipped %s", error.reason)

    def warn(self) -> None:
        """Log a warning with the ids that were skipped, if any."""
        if self._twice:
            ids = how_many(len(self._twice), "id")
            _log.warning(
                "%s found in more than one place; the first one is used: %s", ids, _some(self._twice)
            )
        if self._from_elsewhere and self._on_duplicate != "skip":
            _log.warning(
                "kept %s from other sources with the same id as a watched file: %s; "
                "use --on-duplicate update to replace them",
                how_many(len(self._from_elsewhere), "document"),
                _some(self._from_elsewhere),
            )

    def _read(self, file: SourceFile, signature: Signature) -> Iterator[Document]:
        before = self._claims.signatures.get(file)
        try:
            ids, documents = self._open(file)
        except MissingExtra as error:
            self._skipped.count(file.path, error.remedy)
            self._claims.keep(file, signature)
            return
        except InputError as error:
            if _settled(file, signature):
                _log.warning("skipped a file; its indexed documents are kept: %s", reason_of(error))
                self._claims.keep(file, signature)
                return
            ids = None
        if ids is None or not _settled(file, signature):
            self._claims.keep(file, before)
            self.in_motion = True
            return
        lost = self._claims.take(file, ids, signature)
        self._twice.extend(sorted(lost))
        left = set(ids) - lost
        batches = _batches(documents)
        while True:
            try:
                some = next(batches, None)
            except InputError:  # it could be read before, so it has changed since
                self._claims.release(file)
                self._claims.keep(file, before)
                self.in_motion = True
                return
            if some is None:
                return
            mine = []
            for document in some:
                if document.doc_id in left:
                    left.remove(document.doc_id)
                    mine.append(document)
            yield from self._new(mine)

    def _open(self, file: SourceFile) -> tuple[list[str] | None, Iterable[Document]]:
        """The ids of a file, each once, and its documents."""
        if file.doc_id is not None:
            return [file.doc_id], list(read_part(file.path, file.doc_id, self._gauge))
        ids: dict[str, None] = {}
        counting = Gauge(self._gauge.longest)
        size = 0
        for document in read_part(file.path, None, counting, self._columns):
            if document.doc_id in ids:
                self._twice.append(document.doc_id)
            else:
                size += size_of(document.doc_id)
                self._claims.check_room(file, size)
            ids[document.doc_id] = None
        return list(ids), read_part(file.path, None, self._gauge, self._columns)

    def _new(self, documents: Sequence[Document]) -> list[Document]:
        """The documents that are new or differ from those in the index."""
        found: list[Document] = []
        with self._holder.held() as current:
            ordinals = current.ordinals_of([document.doc_id for document in documents])
            own = is_own(current, self._names, np.array(list(ordinals.values()), dtype=np.int64))
            ours = dict(zip(ordinals, own.tolist(), strict=True))
            for document in documents:
                doc_id = document.doc_id
                if doc_id not in ordinals:
                    if not document.is_empty:
                        self.added.add(doc_id)
                        found.append(document)
                elif _is_same(current.find(ordinals[doc_id]), document):
                    if not ours[doc_id]:
                        self.taken.append(ordinals[doc_id])
                elif ours[doc_id] or self._on_duplicate == "update":
                    (self.emptied if document.is_empty else self.updated).add(doc_id)
                    found.append(document)
                elif self._on_duplicate == "error":
                    raise DuplicateId(doc_id, "the index", self.place_of(self.mark, doc_id))
                else:
                    self._from_elsewhere.append(doc_id)
        return found


def is_own(current: Snapshot, names: Iterable[str], ordinals: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each ordinal, whether its document came from one of the watched sources."""
    own = np.zeros(len(ordinals), dtype=bool)
    for name in names:
        own |= current.manifest.watched.came_from(name, ordinals)
    return own


def living(current: Snapshot) -> NDArray[np.int64]:
    """The ordinals of all documents, ascending."""
    return np.concatenate([np.zeros(0, np.int64), *map(living_documents, current.segments)])


def ids_of(current: Snapshot, name: str) -> Iterator[str]:
    """The ids of all documents that came from a source."""
    for live, of in zip(current.segments, current.stored, strict=True):
        there = living_documents(live)
        wanted = set(there[is_own(current, [name], there)].tolist())
        if wanted:
            yield from (doc_id for ordinal, doc_id in of.documents.ids() if ordinal in wanted)


def _is_same(stored: Document | None, document: Document) -> bool:
    """Whether nothing has changed. In Python, 1, 1.0 and True are equal, but not as field values."""
    if stored is None or stored != document:
        return False
    return _fields_of(stored) == _fields_of(document)


def _fields_of(document: Document) -> str:
    return json.dumps(document.fields, sort_keys=True)


def _settled(file: SourceFile, signature: Signature) -> bool:
    try:
        return signature_of(file.path) == signature
    except OSError as error:
        let_through(error)
        return False


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    some: list[Document] = []
    size = 0
    for document in documents:
        some.append(document)
        size += size_in_memory(document)
        if len(some) == _AT_ONCE or size >= _BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _some(ids: Sequence[str]) -> str:
    return ", ".join(f"{doc_id!r:.80}" for doc_id in ids[:_SHOWN]) + (", ..." if len(ids) > _SHOWN else "")
