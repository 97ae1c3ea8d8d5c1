"""Files that are one document each, and folders of such files.

| extension | text | title |
|---|---|---|
| .txt | as it is | |
| .md, .markdown | as it is; front matter becomes fields | `title` in the front matter, or the first heading |
| .rst | as it is | the first heading |
| .html, .htm | the text, with Markdown headings; no scripts and styles | `<title>` |
| .pdf (extra `pdf`), .docx (extra `docx`) | the text; a .docx with Markdown headings | from the metadata |
| source code, .toml, .yaml, .json | as it is | the path |

Each may be compressed. A file is not text if its first bytes contain a NUL, or if much of it is neither UTF-8
nor printable. In a folder, each such file is one document, and its id is the path within the folder with
forward slashes; names that begin with a dot are ignored. Warnings of the logger `coil.texts` count skipped
files by extension, and name those whose extension is in the table.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coil.errors import InputError, MissingExtra, NotText, how_many, require
from coil.texts.html import html_charset, read_html
from coil.texts.markup import count_front_values, find_headings, markup_of, read_front_matter
from coil.texts.office import read_docx
from coil.texts.opening import (
    BYTE_ORDER_MARK,
    VALUE_BYTES,
    VALUES,
    Gauge,
    Source,
    is_utf8,
    name_of,
    read_text,
    split_name,
)
from coil.texts.pdf import read_pdf
from coil.texts.records import plain_value
from coil.texts.values import Document, clean

PROSE = (".txt", ".md", ".markdown", ".rst", ".html", ".htm", ".pdf", ".docx")
CODE = tuple(
    ".py .js .jsx .ts .tsx .java .c .cc .cpp .h .hpp .go .rs .rb .php .sh .sql .toml .yaml .yml .json".split()
)
KINDS = (*PROSE, *CODE)
AMBIGUOUS = (".json",)  # if passed directly, such a file more likely contains records
_EXTRAS = {".pdf": ("pypdf", "pdf"), ".docx": ("docx", "docx")}

_log = logging.getLogger("coil.texts")
_SNIFFED = 8192
_NEAR = 10  # characters from the start of a text: allows for "# " and the like
_JUDGED = 64  # bytes; in a shorter text, a single odd character would weigh too much
_MOST_ODD = 0.3
_ODD = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]")


def kind_of(name: Source) -> str:
    """The extension that determines how a file is read, ignoring that of its compression."""
    return split_name(name)[1]


def is_one_text(source: Source) -> bool:
    """Whether a file is one document, judging by its name, rather than a file of records."""
    return kind_of(source) in KINDS and kind_of(source) not in AMBIGUOUS


def check_kind(source: Source) -> None:
    """Fail early if the package that reads this kind of file is not installed."""
    if kind_of(source) in _EXTRAS:
        require(*_EXTRAS[kind_of(source)])


def read_file(path: Path, doc_id: str, gauge: Gauge) -> Document:
    """The document of one file; a file that is damaged or has no text raises NotText."""
    data, where, kind = read_text(path, gauge), name_of(path), kind_of(path)
    title, fields = "", {}
    if kind == ".pdf":
        title, text = read_pdf(data, where, gauge.longest)
    elif kind == ".docx":
        title, text = read_docx(data, where, gauge.longest)
    else:
        text = _decode(data, path, gauge, html_charset(data) if kind in (".html", ".htm") else None)
        if kind in (".html", ".htm"):
            title, text = read_html(text)
        elif kind in (".md", ".markdown"):
            fields = _front_matter(text, where, gauge)
        elif kind in CODE:
            title = doc_id
    return _document(doc_id, clean(title), clean(text), fields, kind)


def _front_matter(text: str, where: str, gauge: Gauge) -> dict[str, Any]:
    """The fields of front matter; very many small values would take far more memory than their characters."""
    most = VALUES * gauge.longest // VALUE_BYTES
    if count_front_values(text) > most:
        raise InputError(
            f"{where}: the front matter exceeds the limit of {most:,} values",
            "drop the list with so many values, or raise --memory",
        )
    return read_front_matter(text, most)[0]


def _document(doc_id: str, title: str, text: str, fields: dict[str, Any], kind: str) -> Document:
    headings = find_headings(text, markup_of(doc_id))
    if isinstance(fields.get("title"), str):
        title = fields["title"]
    elif not title and headings:
        title = headings[0].text
    if kind in (".html", ".htm", ".pdf", ".docx") and title and title not in text[: len(title) + _NEAR]:
        text = f"{title}\n\n{text}"  # as with records, the title is part of the text
    plain = {clean(name): plain_value(value) for name, value in fields.items()}
    return Document(doc_id, text, {**({"title": title} if title else {}), **plain})


def _decode(data: bytes, path: Path, gauge: Gauge, charset: str | None) -> str:
    if b"\0" in data[:_SNIFFED]:  # the same test as git's
        raise _no_text(path)
    if charset is not None and charset != "utf-8" and not is_utf8(data):
        text = data.decode(charset, errors="replace")
    else:
        text = gauge.decode(data.removeprefix(BYTE_ORDER_MARK), path)
    if len(data) >= _JUDGED and len(_ODD.findall(text)) > _MOST_ODD * len(text):
        raise _no_text(path)
    return text


def _no_text(path: Path) -> NotText:
    return NotText(name_of(path), "not a text file", "convert it to text")


class Skipped:
    """Counts the files of folders that did not become documents, by extension."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._remedies: dict[str, str] = {}

    def count(self, path: Path, remedy: str = "") -> None:
        """Count a file; `remedy` says how files with its extension could be read."""
        kind = kind_of(path) or "without extension"
        self._counts[kind] += 1
        if remedy:
            self._remedies[kind] = remedy

    def count_other(self, path: Path) -> None:
        """Count a file of a kind that is not one document."""
        records = kind_of(path) in (".jsonl", ".ndjson", ".tsv", ".csv", ".parquet")
        self.count(path, "pass such files explicitly" if records else "")

    def name(self, path: Path, reason: str) -> None:
        """Count and report a file whose extension is that of a document."""
        _log.warning("skipped %s: %s", name_of(path), reason)
        self.count(path)

    def warn(self) -> None:
        """Log the counts, the most frequent kind first, if there are any."""
        if self._counts:
            kinds = (
                f"{count:,} {kind}{f' ({self._remedies[kind]})' if kind in self._remedies else ''}"
                for kind, count in sorted(self._counts.items(), key=lambda pair: (-pair[1], pair[0]))
            )
            _log.warning("skipped %s: %s", how_many(self._counts.total(), "file"), ", ".join(kinds))


