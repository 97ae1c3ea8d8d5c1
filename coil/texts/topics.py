"""TREC topics in the classic format, in which most tags are not closed:

    <top>
    <num> Number: 301
    <title> International Organized Crime
    <desc> Description:
    Identify organizations that participate in international criminal activity.
    <narr> Narrative: ...
    </top>

The query is the title or, if that is empty, the description.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from coil.errors import BadLine
from coil.texts.opening import Source, name_of, open_bytes, read_lines

_BEGIN, _END = "<top>", "</top>"
_TAG = re.compile(r"<(num|title|desc|narr)>", re.IGNORECASE)
_LABEL = re.compile(r"\s*(Number|Topic|Description|Narrative)\s*:", re.IGNORECASE)
_CLOSED = re.compile(r"</(num|title|desc|narr)>", re.IGNORECASE)
_PEEKED = 4096


def is_topics(source: Source) -> bool:
    """Whether a file begins like a file of topics."""
    with open_bytes(source) as file:
        begin = file.read(_PEEKED).removeprefix(b"\xef\xbb\xbf").lstrip()
    return begin[: len(_BEGIN)].lower() == _BEGIN.encode()


def read_topics(source: Source) -> Iterator[tuple[int, dict[str, str]]]:
    """The id and text of each topic, with the number of its first line."""
    begun, tag = 0, ""  # the line of <top>, and the tag that the current line belongs to
    parts: dict[str, list[str]] = {}
    for number, line in read_lines(source):
        text = line.strip()
        if text.lower().startswith(_BEGIN):
            if begun:
                raise _broken(source, begun, "the topic has no </top>")
            begun, tag, parts = number, "", {}
            text = text[len(_BEGIN) :].strip()
        if not begun:
            if text:
                raise _broken(source, number, "text between two topics")
            continue
        ends = text.lower().endswith(_END)
        text = text[: -len(_END)] if ends else text
        before, *tagged = _TAG.split(text)  # then each tag and what follows it
        if tag:
            parts[tag].append(_CLOSED.sub("", before).strip())
        elif before.strip():
            raise _broken(source, number, f"expected a tag such as <num>, found {before[:60]!r}")
        for name, value in zip(tagged[::2], tagged[1::2], strict=True):
            tag = name.lower()
            if tag in parts:
                raise _broken(source, number, f"a second <{tag}> in one topic")
            parts[tag] = [_CLOSED.sub("", _LABEL.sub("", value, count=1)).strip()]
        if ends:
            yield begun, _record(source, begun, parts)
            begun = 0
    if begun:
        raise _broken(source, begun, "the topic has no </top>")


def _record(source: Source, line: int, parts: dict[str, list[str]]) -> dict[str, str]:
    joined = {tag: " ".join(" ".join(lines).split()) for tag, lines in parts.items()}
    if not joined.get("num"):
        raise _broken(source, line, "the topic has no <num>")
    if "title" not in joined and "desc" not in joined:
        raise _broken(source, line, "the topic has neither <title> nor <desc>")
    return {"id": joined["num"], "text": joined.get("title") or joined.get("desc", "")}


def _broken(source: Source, line: int, reason: str) -> BadLine:
    return BadLine(name_of(source), line, reason, "write <top>, <num>, <title>, <desc>, <narr> and </top>")
