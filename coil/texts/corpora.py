"""Documents from any kind of corpus.

A source is a file of records (see `records`), a file that is one document or a folder of such files (see
`files`), a BEIR folder (one that contains corpus.jsonl, plain or compressed), `irds:NAME`, `-` for JSON lines
on standard input, or a table in memory (see `tables`).

`columns` defines the id, the title and the text of a record. Ids are compared byte for byte: they are
case-sensitive, and Unicode is not normalized.

The id of a file that is one document is its name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from coil.errors import DuplicateId, InputError
from coil.texts.columns import USUAL, Columns, Unseen, make_document, name_columns
from coil.texts.files import (
    PROSE,
    Skipped,
    check_folder,
    check_kind,
    is_one_text,
    read_file,
    read_folder,
    readable_files,
)
from coil.texts.irds import is_irds, iterate_irds, load_irds
from coil.texts.opening import (
    STANDARD_INPUT,
    Gauge,
    Source,
    check_readable,
    name_of,
)
from coil.texts.records import (
    Record,
    check_records,
    find_in_folder,
    read_records,
)
from coil.texts.tables import Table, as_table
from coil.texts.values import Document, clean

CORPUS_FILE = "corpus.jsonl"

_STRING_BYTES = 100  # allowed for the header of a Python string
_LINE_BITS = 40  # up to a trillion lines per file

Located = tuple[str, int, Document]  # file or folder, line (0 for a file of the folder), document


class Documents(Iterator[Document]):
    """The documents of some sources, read on demand; `place` is the position of the last one read."""

    def __init__(self, sources: Sequence[Source | Table], columns: Columns = USUAL) -> None:
        self._sources = sources
        self.columns = columns  # may be set until the first document is read
        self.gauge = Gauge()
        self._skipped = Skipped()
        self._located = (located for source in sources for located in self._locate(source))
        self._paths: list[str] = []
        self._line = 0
        self._doc_id = ""
        self._ended = False

    def __next__(self) -> Document:
        located = next(self._located, None)
        if located is None:
            if not self._ended:
                self._ended = True
                self.gauge.warn()
                self._skipped.warn()
            raise StopIteration
        path, self._line, document = located
        if not self._paths or self._paths[-1] != path:
            self._paths.append(path)
        self._doc_id = document.doc_id
        _check_length(document, self.gauge, lambda: self.place)
        return document

    def _locate(self, source: Source | Table) -> Iterator[Located]:
        return _locate(source, self.gauge, self._skipped, self.columns)

    @property
    def are_files(self) -> bool:
        """Whether all sources are files or folders, which can be read repeatedly."""
        return not any(
            isinstance(source, Table)
            or str(source) == STANDARD_INPUT
            or is_irds(source)
            or not (os.path.isfile(source) or os.path.isdir(source))
            for source in self._sources
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The absolute paths of the sources, if all can be read repeatedly; otherwise none."""
        if not self.are_files:
            return ()
        return tuple(os.path.abspath(s) for s in self._sources if not isinstance(s, Table))

    def total_bytes(self) -> int | None:
        """The value of `gauge.bytes_read` at the end, None if it is unknown."""
        if not self.are_files:
            return None
        files = (path for s in self._sources if not isinstance(s, Table) for path in _files(Path(s)))
        return sum(path.stat().st_size for path in files)

    @property
    def mark(self) -> int:
        """The position of the last document as one number, small enough to keep for every document."""
        return (len(self._paths) - 1) << _LINE_BITS | self._line

    def place_of(self, mark: int, doc_id: str) -> str:
        """A description of the position of a document."""
        path, line = self._paths[mark >> _LINE_BITS], mark & ((1 << _LINE_BITS) - 1)
        return f"{path}, line {line}" if line else name_of(Path(path, doc_id))

    @property
    def place(self) -> str:
        """The position of the last document: file and line."""
        return self.place_of(self.mark, self._doc_id)


def read_documents(
    *sources: Any,
    id_column: str | None = None,
    text_column: str | Sequence[str] | None = None,
    title_column: str | None = None,
) -> Documents:
    """The documents of the sources, in order: paths, `-`, or tables.

    The column arguments name the id, text and title of records, if they are not under the usual keys; several
    text columns are joined. Text files have no columns: passing column names for text files only is an error.

    Whether every source exists and is supported is checked immediately; its contents are checked as they are
    read. Ids are not compared: see `unique`. An empty file contains no documents.
    """
    columns = name_columns(id_column, text_column, title_column)
    found: list[Source | Table] = []
    for source in sources:
        table = as_table(source)
        if table is not None:
            table.check(columns.named)
        elif source == "":  # Path("") would be the current folder
            raise InputError(
                "the path of a corpus is empty", "check the variable or argument that it came from"
            )
        else:
            _check(source)
        found.append(source if table is None else table)
    if columns.named and found and not any(_has_records(source) for source in found):
        raise InputError(
            f"{name_of(sources[0])} has no columns, but {columns} was given",
            "use column options only with .jsonl, .tsv, .csv or .parquet files",
        )
    return Documents(found, columns)


