"""The catalog: which documents and segments an index consists of. SQLite, and the single source of truth.

A change to an index is one transaction here. Segment files that the catalog does not name do not exist for
readers; a writer removes them.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import DamagedCatalog, InputError, MissingIndex, NewerIndex, OutputError
from coil.lists.segment_file import FileFacts
from coil.texts.values import Document

FORMAT = 1
CATALOG_FILE = "catalog.sqlite"
_AT_ONCE = 500  # documents fetched with one statement
_PATIENCE = 30  # seconds to wait for another connection
_MAPPED = 1 << 40  # bytes of the catalog that are read through a mapping: all that SQLite allows
_DECODER = json.JSONDecoder()

SCHEMA = """
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    ordinal INTEGER PRIMARY KEY AUTOINCREMENT,
    doc_id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    fields TEXT NOT NULL,
    segment INTEGER NOT NULL,
    dropped INTEGER NOT NULL
);
CREATE INDEX documents_of_segment ON documents (segment);
CREATE TABLE segments (
    segment INTEGER PRIMARY KEY AUTOINCREMENT,
    rows INTEGER NOT NULL,
    mentions INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    sha256 TEXT NOT NULL,
    header_sha256 TEXT NOT NULL
);
CREATE TABLE deletions (
    segment INTEGER NOT NULL,
    ordinal INTEGER NOT NULL,
    PRIMARY KEY (segment, ordinal)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class SegmentEntry:
    """A segment as the catalog knows it."""

    segment: int
    rows: int
    mentions: int
    facts: FileFacts

    @property
    def file(self) -> str:
        """The name of its file in the folder `segments`."""
        return f"{self.segment:010d}.safetensors"


class Catalog:
    """One connection to catalog.sqlite. Threads may read through it at the same time; they take turns."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self.path = path
        self._connection = connection
        self._turn = threading.Lock()

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._turn, _damage_told(self.path):
            return self._connection.execute(sql, parameters).fetchall()

    def _first(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        return next(iter(self._read(sql, parameters)), None)

    @classmethod
    def create(cls, folder: Path, settings: dict[str, Any]) -> Catalog:
        """Make the catalog of a new, empty index."""
        path = folder / CATALOG_FILE
        try:
            connection = _connect(path, "rwc")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(f"BEGIN; {SCHEMA}")  # one transaction: killed, it leaves nothing
            for name, value in {"format": FORMAT, **settings}.items():
                put_setting(connection, name, value)
            connection.execute("COMMIT")
            catalog = cls(path, connection)
        except sqlite3.OperationalError as error:
            raise OutputError(
                f"{path} cannot be made: {error}", "choose another place for the index"
            ) from error
        return catalog

    @classmethod
    def open(cls, folder: Path) -> Catalog:
        """Open the catalog of an index that is there."""
        path = folder / CATALOG_FILE
        if not path.is_file():
            raise MissingIndex(f"{folder} is not an index: {CATALOG_FILE} is missing", "check the path")
        try:
            catalog = cls(path, _connect_to_read(path))
            found = catalog.settings()["format"]
        except (sqlite3.DatabaseError, KeyError, ValueError) as error:
            raise DamagedCatalog(f"{path} cannot be read: {error}", "restore it from a backup") from error
        if found > FORMAT:
            raise NewerIndex(
                f"{folder} has format {found}, this version reads up to {FORMAT}", "upgrade coil-ir"
            )
        return catalog

    @staticmethod
    def is_bare(folder: Path) -> bool:
        """Whether the catalog holds nothing at all, because its maker was killed."""
        try:
            connection = _connect(folder / CATALOG_FILE, "rw")
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            connection.close()
        except sqlite3.DatabaseError:
            return False
        return bool(tables == 0)

    def close(self) -> None:
        """Let go of the file."""
        with self._turn:
            self._connection.close()

    def version(self) -> int:
        """A number that changes when another connection, of this process or another, has committed."""
        return int(self._read("PRAGMA data_version")[0][0])

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is kept, or nothing."""
        try:
            with _damage_told(self.path):
                self._connection.execute("BEGIN IMMEDIATE")
                yield self._connection
                self._connection.execute("COMMIT")
        except BaseException as error:
            if self._connection.in_transaction:
                with suppress(sqlite3.DatabaseError):  # the first error is the one to tell
                    self._connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.OperationalError):
                raise OutputError(
                    f"{self.path} cannot be written: {error}",
                    "free some space; the index is as it was before",
                ) from error
            raise

    def begin_snapshot(self) -> None:
        """From here on, reads see the index as it is now, whatever is committed meanwhile."""
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM settings").fetchone()

    def settings(self) -> dict[str, Any]:
        """Format, model, profile and the rest that holds for the whole index."""
        rows = self._read("SELECT name, value FROM settings")
        return {name: json.loads(value) for name, value in rows}

    def segments(self) -> list[SegmentEntry]:
        """The segments, oldest first."""
        rows = self._read(
            "SELECT segment, rows, mentions, bytes, sha256, header_sha256 FROM segments ORDER BY segment"
        )
        return [SegmentEntry(s, r, m, FileFacts(b, full, head)) for s, r, m, b, full, head in rows]

    def deleted(self, segment: int) -> NDArray[np.int64]:
        """The ordinals of a segment's documents that are deleted, ascending."""
        rows = self._read("SELECT ordinal FROM deletions WHERE segment = ? ORDER BY ordinal", (segment,))
        return np.fromiter((ordinal for (ordinal,) in rows), dtype=np.int64)

    def n_documents(self) -> int:
        """How many documents the index holds."""
        return int(self._read("SELECT count(*) FROM documents")[0][0])

    def n_truncated(self) -> int:
        """How many documents were cut because they are too long."""
        return int(self._read("SELECT count(*) FROM documents WHERE dropped > 0")[0][0])

    def next_ordinal(self) -> int:
        """The ordinal that the next document gets; never one that was used before."""
        row = self._first("SELECT seq FROM sqlite_sequence WHERE name = 'documents'")
        return int(row[0]) + 1 if row else 1

    def next_segment(self) -> int:
        """The number that the next segment gets."""
        row = self._first("SELECT seq FROM sqlite_sequence WHERE name = 'segments'")
        return int(row[0]) + 1 if row else 1

    def document(self, ordinal: int) -> Document:
        """A document by its inside number."""
        return self.documents([ordinal])[0]

    def documents(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        """Documents by their inside numbers, in this order; without texts and fields it is quicker."""
        columns = "text, fields" if texts else "'', '{}'"
        found: dict[int, Document] = {}
        for begin in range(0, len(ordinals), _AT_ONCE):
            some = ordinals[begin : begin + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            rows = self._read(
                f"SELECT ordinal, doc_id, {columns} FROM documents WHERE ordinal IN ({marks})", some
            )
            for ordinal, doc_id, text, fields in rows:
                found[ordinal] = Document(doc_id, text, _fields(fields))
        for ordinal in ordinals:
            if ordinal not in found:
                raise DamagedCatalog(f"{self.path} names no document {ordinal}", "run `coil verify`")
        return [found[ordinal] for ordinal in ordinals]

    def ordinal_of(self, doc_id: str) -> int | None:
        """The inside number of a document, None if there is none of that id."""
        row = self._first("SELECT ordinal FROM documents WHERE doc_id = ?", (doc_id,))
        return int(row[0]) if row else None

    def place_of(self, doc_id: str) -> tuple[int, int]:
        """The ordinal and segment of a document."""
        row = self._first("SELECT ordinal, segment FROM documents WHERE doc_id = ?", (doc_id,))
        if row is None:
            raise InputError(f"no document has the id {doc_id!r}", "copy the id from a hit; letters count")
        return int(row[0]), int(row[1])

    def select(self, where: str, parameters: Sequence[Any]) -> NDArray[np.int64]:
        """The ordinals of the documents that a filter keeps, ascending."""
        try:
            rows = self._read(f"SELECT ordinal FROM documents WHERE {where} ORDER BY ordinal", parameters)
        except sqlite3.OperationalError as error:  # too many parts or values for one statement
            raise InputError(f"the filter cannot be used: {error}", "write a shorter one") from error
        return np.fromiter((ordinal for (ordinal,) in rows), dtype=np.int64)

    def fold(self) -> None:
        """Move what was committed from the write-ahead file into the catalog, as far as readers allow."""
        self._connection.execute("PRAGMA busy_timeout = 0")  # a reader may stay for long: do not wait for it
        self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}")

    def shrink(self) -> None:
        """Give the space of what was deleted back to the disk, where it is a quarter of the catalog."""
        pages, free = (self._read(f"PRAGMA {name}")[0][0] for name in ("page_count", "freelist_count"))
        if 4 * free < pages:
            return
        self._connection.execute("PRAGMA busy_timeout = 0")
        with _damage_told(self.path), suppress(sqlite3.OperationalError):  # others are at it: another time
            self._connection.execute("VACUUM")
        self._connection.execute(f"PRAGMA busy_timeout = {1000 * _PATIENCE}")

    def find(self, ordinal: int) -> Document | None:
        """A document by its inside number, None if it is gone."""
        row = self._first("SELECT doc_id, text, fields FROM documents WHERE ordinal = ?", (ordinal,))
        return Document(row[0], row[1], json.loads(row[2])) if row is not None else None

    def check(self) -> None:
        """Let SQLite look at every page of the catalog."""
        try:
            (found,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        except sqlite3.DatabaseError as error:
            found = str(error)
        if found != "ok":
            raise DamagedCatalog(f"{self.path} is damaged: {found}", "restore it from a backup")


def catalog_files(folder: Path) -> list[Path]:
    """The catalog, and what SQLite keeps beside it while it is in use, as far as they are there."""
    paths = (folder / f"{CATALOG_FILE}{suffix}" for suffix in ("", "-wal", "-shm"))
    return [path for path in paths if path.exists()]


def put_setting(connection: sqlite3.Connection, name: str, value: Any) -> None:
    """Set what holds for the whole index in the transaction at hand."""
    connection.execute("INSERT OR REPLACE INTO settings VALUES (?, ?)", (name, json.dumps(value)))


def add_segment(connection: sqlite3.Connection, entry: SegmentEntry) -> None:
    """Name a segment in the transaction at hand."""
    facts = entry.facts
    connection.execute(
        "INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?)",
        (entry.segment, entry.rows, entry.mentions, facts.bytes, facts.sha256, facts.header_sha256),
    )


def add_documents(
    connection: sqlite3.Connection, segment: int, documents: Iterable[tuple[int, Document, int]]
) -> None:
    """Name (ordinal, document, dropped tokens) in the transaction at hand."""
    connection.executemany(
        "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?)",
        (
            (ordinal, d.doc_id, d.text, json.dumps(d.fields, ensure_ascii=False), segment, dropped)
            for ordinal, d, dropped in documents
        ),
    )


def remove_document(connection: sqlite3.Connection, doc_id: str) -> bool:
    """Take a document out in the transaction at hand; False if there is none of that id."""
    row = connection.execute("SELECT ordinal, segment FROM documents WHERE doc_id = ?", (doc_id,)).fetchone()
    if row is None:
        return False
    connection.execute("INSERT INTO deletions VALUES (?, ?)", (row[1], row[0]))
    connection.execute("DELETE FROM documents WHERE ordinal = ?", (row[0],))
    return True


def replace_segments(
    connection: sqlite3.Connection, old: Sequence[int], new: Sequence[tuple[SegmentEntry, NDArray[np.int64]]]
) -> None:
    """Put merged segments, with their documents, in the place of others in the transaction at hand."""
    marks = ", ".join("?" * len(old))
    connection.execute(f"DELETE FROM segments WHERE segment IN ({marks})", list(old))
    connection.execute(f"DELETE FROM deletions WHERE segment IN ({marks})", list(old))
    for entry, ordinals in new:
        add_segment(connection, entry)
        moved = ((entry.segment, int(ordinal)) for ordinal in np.unique(ordinals))
        connection.executemany("UPDATE documents SET segment = ? WHERE ordinal = ?", moved)


def _fields(written: str) -> dict[str, Any]:
    """What `add_documents` wrote. It has no blanks around it, so the quicker of json's ways does."""
    fields: dict[str, Any] = _DECODER.raw_decode(written)[0] if written != "{}" else {}
    return fields


@contextmanager
def _damage_told(path: Path) -> Iterator[None]:
    """What SQLite says of a file that it cannot make sense of."""
    try:
        yield
    except (sqlite3.OperationalError, sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.DatabaseError as error:
        raise DamagedCatalog(f"{path} is damaged: {error}", "restore it from a backup") from error


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """To write as well, where that is allowed; from a folder that is read only, as long as nobody writes."""
    try:
        return _connect(path, "rw")
    except sqlite3.OperationalError:
        if os.access(path.parent, os.W_OK):
            raise
        waiting = path.with_name(f"{path.name}-wal")
        if waiting.exists() and waiting.stat().st_size:
            raise InputError(
                f"{path.parent} can only be read, and its last changes wait in {waiting.name}",
                "run `coil compact` where it can be written, then it can be read anywhere",
            ) from None
        return _connect(path, "ro&immutable=1")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.resolve().as_uri()}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=_PATIENCE
    )
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA mmap_size = {_MAPPED}")
    return connection
