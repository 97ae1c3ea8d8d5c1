"""Columns: which values of a record are the id, the title and the text of a document.

Unless a column is named, the id is the first of `_id`, `id`, `doc_id`, `docno`, `pid`; the title is `title`;
the text is `text`, `contents` and `body`. A document's text consists of its title and its texts, in this
order, joined by line feeds; missing and empty ones are skipped. The title and all other values are kept in
the fields; the title is always kept as `title`, even if another column was named for it.

A table must have every named column. Records whose keys may differ (JSON lines, dicts) must each have an id
and at least one of the texts, and every named column must occur in at least one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coil.errors import BadLine, InputError
from coil.texts.opening import shorten
from coil.texts.records import (
    Keys,
    Record,
    SameName,
    TooDeep,
    check_columns,
    plain_value,
    take_id,
    take_texts,
)
from coil.texts.values import MOST_ID_BYTES, Document, clean, id_size

ID_KEYS = ("_id", "id", "doc_id", "docno", "pid")
TEXT_KEYS = ("text", "contents", "body")
TITLE_KEY = "title"

_SHOWN_KEYS = 50


@dataclass(frozen=True)
class Columns:
    """The named columns; None or empty means the usual ones."""

    id: str | None = None
    texts: tuple[str, ...] = ()
    title: str | None = None

    @property
    def named(self) -> tuple[str, ...]:
        """All names that were given, without duplicates."""
        given = (self.id, *self.texts, self.title)
        return tuple(dict.fromkeys(name for name in given if name is not None))

    @property
    def id_keys(self) -> tuple[str, ...]:
        """The keys that may hold the id, in order of preference."""
        return ID_KEYS if self.id is None else (self.id,)

    @property
    def title_key(self) -> str:
        """The key that holds the title, if there is one."""
        return TITLE_KEY if self.title is None else self.title

    @property
    def text_keys(self) -> tuple[str, ...]:
        """The keys of title and texts, in the order in which they are joined.

        A title that is also a text column keeps its position there.
        """
        texts = self.texts or TEXT_KEYS
        return texts if self.title_key in texts else (self.title_key, *texts)

    @property
    def keys(self) -> Keys:
        """The keys as file readers need them."""
        return Keys(self.id_keys, self.text_keys, self.named)

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest: only the named columns."""
        value = {"id": self.id, "text": list(self.texts), "title": self.title}
        return {name: given for name, given in value.items() if given}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Columns:
        """Restore from the manifest; invalid values are a ValueError."""
        if not isinstance(value, dict) or not value.keys() <= {"id", "text", "title"}:
            raise ValueError("the columns are not an object of names")
        texts = value.get("text", [])
        names = [value.get("id"), value.get("title")]
        if not isinstance(texts, list) or not all(isinstance(n, str) for n in texts):
            raise ValueError("the text columns are not strings")
        if not all(name is None or isinstance(name, str) for name in names):
            raise ValueError("a column name is not a string")
        return cls(value.get("id"), tuple(texts), value.get("title"))

    def __str__(self) -> str:
        """As command-line options."""
        parts = [f"--id-column {self.id}"] if self.id is not None else []
        parts += [f"--text-column {name}" for name in self.texts]
        parts += [f"--title-column {self.title}"] if self.title is not None else []
        return " ".join(parts) or "no column options"


USUAL = Columns()


def name_columns(
    id_column: object = None, text_column: object = None, title_column: object = None
) -> Columns:
    """The columns that a caller names; `text_column` may be one name or several."""
    if text_column is None:
        texts: tuple[Any, ...] = ()
    elif isinstance(text_column, str) or not isinstance(text_column, Iterable):
        texts = (text_column,)
    else:
        texts = tuple(text_column)
    names = [_check_name("text_column", name) for name in texts]
    if len(set(names)) < len(names):
        raise InputError(f"duplicate text column: {', '.join(names)}", "pass each column once")
    return Columns(
        None if id_column is None else _check_name("id_column", id_column),
        tuple(names),
        None if title_column is None else _check_name("title_column", title_column),
    )


def _check_name(option: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise InputError(f"{option} is {name!r:.80}; expected the name of a column", "pass a column name")
    return name


class Unseen:
    """The named columns that no record has had so far."""

    def __init__(self, columns: Columns) -> None:
        self._missing = dict.fromkeys(columns.named)
        self._keys: dict[str, None] = {}

    def note(self, record: Mapping[str, Any]) -> None:
        """Record the keys of a record that was read."""
        if self._missing:
            if len(self._keys) < _SHOWN_KEYS:
                self._keys.update(dict.fromkeys(str(key) for key in record))
            for key in [key for key in self._missing if key in record]:
                del self._missing[key]

    def check(self, where: str) -> None:
        """After the last record, raise InputError for a column that no record had."""
        if self._missing and self._keys:
            check_columns(where, list(self._keys), list(self._missing))


def make_document(
    record: Record, where: str = "record", line: int = 1, text: str | None = None, columns: Columns = USUAL
) -> Document:
    """The document of a record; an error names `where` and `line`.

    `text` is passed if the source itself defines the text of the record.
    """
    key, doc_id = take_id(record, columns.id_keys, where, line)
    _check_id_size(doc_id, where, line)
    texts = columns.text_keys
    if text is None:
        text = "\n".join(take_texts(record, texts, where, line))
    dropped = {key, *texts} - {TITLE_KEY}
    fields = {name: value for name, value in record.items() if name not in dropped}
    if columns.title is not None and columns.title in record:
        fields[TITLE_KEY] = record[columns.title]
    return Document(doc_id, clean(text), _plain_fields(fields, where, line))


def check_document(document: Document, where: str, line: int) -> Document:
    """Validate a document created in Python as if it had been read from a file."""
    if document.doc_id == "":
        raise BadLine(where, line, "the id is empty; expected a string", "give each document its own id")
    parts: list[tuple[str, object, type]] = [
        ("id", document.doc_id, str),
        ("text", document.text, str),
        ("fields", document.fields, dict),
    ]
    for name, value, kind in parts:
        if not isinstance(value, kind):
            reason = f"{name} is a {type(value).__name__}; expected a {kind.__name__}"
            raise BadLine(where, line, reason, f"convert it to a {kind.__name__}")
    _check_id_size(document.doc_id, where, line)
    fields = _plain_fields(document.fields, where, line)
    return Document(clean(document.doc_id), clean(document.text), fields)


def _check_id_size(doc_id: str, where: str, line: int) -> None:
    size = id_size(doc_id)
    if size > MOST_ID_BYTES:
        reason = f"the id has {size:,} bytes, which exceeds the limit of {MOST_ID_BYTES:,}"
        raise BadLine(where, line, f"{reason}: {shorten(clean(doc_id))}", "use a shorter id")


def _plain_fields(fields: dict[str, Any], where: str, line: int) -> dict[str, Any]:
    try:
        named = {clean(str(name)): plain_value(value) for name, value in fields.items()}
        if len(named) < len(fields):
            [(name, _)] = Counter(clean(str(name)) for name in fields).most_common(1)
            raise SameName(f"the record has the field {name!r:.80} twice, under different keys")
        return named
    except TooDeep as error:
        raise BadLine(where, line, str(error), "flatten them") from error
    except RecursionError as error:  # of a value's own conversion to a string
        raise BadLine(where, line, "the fields are nested too deeply", "flatten them") from error
    except SameName as error:
        raise BadLine(where, line, str(error), "give each field a unique name") from error
    except ValueError as error:
        reason = f"the fields cannot be stored: {error}"
        raise BadLine(where, line, reason, "write such a number as a string") from error
