"""Training pairs: JSON lines with a query and a passage that answers it, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coil.errors import BadLine
from coil.texts.opening import Source, check_readable, json_lines, name_of, shorten, split_name
from coil.texts.values import clean


@dataclass(frozen=True)
class Pair:
    """A query and a passage that answers it, with the name of the set and the line they come from."""

    query: str
    positive: str
    source: str
    line: int


def read_pairs(path: Source) -> Iterator[Pair]:
    """The pairs of `{"query": ..., "positive": ...}` lines; other keys are ignored.

    The source of a pair is the file name without its extensions: `sets/faq.jsonl.xz` is the set `faq`.
    A missing file raises immediately; its contents are checked as they are read.
    """
    check_readable(path)
    return _read(path)


def _read(path: Source) -> Iterator[Pair]:
    source, where = clean(split_name(path)[0]), name_of(path)
    for line, record in json_lines(path):
        texts = []
        for key in ("query", "positive"):
            value = record.get(key)
            if not isinstance(value, str) or not value.strip():
                found = f"is {shorten(str(value))}" if key in record else "is missing"
                raise BadLine(
                    where,
                    line,
                    f"{key!r} {found}; expected non-blank text",
                    'write {"query": "...", "positive": "..."}, or remove the line',
                )
            texts.append(clean(value))
        yield Pair(texts[0], texts[1], source, line)
