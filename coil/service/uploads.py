"""Uploads: documents that come as JSON lines, kept on disk until all of them are known to be readable."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO

from coil.errors import BadLine
from coil.texts.corpora import make_document
from coil.texts.opening import BYTE_ORDER_MARK, decode, is_utf8, read_object
from coil.texts.values import Document

_BODY = "the body"
_IN_MEMORY = 1 << 20


async def receive(stream: AsyncIterator[bytes]) -> IO[bytes]:
    """The whole body, in memory while it is small. A writer never waits for a slow client this way."""
    file: IO[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - its reader closes it
    try:
        async for chunk in stream:
            file.write(chunk)
    except BaseException:
        file.close()
        raise
    return file


def check(file: IO[bytes]) -> int:
    """Read every document once, so that a bad line is found before anything is written; returns how many."""
    return sum(1 for _ in read(file))


def read(file: IO[bytes]) -> Iterator[Document]:
    """The documents of a body."""
    file.seek(0)
    for number, raw in enumerate(file, start=1):
        if not is_utf8(raw):  # a client can be told; what stands in a file may be all there is
            raise BadLine(_BODY, number, "not UTF-8", "send JSON lines in UTF-8")
        line = decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw)
        if line.strip():
            yield make_document(read_object(line, _BODY, number), _BODY, number)
