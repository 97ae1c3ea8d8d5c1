"""Documents from whatever a program has: `Document`s, dicts, or what `read_documents` gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from coil.errors import InputError
from coil.texts.corpora import Documents, make_document
from coil.texts.values import Document

Texts = Iterable[Document | Mapping[str, Any]]


class GivenDocuments(Iterator[Document]):
    """Documents from whatever was given, each with the place it came from."""

    def __init__(self, given: Texts) -> None:
        self._reading = given if isinstance(given, Documents) else None
        self.are_files = self._reading is not None and self._reading.are_files
        self._stream = iter(given)
        self._number = 0

    def __next__(self) -> Document:
        found = next(self._stream)
        self._number += 1
        if isinstance(found, Document):
            return found
        if not isinstance(found, Mapping):
            raise InputError(
                f"document {self._number} of those given is a {type(found).__name__}, no dict",
                'give a list of dicts such as {"id": "a", "text": "..."}',
            )
        return make_document(dict(found), "the documents given", self._number)

    @property
    def mark(self) -> int:
        """The last document's place as a number."""
        return self._reading.mark if self._reading is not None else self._number

    def place_of(self, mark: int, doc_id: str) -> str:
        """A document's place in words."""
        if self._reading is not None:
            return self._reading.place_of(mark, doc_id)
        return f"document {mark} of those given"

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._reading.gauge.bytes_read if self._reading is not None else 0
