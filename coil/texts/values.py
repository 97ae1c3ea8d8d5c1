"""Document and Query: a text with an outside id."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Document:
    """A text of the collection. `fields` keeps whatever else the source said about it."""

    doc_id: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """A text to search for."""

    query_id: str
    text: str


def clean(text: str) -> str:
    """Replace lone surrogates, which are what Python makes of invalid UTF-8, by U+FFFD, one for one.

    The length in characters does not change, so character spans stay valid for the original text.
    """
    return _SURROGATES.sub("�", text)
