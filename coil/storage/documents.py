"""Reads the documents of a segment: ids, texts and fields, from an SQLite file that never changes.

It is opened as immutable: no locks, no log, no interference from a writer, also on a read-only disk.
"""

from __future__ import annotations

import json
import os
import sqlite3
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.compiled import compiled_code
from coil.errors import DamagedSegment, InputError, SearchTimeout
from coil.lists.segment_file import REMEDY
from coil.storage.connections import Connection, Watch
from coil.storage.disk import Folder
from coil.storage.document_file import AT_ONCE, BATCH_BYTES, SCHEMA, StoredDocument, close_all, connect
from coil.storage.filters import Filter, columns_of, path_of
from coil.texts.values import Document, field_of

T = TypeVar("T")
_LEAST_BYTES = 8  # minimum size of a document
_SCANNED = 10_000  # documents whose fields are scanned with one statement
_LARGE = 1 << 16  # characters of all fields of a document; larger ones are read individually
_MOST_KNOWN, _LONGEST_KNOWN = 10_000, 200  # cached field names, whether or not they exist; their characters
_NONE = np.zeros(0, dtype=np.int64)
# SQLite 3.43 knows the size of a value without reading it. Opening the values as blobs would, too, but Python
# keeps an object for every blob until the connection is closed.
_BYTES = "octet_length({})" if sqlite3.sqlite_version_info >= (3, 43) else "length(CAST({} AS BLOB))"
_SIZE = " + ".join(map(_BYTES.format, ("text", "fields")))
_WRITTEN = {
    ("index", "sqlite_autoindex_documents_1", None),
    ("table", "documents", SCHEMA.strip().removesuffix(";")),
}
_FieldRow = tuple[int, str, Any, int]
"""ordinal, JSON type, value unless it is large, characters of all fields"""
# The values that may contain a word: all but whole numbers and texts of printable ASCII without it.
# A text with other characters or a NUL has fewer characters than bytes; control characters are escaped in
# JSON, except for the last one of ASCII. A pattern would find all of these, but takes longer.
_MAY_CONTAIN = """CASE type
    WHEN 'text' THEN instr(lower(value), ?) > 0 OR length(value) < length(CAST(value AS BLOB))
        OR length(json_quote(value)) > length(value) + 2 OR instr(value, char(127)) > 0
    WHEN 'integer' THEN typeof(value) != 'integer' OR instr(value, ?) > 0
    ELSE type IS NOT NULL END"""
_TYPES = (int, str, str, str, int)  # of a StoredDocument: a column of SQLite may contain any type


def _refuse(constant: str) -> Any:
    """Refuse NaN and infinities, which Python's parser accepts and SQLite's does not."""
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


