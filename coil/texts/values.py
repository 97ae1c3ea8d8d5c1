"""Document and Query: a text with an external id."""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

MOST_ID_BYTES = 16 << 10  # of an id in UTF-8: even with every byte as %xx, it fits into a URL
MOST_EMPTY = 16 << 20  # bytes of the ids of documents without text; further ids are only counted
_ID_BYTES = 100  # in a dictionary, without its characters
_INVISIBLE = frozenset(("Cc", "Cf", "Zl", "Zp", "Zs"))
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A text of the collection. `fields` holds all other values of its source."""

    doc_id: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The approximate number of characters in its text and fields."""
        others = (len(v) if isinstance(v, str) else len(repr(v)) for v in self.fields.values())
        return len(self.text) + sum(others)

    @property
    def is_empty(self) -> bool:
        """Whether the text has only white space and invisible characters.

        Such a document shares no word with any query, but it would have a sentence vector and could be a hit,
        even the first one. So it is never indexed.
        """
        return all(unicodedata.category(char) in _INVISIBLE for char in self.text)


class EmptyDocuments(list[str]):
    """Ids of documents without text. Of very many, only the first are in the list; `total` counts all."""

    def __init__(self, ids: Iterable[str] = (), more: int = 0) -> None:
        super().__init__(ids)
        self.total = len(self) + more


class EmptyTally:
    """Collects the documents without text among many. Of documents with the same id, the last counts."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}
        self._room = MOST_EMPTY
        self._more = 0

    def see(self, document: Document) -> None:
        """Count a document."""
        doc_id, is_known = document.doc_id, document.doc_id in self._ids
        size = sys.getsizeof(doc_id) + _ID_BYTES
        if not document.is_empty:
            if is_known:
                del self._ids[doc_id]
                self._room += size
        elif is_known or size <= self._room:
            self._room -= 0 if is_known else size
            self._ids[doc_id] = None
        else:
            self._more += 1

    @property
    def found(self) -> EmptyDocuments:
        """Those without text."""
        return EmptyDocuments(self._ids, self._more)


@dataclass(frozen=True)
class Query:
    """A text to search for."""

    query_id: str
    text: str


def field_of(fields: dict[str, Any], name: str) -> Any:
    """The value of a field, None if there is none; a dotted name may also refer to a nested field."""
    if name in fields:
        return fields[name]
    value: Any = fields
    for part in name.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def clean(text: str) -> str:
    """Replace lone surrogates, which Python creates from invalid UTF-8, with U+FFFD, one for one.

    The length in characters does not change, so character spans stay valid for the original text.
    """
    return _SURROGATES.sub("�", text)


def id_size(doc_id: str) -> int:
    """The size of an id in bytes; a lone surrogate counts as its replacement."""
    return len(doc_id.encode("utf-8", errors="surrogatepass"))
