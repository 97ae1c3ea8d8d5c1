"""Document and Query: a text with an external id."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field
from typing import Any

MOST_ID_BYTES = 16 << 10  # of an id in UTF-8: even with every byte as %xx, it fits into a URL
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