def walk(folder: Path, blocked: list[Path] | None = None) -> Iterator[Path]:
    """The files below a folder, in the same order on every machine; links to folders are not followed.

    A folder that cannot be read is an error or, if `blocked` is given, added to it; a folder that was just
    removed then counts as empty.
    """

    def stop(error: OSError) -> None:
        if blocked is not None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                blocked.append(Path(error.filename))
            return
        raise InputError(
            f"{error.filename} cannot be read: {error.strerror}", "check the permissions of the folder"
        )

    for parent, folders, files in os.walk(folder, onerror=stop):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))


def check_folder(folder: Path) -> bool:
    """Whether a folder has a readable file; raises MissingExtra if only a package is missing."""
    missing: MissingExtra | None = None
    for path in walk(folder):
        if kind_of(path) in KINDS:
            try:
                check_kind(path)
                return True
            except MissingExtra as error:
                missing = error
    if missing is not None:
        raise missing
    return False


def readable_files(folder: Path) -> Iterator[Path]:
    """The files of a folder that will be read."""
    return (path for path in walk(folder) if kind_of(path) in KINDS and path.is_file())


def read_folder(folder: Path, gauge: Gauge, skipped: Skipped) -> Iterator[Document]:
    """The documents of a folder."""
    for path in walk(folder):
        if kind_of(path) not in KINDS:
            skipped.count_other(path)
        elif not path.is_file():  # a pipe, or a link to nowhere
            skipped.name(path, "not a file")
        else:
            try:
                check_kind(path)
            except MissingExtra as error:
                skipped.count(path, error.remedy)
                continue
            document = _read_or_skip(path, clean(path.relative_to(folder).as_posix()), gauge, skipped)
            if document is not None:
                yield document


def _read_or_skip(path: Path, doc_id: str, gauge: Gauge, skipped: Skipped) -> Document | None:
    try:
        return read_file(path, doc_id, gauge)
    except NotText as error:
        skipped.name(path, error.what)
        return None
