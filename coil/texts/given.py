"""Documents passed from Python: `Document`s, dicts, tables, or the result of `read_documents`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import Any

from coil.errors import InputError
from coil.texts.columns import USUAL, Columns, Unseen, check_document, make_document
from coil.texts.corpora import Documents
from coil.texts.tables import as_table
from coil.texts.values import Document

Texts = Iterable[Document | Mapping[str, Any]] | Any
"""Documents, dicts, or a table; `Any`, because a DataFrame is not an iterable of its rows."""

_REMEDY = 'pass a list of documents, such as [{"id": "a", "text": "..."}]'


class GivenDocuments(Iterator[Document]):
    """Documents from what a caller passed, each with the place it came from."""

    def __init__(self, given: Texts, columns: Columns = USUAL) -> None:
        table = as_table(given)
        if table is not None:
            table.check(columns.named)
            given = Documents([table], columns)
        elif columns.named and isinstance(given, Documents):
            raise InputError(
                f"{columns} was given for documents that have already been read",
                "pass the columns to read_documents",
            )
        self._columns, self._unseen = columns, Unseen(columns)
        self._reading = given if isinstance(given, Documents) else None
        self.are_files = self._reading is not None and self._reading.are_files
        self.sources = self._reading.paths if self._reading is not None else ()
        self._stream = _iterate(given)
        self._number = 0

    def __next__(self) -> Document:
        try:
            found = next(self._stream)
        except StopIteration:
            if self._reading is None:
                self._unseen.check("the list of documents")
            raise
        self._number += 1
        if isinstance(found, Document):
            if self._columns.named and self._reading is None:
                raise InputError(
                    f"document {self._number} is a Document, but {self._columns} was given",
                    "use column options only with dicts and tables",
                )
            return check_document(found, "documents", self._number)
        if not isinstance(found, Mapping):
            raise InputError(
                f"document {self._number} is a {type(found).__name__}; expected a dict",
                _REMEDY,
            )
        self._unseen.note(found)
        return make_document(dict(found), "documents", self._number, columns=self._columns)

    @property
    def mark(self) -> int:
        """The position of the last document as a number."""
        return self._reading.mark if self._reading is not None else self._number

    def place_of(self, mark: int, doc_id: str) -> str:
        """A description of the position of a document."""
        if self._reading is not None:
            return self._reading.place_of(mark, doc_id)
        return f"document {mark}"

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._reading.gauge.bytes_read if self._reading is not None else 0


def _iterate(given: Texts) -> Iterator[Document | Mapping[str, Any]]:
    """The documents one by one; a single document or path is refused."""
    if isinstance(given, Document | Mapping):
        raise InputError("got a single document; expected a list of documents", _REMEDY)
    if isinstance(given, str | bytes | PathLike):
        raise _no_list(given, "; to read a file, use `coil add`")
    try:
        return iter(given)
    except TypeError as error:
        raise _no_list(given) from error


def _no_list(given: object, also: str = "") -> InputError:
    found = "None" if given is None else f"a value of type {type(given).__name__}"
    return InputError(f"got {found}; expected a list of documents", f"{_REMEDY}{also}")