def unique(documents: Iterable[Document]) -> Iterator[Document]:
    """Yield the documents unchanged; a duplicate id raises DuplicateId with both places.

    Keeps every id and its position in memory, but no text. For documents that do not come from
    `read_documents`, the position is their number, counted from 1.
    """
    seen: dict[str, int] = {}
    reading = documents if isinstance(documents, Documents) else None
    for number, document in enumerate(documents, start=1):
        mark = reading.mark if reading else number
        first = seen.setdefault(document.doc_id, mark)
        if len(seen) < number:
            first_place, second_place = (
                (reading.place_of(first, document.doc_id), reading.place)
                if reading
                else (f"document {first}", f"document {number}")
            )
            raise DuplicateId(document.doc_id, first_place, second_place)
        yield document


def _check(source: Source) -> None:
    if not isinstance(source, str | PathLike):
        raise InputError(
            f"a source is a value of type {type(source).__name__}; expected a path or a table",
            "pass each source as a separate argument: read_documents(*paths)",
        )
    if is_irds(source):
        load_irds(source)
    elif os.path.isdir(source):
        folder = Path(source)
        if find_in_folder(folder, CORPUS_FILE) is None and not check_folder(folder):
            raise InputError(
                f"the folder {name_of(folder)} contains neither {CORPUS_FILE} nor any supported file",
                f"pass a file of records such as .jsonl or .csv, or a folder with {', '.join(PROSE)} files",
            )
    elif is_one_text(source):
        check_readable(source)
        check_kind(source)
    else:
        check_records(source, PROSE)


def _has_records(source: Source | Table) -> bool:
    """Whether a source has records, rather than files that are one text each."""
    if isinstance(source, Table):
        return True
    if not is_irds(source) and os.path.isdir(source):
        return find_in_folder(Path(source), CORPUS_FILE) is not None
    return is_irds(source) or not is_one_text(source)


def _locate(source: Source | Table, gauge: Gauge, skipped: Skipped, columns: Columns) -> Iterator[Located]:
    unseen = Unseen(columns)
    records: Iterator[tuple[int, Record]]
    if isinstance(source, Table):
        records, where = enumerate(source.rows(), start=1), f"the {source.name}"
    elif is_irds(source):
        where = str(source)
        for line, record, text in iterate_irds(source, "docs"):
            unseen.note(record)
            yield where, line, make_document(record, where, line, None if columns.named else text, columns)
        unseen.check(where)
        return
    elif os.path.isdir(source):
        corpus = find_in_folder(Path(source), CORPUS_FILE)
        if corpus is None:
            where = name_of(source)
            yield from ((where, 0, document) for document in read_folder(Path(source), gauge, skipped))
            return
        records, where = read_records(corpus, columns.keys, gauge), name_of(corpus)
    elif is_one_text(source):
        path = Path(source)
        yield name_of(path.parent), 0, read_file(path, clean(path.name), gauge)
        return
    else:
        records, where = read_records(source, columns.keys, gauge), name_of(source)

    def locate(numbered: tuple[int, Record]) -> Located:
        line, record = numbered
        unseen.note(record)
        return where, line, make_document(record, where, line, columns=columns)

    yield from map(locate, records)  # a loop would keep each record in memory while its document is indexed
    unseen.check(where)


def read_part(path: Path, doc_id: str | None, gauge: Gauge, columns: Columns = USUAL) -> Iterator[Document]:
    """The documents of one file of a source: one with this id or, if it is None, one per record."""
    if doc_id is not None:
        check_kind(path)
        found: Iterator[Document] = iter([read_file(path, doc_id, gauge)])
    else:
        found = (document for _, _, document in _locate(path, gauge, Skipped(), columns))
    for document in found:
        _check_length(document, gauge, lambda: name_of(path))
        yield document


def _check_length(document: Document, gauge: Gauge, place: Callable[[], str]) -> None:
    size = sys.getsizeof(document.text) - _STRING_BYTES
    if size > gauge.longest:
        raise InputError(
            f"{place()}: the text takes {size:,} bytes of memory, which exceeds the limit of "
            f"{gauge.longest:,}",
            "split the document, or raise --memory",
        )


def _files(source: Path) -> Iterator[Path]:
    """The files that will be read for a source."""
    if not os.path.isdir(source):
        yield source
    elif (corpus := find_in_folder(source, CORPUS_FILE)) is not None:
        yield corpus
    else:
        yield from readable_files(source)
