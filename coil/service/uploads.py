"""Uploads: documents that come as JSON lines, kept on disk until all of them are known to be readable."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from tempfile import SpooledTemporaryFile
from typing import IO

from coil.errors import BadLine
from coil.texts.corpora import make_document
from coil.texts.opening import BYTE_ORDER_MARK, decode, shorten
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
        line = decode(raw.removeprefix(BYTE_ORDER_MARK) if number == 1 else raw)
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except RecursionError as error:
            raise BadLine(_BODY, number, "JSON nested too deeply to read", "flatten it") from error
        except ValueError as error:
            raise BadLine(_BODY, number, f"broken JSON: {error}", "write one JSON object a line") from error
        if not isinstance(value, dict):
            raise BadLine(
                _BODY,
                number,
                f"a JSON object was expected, found {shorten(line)}",
                'write one object a line, such as {"id": "a", "text": "..."}',
            )
        yield make_document(value, _BODY, number)
