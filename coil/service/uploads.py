"""Uploads: documents as JSON lines, stored on disk until every line has been validated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from coil.errors import BadLine
from coil.service.problems import Problem
from coil.texts.columns import check_document, make_document
from coil.texts.opening import BYTE_ORDER_MARK, check_values, decode, is_utf8, read_object, shorten
from coil.texts.values import Document

_BODY = "the body"
_EXACT_KEYS = ("doc_id", "text", "fields")
_IN_MEMORY = 1 << 20
_BLANK = (b"\n", b"\r\n")
_BLANK_LINES = 10_000  # between two calls of `go_on`
_LONGEST = 16 << 20  # bytes of a document: one that is accepted must fit into an answer


async def receive(stream: AsyncIterator[bytes]) -> IO[bytes]:
    """The whole body, in memory while it is small, so that the writer never waits for a slow client."""
    file: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - its reader closes it
    try:
        async for chunk in stream:
            file.write(chunk)
    except OSError as error:
        with suppress(OSError):
            file.close()
        raise Problem(
            507,
            "cannot_write",
            f"the upload cannot be stored: {error.strerror}",
            "send fewer documents, or try again later",
        ) from error
    except BaseException:
        file.close()
        raise
    return file


def check(file: IO[bytes], exact: bool = False, go_on: Callable[[], object] = bool) -> int:
    """Read every document once to find bad lines before anything is written; returns how many will be stored.

    Of several documents with the same id the last counts, and one without text does not count.
    """
    is_there = {document.doc_id: not document.is_empty for document in read(file, exact, go_on)}
    return sum(is_there.values())


def read(file: IO[bytes], exact: bool = False, go_on: Callable[[], object] = bool) -> Iterator[Document]:
    """The documents of a body: each a record, whose keys say what is its id and text, or with `exact` a
    document as it is stored. `go_on` is called before each line; an error that it raises stops reading."""
    file.seek(0)
    for number, raw in enumerate(file, start=1):
        if raw in _BLANK and number % _BLANK_LINES:  # millions of them take seconds
            continue
        go_on()
        if not is_utf8(raw):  # files are read leniently, but a client can send again
            raise BadLine(_BODY, number, "not UTF-8", "send JSON lines in UTF-8")
        if len(raw) > _LONGEST:
            raise BadLine(
                _BODY, number, f"the line exceeds the limit of {_LONGEST:,} bytes", "split the document"
            )
        line = decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw)
        if line.strip():
            check_values(line, ",[{", _LONGEST, _BODY, number, is_json=True)
            value = read_object(line, _BODY, number)
            yield (_take_exact if exact else make_document)(value, _BODY, number)


def _take_exact(value: dict[str, Any], where: str, line: int) -> Document:
    """`{"doc_id", "text", "fields"}`: what `GET` answers. No other key has a meaning."""
    unknown = [key for key in value if key not in _EXACT_KEYS]
    missing = [key for key in _EXACT_KEYS[:2] if key not in value]
    if unknown or missing:
        what = f"unknown key {shorten(unknown[0])}" if unknown else f"the key {missing[0]} is missing"
        raise BadLine(where, line, what, f"with exact=true, the keys are {', '.join(_EXACT_KEYS)}")
    return check_document(Document(value["doc_id"], value["text"], value.get("fields", {})), where, line)
