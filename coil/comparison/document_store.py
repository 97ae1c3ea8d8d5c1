"""The documents of a collection on disk: read and checked once, then passed to every system."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from coil.errors import InputError
from coil.texts.corpora import unique
from coil.texts.values import Document

STORE_FILE = "documents.sqlite"
_AT_ONCE = 500  # parameters of one SQL statement
_COMMIT = 10_000
_SHAPE = "CREATE TABLE documents (place INTEGER PRIMARY KEY, doc_id TEXT UNIQUE, text TEXT, fields TEXT)"


def store_documents(
    documents: Iterable[Document], folder: Path, progress: Callable[[int], object]
) -> dict[str, Any]:
    """Write the documents; returns their number and a digest. A duplicate id is an error."""
    digest = hashlib.sha256()
    count = empty = 0
    with closing(sqlite3.connect(folder / STORE_FILE, isolation_level=None)) as database:
        for setting in ("journal_mode = OFF", "synchronous = OFF"):  # the store is rebuilt after a crash
            database.execute(f"PRAGMA {setting}")
        database.execute(_SHAPE)
        database.execute("BEGIN")
        for document in unique(documents):
            fields = json.dumps(document.fields, sort_keys=True)
            row = (count, document.doc_id, document.text, fields)
            digest.update(json.dumps(row[1:]).encode())
            database.execute("INSERT INTO documents VALUES (?, ?, ?, ?)", row)
            count += 1
            empty += document.is_empty
            progress(1)
            if count % _COMMIT == 0:
                database.execute("COMMIT")
                database.execute("BEGIN")
        database.execute("COMMIT")
    if count == 0:
        raise InputError("the collection has no documents", "check its path and format")
    return {"documents": count, "empty": empty, "digest": digest.hexdigest()}


class DocumentStore(Mapping[str, Document]):
    """Documents by id, in the order of the collection; read on demand."""

    def __init__(self, folder: Path) -> None:
        self._database = sqlite3.connect(
            f"{(folder / STORE_FILE).resolve().as_uri()}?mode=ro", uri=True, check_same_thread=False
        )
        [(self._count,)] = self._database.execute("SELECT COUNT(*) FROM documents")

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def __len__(self) -> int:
        return int(self._count)

    def __iter__(self) -> Iterator[str]:
        for (doc_id,) in self._database.execute("SELECT doc_id FROM documents ORDER BY place"):
            yield doc_id

    def __getitem__(self, doc_id: str) -> Document:
        found = self._database.execute("SELECT text, fields FROM documents WHERE doc_id = ?", (doc_id,))
        row = found.fetchone()
        if row is None:
            raise KeyError(doc_id)
        return Document(doc_id, row[0], json.loads(row[1]))

    def documents(self) -> Iterator[Document]:
        """All documents, in order."""
        for doc_id, text, fields in self._database.execute(
            "SELECT doc_id, text, fields FROM documents ORDER BY place"
        ):
            yield Document(doc_id, text, json.loads(fields))

    def places(self, doc_ids: Iterable[str]) -> dict[str, int]:
        """The positions of documents in the collection; unknown ids are left out."""
        wanted: Sequence[str] = list(dict.fromkeys(doc_ids))
        found: dict[str, int] = {}
        for begin in range(0, len(wanted), _AT_ONCE):
            some = wanted[begin : begin + _AT_ONCE]
            marks = ", ".join("?" * len(some))
            found.update(
                self._database.execute(
                    f"SELECT doc_id, place FROM documents WHERE doc_id IN ({marks})", tuple(some)
                )
            )
        return found
