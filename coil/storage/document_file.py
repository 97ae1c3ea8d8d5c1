"""The file of a segment's documents: one SQLite table, written once and never changed."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from coil.compiled import compiled_code
from coil.errors import DamagedSegment, IndexProblem
from coil.lists.segment_file import REMEDY
from coil.permissions import Permissions
from coil.storage.disk import FileFacts, Folder
from coil.texts.values import Document

StoredDocument = tuple[int, str, str, str, int]
"""ordinal, doc_id, text, fields as JSON, tokens that were dropped"""

AT_ONCE = 500  # documents read or written with one statement
BATCH_BYTES = 1 << 20  # of texts and fields read or written with one call; when writing, characters
_TRIES = 20  # to open a file while its folder is moved
_LONGEST_PATH = 504  # bytes that SQLite accepts, with links resolved; it reserves 8 of 512
SCHEMA = """
CREATE TABLE documents (
    ordinal INTEGER PRIMARY KEY,
    doc_id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL,
    fields TEXT NOT NULL,
    dropped INTEGER NOT NULL
);
"""


def stored(ordinal: int, document: Document, dropped: int) -> StoredDocument:
    """A document as stored in the file."""
    fields = json.dumps(document.fields, ensure_ascii=False)
    return ordinal, document.doc_id, document.text, fields, dropped


def write_documents(
    folder: Folder, name: str, documents: Iterable[StoredDocument], permissions: Permissions | None = None
) -> tuple[FileFacts, int]:
    """Write a new file and sync it to disk; return its facts and the number of documents.

    Raises OSError if it cannot be written.
    """
    folder.reserve(name, permissions)
    count = 0
    try:
        try:
            with _creating(folder, name) as connection:
                for some in _batches(documents):
                    with compiled_code():
                        connection.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", some)
                    count += len(some)
                with compiled_code():
                    connection.execute("COMMIT")
        except sqlite3.IntegrityError as error:  # they come from a file that did not find an id it has
            raise DamagedSegment(f"{folder.path} has two documents with the same id", REMEDY) from error
        except sqlite3.OperationalError as error:
            raise OSError(None, str(error)) from error
        folder.sync_file(name)
        return folder.digest(name), count
    except BaseException:
        folder.discard(name)
        raise


@contextmanager
def _creating(folder: Folder, name: str) -> Iterator[sqlite3.Connection]:
    """A connection to a new file, inside its only transaction.

    It stays open between calls. The source of the documents makes other calls, and a fork that waits for this
    one would wait for those as well.
    """
    with compiled_code():
        connection = connect(folder, name, "rw")
    try:
        with compiled_code():
            connection.execute("PRAGMA journal_mode = OFF")  # the file is synced afterwards, or discarded
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN")
            connection.execute(SCHEMA)
        yield connection
    finally:
        close_all(connection)


def _batches(documents: Iterable[StoredDocument]) -> Iterator[list[StoredDocument]]:
    """Batches of documents: smaller ones if the texts are long."""
    some: list[StoredDocument] = []
    size = 0
    for document in documents:
        some.append(document)
        size += len(document[2]) + len(document[3])
        if len(some) == AT_ONCE or size >= BATCH_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def close_all(*connections: sqlite3.Connection) -> None:
    """Close connections to such files."""
    with compiled_code():
        for connection in connections:
            connection.close()


def connect(folder: Folder, name: str, mode: str) -> sqlite3.Connection:
    """Open the file without reading its contents; raises OSError if the system cannot open it.

    SQLite opens the path to which the handle of the folder leads at that moment, and fails if the folder is
    moved in between: then it tries again.
    """
    uri = f"file:{quote(str(Path(folder.path_of(name)).absolute()))}?mode={mode}"
    for left in reversed(range(_TRIES)):
        try:
            return sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False, cached_statements=32
            )
        except sqlite3.OperationalError as error:
            length = len(os.fsencode(os.path.realpath(folder.path_of(name))))
            if length > _LONGEST_PATH:
                raise IndexProblem(
                    f"the path {folder.path / name} has {length:,} bytes; the limit of SQLite is "
                    f"{_LONGEST_PATH}",
                    "move the index to a shorter path; it is not damaged",
                ) from error
            folder.open_file(name).close()  # raises an error with the reason, if it persists
            if not left:
                raise OSError(None, f"{name}: {error}") from error
    raise AssertionError("the last try returns or raises")