class DocumentReader:
    """The documents of one segment. Threads may read concurrently; a filter does not block other reads.

    Both connections are opened up front: the file may be gone by the time that a second one is needed.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._where = str(folder.path / name)
        lookups = self._open(folder, name)
        try:
            filters = self._open(folder, name)
            self._most_documents = os.stat(folder.path_of(name)).st_size // _LEAST_BYTES
        except BaseException:
            lookups.close()
            raise
        self._lookups, self._filters = Connection(lookups), Connection(filters)
        self._known_fields: dict[str, bool] = {}
        self._large: NDArray[np.int64] | None = None  # the documents with large fields, once they are known
        self._close = weakref.finalize(self, close_all, lookups, filters)
        self._close.atexit = False  # threads may still be reading when the interpreter ends

    def _open(self, folder: Folder, name: str) -> sqlite3.Connection:
        try:
            with self._damage_told(), compiled_code():
                connection = connect(folder, name, "ro&immutable=1")
                try:
                    connection.execute("PRAGMA trusted_schema = OFF")
                    connection.execute("PRAGMA mmap_size = 0")  # then a truncated file raises an error
                    # Require the table and its index of ids: a view could return anything, endlessly.
                    found = connection.execute("SELECT type, name, sql FROM sqlite_master LIMIT 3").fetchall()
                    if len(found) != 2 or set(found) != _WRITTEN:
                        raise self._damaged("it has an unexpected schema")
                except BaseException:
                    connection.close()
                    raise
                return connection
        except sqlite3.OperationalError as error:
            raise DamagedSegment(f"{self._where} cannot be opened: {error}", REMEDY) from error

    def close(self) -> None:
        """Close the file."""
        self._close()

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> dict[int, Document]:
        """Documents by their ordinals; faster without texts and fields."""
        found: dict[int, Document] = {}
        self.fetch_into(found, ordinals, texts)
        return found

    def fetch_into(self, found: dict[int, Document], ordinals: Sequence[int], texts: bool = True) -> None:
        """Add documents to `found` by their ordinals."""
        columns = "text, fields" if texts else "'', '{}'"
        for begin in range(0, len(ordinals), AT_ONCE):
            some = ordinals[begin : begin + AT_ONCE]
            sql = f"SELECT ordinal, doc_id, {columns} FROM documents WHERE ordinal IN ({_marks(some)})"
            for ordinal, doc_id, text, fields in self._read(sql, some):
                if type(doc_id) is not str or type(text) is not str:
                    raise self._damaged("an id or a text is not a string")
                found[ordinal] = Document(doc_id, text, {} if fields == "{}" else self._fields(fields))

    def ordinals_of(self, doc_ids: Sequence[str]) -> dict[str, int]:
        """The ordinals of those ids that the file contains."""
        found: dict[str, int] = {}
        for begin in range(0, len(doc_ids), AT_ONCE):
            some = doc_ids[begin : begin + AT_ONCE]
            found.update(
                self._read(f"SELECT doc_id, ordinal FROM documents WHERE doc_id IN ({_marks(some)})", some)
            )
        return found

    def ids(self) -> Iterator[tuple[int, str]]:
        """The ordinal and the id of every document, in batches."""
        after = -1
        sql = f"SELECT ordinal, doc_id FROM documents WHERE ordinal > ? ORDER BY ordinal LIMIT {AT_ONCE}"
        while some := self._read(sql, [after]):
            yield from some
            if some[-1][0] <= after:
                raise self._damaged("its documents are not in order")
            after = some[-1][0]

    def size_of(self, ordinal: int) -> int:
        """The bytes of a document's text and fields."""
        sizes = self._read(f"SELECT {_SIZE} FROM documents WHERE ordinal = ?", [ordinal])
        if len(sizes) != 1 or type(sizes[0][0]) is not int:
            raise self._damaged("a document of the lists is missing or has no text")
        size: int = sizes[0][0]
        return size

    def stored(self, ordinals: NDArray[np.int64]) -> Iterator[StoredDocument]:
        """The documents of these ordinals, ascending, as stored in the file; in batches."""
        for some in self._few_bytes(ordinals):
            rows = self._read(
                "SELECT ordinal, doc_id, text, fields, dropped FROM documents "
                f"WHERE ordinal IN ({_marks(some)}) ORDER BY ordinal",
                some,
            )
            if len(rows) != len(some):
                raise self._damaged("a document of the lists is missing")
            if any(tuple(map(type, row)) != _TYPES for row in rows):
                raise self._damaged("a document has a value of the wrong type")
            yield from rows

    def _few_bytes(self, ordinals: NDArray[np.int64]) -> Iterator[list[int]]:
        """Batches of few bytes, or of a single document. A string may take four times its bytes in memory."""
        for begin in range(0, len(ordinals), AT_ONCE):
            some = ordinals[begin : begin + AT_ONCE].tolist()
            sizes = dict(
                self._read(f"SELECT ordinal, {_SIZE} FROM documents WHERE ordinal IN ({_marks(some)})", some)
            )
            batch: list[int] = []
            size = 0
            for ordinal in some:
                more = sizes.get(ordinal) or 0  # a document without a size is reported when it is read
                if batch and size + more > BATCH_BYTES:
                    yield batch
                    batch, size = [], 0
                batch.append(ordinal)
                size += more
            yield batch

    def count_truncated(self, alive: NDArray[np.int64] | None, deadline: float | None = None) -> int:
        """How many documents, of these ordinals or of all, were truncated."""
        found = self._scan("dropped > 0", (), deadline)
        return len(found) if alive is None else int(is_among(found, alive).sum())

    def select(self, wanted: Filter, deadline: float | None) -> NDArray[np.int64]:
        """The ordinals of the documents that match a filter, ascending; SearchTimeout after the deadline.

        SQLite parses the fields of a document for each name, and keeps what it has parsed to the end of the
        document. Large fields are therefore parsed in a statement for each name.
        """
        large = self._large_documents(deadline) if len(wanted.names) > 1 else _NONE
        some = f"documents WHERE length(fields) <= {_LARGE}" if len(large) else "documents"
        source, parameters = wanted.over(some)
        found = self._scan(wanted.where, parameters, deadline, source)
        also = [ordinal for ordinal in large.tolist() if self._is_selected(wanted, ordinal, deadline)]
        return np.sort(np.concatenate([found, np.array(also, dtype=np.int64)])) if also else found

    def _is_selected(self, wanted: Filter, ordinal: int, deadline: float | None) -> bool:
        """Whether a document with large fields matches a filter."""
        fields: list[tuple[str | None, Any]] = []
        for name in wanted.names:
            kind, value, paths = columns_of(name)
            fields += self._watched(list, f"{kind}, {value}", "ordinal = ?", [*paths, ordinal], deadline)
        source, parameters = wanted.over_values(ordinal, fields)
        return bool(self._watched(list, "1", wanted.where, parameters, deadline, source))

    def _large_documents(self, deadline: float | None) -> NDArray[np.int64]:
        """The ordinals of the documents with large fields, ascending."""
        if self._large is None:
            self._large = self._scan(f"length(fields) > {_LARGE}", (), deadline)
        return self._large

    def has_field(self, name: str, alive: NDArray[np.int64] | None, deadline: float | None) -> bool:
        """Whether any document, of these ordinals or of all, has a field of this name."""
        path, values = path_of(name)
        where = f"json_type(fields, {path}) IS NOT NULL"
        known = self._known_fields.get(name)
        if known is None:
            known = bool(self._watched(list, "1", f"{where} LIMIT 1", values, deadline))
            if may_remember(self._known_fields, name):
                self._known_fields[name] = known
        if alive is None or not known:
            return known

        def is_any_alive(rows: Iterator[Any]) -> bool:
            while some := [ordinal for (ordinal,) in islice(rows, AT_ONCE)]:
                if is_among(np.array(some, dtype=np.int64), alive).any():
                    return True
            return False

        return self._watched(is_any_alive, "ordinal", where, values, deadline)

    def field_values(
        self, name: str, ordinals: Sequence[int], deadline: float | None = None, word: str | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The values of a field for those of these documents that have it; SearchTimeout after the deadline.

        With `word`, in lower case, whole numbers and texts of printable ASCII that do not contain it, in any
        case, are left out: SQLite finds them much faster than a caller could.

        Values are read in batches, so that no other read is blocked for long, and large ones one by one.
        """
        path, values = path_of(name)
        for ordinal, kind, small, size in self._field_rows(name, sorted(ordinals), deadline, word):
            extracted = small
            if size > _LARGE:
                value = f"json_extract(fields, {path})"
                [(extracted,)] = self._watched(list, value, "ordinal = ?", [*values, ordinal], deadline)
            if kind == "integer" and isinstance(extracted, float):  # SQLite's integers have 64 bits
                yield ordinal, field_of(self.fetch([ordinal])[ordinal].fields, name)
            else:
                yield ordinal, self._field_value(kind, extracted)

    def _field_rows(
        self, name: str, ordinals: Sequence[int], deadline: float | None, word: str | None
    ) -> Iterator[_FieldRow]:
        """The rows of a field for these ordinals, which ascend: by number, or by range if there are many."""
        begin = 0
        while begin < len(ordinals):
            window = ordinals[begin : begin + _SCANNED]
            first, last = window[0], window[-1]
            if last - first < 2 * len(window):
                where, given = "ordinal BETWEEN ? AND ?", [first, last]
            else:
                window = window[:AT_ONCE]
                where, given = f"ordinal IN ({_marks(window)})", list(window)
            found, is_whole = self._read_field(name, where, given, deadline, word)
            if not is_whole:
                last = found[-1][0]
                if last < first:
                    raise self._damaged("its documents are not in order")
                window = window[: bisect_right(window, last)]
            wanted = set(window)
            yield from (row for row in found if row[0] in wanted)
            begin += len(window)

    def _read_field(
        self, name: str, where: str, given: Sequence[int], deadline: float | None, word: str | None
    ) -> tuple[list[_FieldRow], bool]:
        """The first rows of a field that have few bytes, and whether these are all."""
        path, values = path_of(name)
        columns = f"ordinal, type, CASE WHEN length(fields) <= {_LARGE} THEN value END, length(fields)"
        source = (
            f"(SELECT ordinal, fields, json_type(fields, {path}) AS type, "
            f"json_extract(fields, {path}) AS value FROM documents "
            f"WHERE {where} ORDER BY ordinal LIMIT -1 OFFSET 0)"
        )
        kept, words = ("type IS NOT NULL", []) if word is None else (_MAY_CONTAIN, [word, word])

        def take(rows: Iterator[_FieldRow]) -> tuple[list[_FieldRow], bool]:
            found: list[_FieldRow] = []
            left = BATCH_BYTES
            for row in rows:
                found.append(row)
                left -= min(row[3], _LARGE)
                if left <= 0:
                    return found, False
            return found, True

        return self._watched(take, columns, kept, [*values, *values, *given, *words], deadline, source)

    def _scan(
        self, where: str, parameters: Sequence[Any], deadline: float | None, source: str = "documents"
    ) -> NDArray[np.int64]:
        """The ordinals of all documents that meet a condition, ascending."""

        def take(rows: Iterator[Any]) -> NDArray[np.int64]:
            found = array("q", [-1])
            for (ordinal,) in rows:
                if ordinal <= found[-1]:
                    raise self._damaged("its documents are not in order")
                found.append(ordinal)
            return np.frombuffer(found, dtype=np.int64)[1:]

        return self._watched(take, "ordinal", f"{where} ORDER BY ordinal", parameters, deadline, source)

    def _watched(
        self,
        take: Callable[[Iterator[Any]], T],
        columns: str,
        where: str,
        parameters: Sequence[Any],
        deadline: float | None,
        source: str = "documents",
    ) -> T:
        """What `take` makes of the rows of a statement that reads all documents; it is interrupted at the
        deadline.

        An exception of a signal handler may keep a suspended generator, so none is needed to release the
        connection: see `Lock`.
        """
        connection = self._lookups if self._filters.is_mine else self._filters
        with self._guarded(), connection.lock:
            opened = connection.opened
            size = len(where) + len(source)
            watch = Watch(deadline, (self._most_documents + 1_000) * (200 + 10 * size))
            checks = watch.checks()
            if next(checks):
                raise watch.interruption or _late()
            try:
                try:
                    connection.is_watched = True
                    opened.set_progress_handler(checks.__next__, watch.steps)
                    return take(opened.execute(f"SELECT {columns} FROM {source} WHERE {where}", parameters))
                finally:  # no call comes before the second of these steps, so neither is missed
                    connection.is_watched = False
                    opened.set_progress_handler(None, 0)
            except sqlite3.OperationalError as error:
                if watch.interruption is not None:
                    raise watch.interruption from None
                if watch.is_late:
                    raise _late() from error
                if watch.is_endless or "malformed JSON" in str(error):
                    raise self._damaged(str(error)) from error
                # Too many parts or values for one statement.
                raise InputError(f"the filter cannot be used: {error}", "shorten it") from error

    def check(self, ordinals: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Read everything: SQLite's pages, every text, every field. The ordinals must be all that exist.

        Returns how many characters each text has, and whether it was truncated.
        """
        [(found,)] = self._read("PRAGMA integrity_check(1)")
        if found != "ok":
            raise self._damaged(" ".join(str(found).split()))
        lengths = np.zeros(len(ordinals), dtype=np.int64)
        truncated = np.zeros(len(ordinals), dtype=bool)
        for place, (_, _, text, fields, dropped) in enumerate(self.stored(ordinals)):
            self._check_surrogates(fields, self._fields(fields))
            lengths[place], truncated[place] = len(text), dropped > 0
        [(count,)] = self._read("SELECT count(*) FROM documents")
        if count != len(ordinals):
            raise self._damaged(f"it contains {count:,} documents; expected {len(ordinals):,}")
        return lengths, truncated

    def _read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._guarded(), self._lookups.lock:
            try:
                return self._lookups.opened.execute(sql, parameters).fetchall()
            except sqlite3.OperationalError as error:  # such as a text that is not UTF-8
                raise self._damaged(str(error)) from error

    def _check_surrogates(self, written: str, fields: dict[str, Any]) -> None:
        """Refuse lone surrogates, which Python's parser accepts and SQLite's does not."""
        if "\\u" in written:
            try:
                json.dumps(fields, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise self._damaged("the fields of a document contain a lone surrogate") from error

    def _fields(self, written: str) -> dict[str, Any]:
        """Parse what `stored` wrote. It has no surrounding whitespace, so json's faster decoder suffices."""
        try:
            fields, end = _DECODER.raw_decode(written)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._damaged(f"the fields of a document cannot be parsed: {error}") from error
        if not isinstance(fields, dict) or end != len(written):
            raise self._damaged("the fields of a document are not an object")
        return fields

    def _field_value(self, kind: str, value: Any) -> Any:
        """A field's value as it was in JSON."""
        if kind in ("array", "object"):
            try:
                return json.loads(value)
            except (ValueError, RecursionError) as error:
                raise self._damaged(f"a field of a document cannot be parsed: {error}") from error
        return bool(value) if kind in ("true", "false") else value

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Guards the use of a connection: the call begins first, then the connection's lock is acquired.

        A call waits for a fork, and a fork for the calls in progress. If a thread that waits for a fork
        already held the lock, a call that needs it would wait for that thread, and the fork for that call.
        """
        with self._damage_told(), compiled_code():
            yield

    @contextmanager
    def _damage_told(self) -> Iterator[None]:
        """Translates SQLite's errors about a file that it cannot interpret."""
        try:
            yield
        except (sqlite3.OperationalError, sqlite3.ProgrammingError):
            raise
        except UnicodeDecodeError as error:  # in SQLite's own message about a name that is not valid text
            raise self._damaged("it contains bytes that are not UTF-8") from error
        except sqlite3.DatabaseError as error:
            raise self._damaged(str(error)) from error

    def _damaged(self, reason: str) -> DamagedSegment:
        return DamagedSegment(f"{self._where} is damaged: {reason}", REMEDY)


def may_remember(known: Sized, name: str) -> bool:
    """Whether to add a field name to those that are known: anyone may ask for any number of long ones."""
    return len(known) < _MOST_KNOWN and len(name) <= _LONGEST_KNOWN


def _late() -> SearchTimeout:
    return SearchTimeout("the filter exceeded its time limit", "simplify the filter, or allow more time")


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))
