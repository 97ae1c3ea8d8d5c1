"""Queries, each a text with an id.

A source is a file of records (see `records`), a file of TREC topics (see `topics`), a BEIR folder (one that
contains queries.jsonl, plain or compressed), `irds:NAME`, or `-` for JSON lines on standard input.

The id of a record is the first of `_id`, `id`, `query_id` and `qid`; the text is the first of `text` and
`query` that is not empty. A query may be empty; it then finds nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from coil.errors import DuplicateId, InputError
from coil.texts.irds import is_irds, iterate_irds, load_irds
from coil.texts.opening import STANDARD_INPUT, Source, name_of
from coil.texts.records import (
    Keys,
    Record,
    check_records,
    find_in_folder,
    read_records,
    take_id,
    take_texts,
)
from coil.texts.topics import is_topics, read_topics
from coil.texts.values import Query

ID_KEYS = ("_id", "id", "query_id", "qid")
TEXT_KEYS = ("text", "query")
QUERIES_FILE = "queries.jsonl"


def read_queries(source: Source) -> Iterator[Query]:
    """The queries of a source. A duplicate id is an error, since the results could not be told apart.

    A source that is missing or of an unknown kind raises immediately; its contents are checked as they are
    read.
    """
    if is_irds(source):
        load_irds(source)
        found = iterate_irds(source, "queries")
        return _read(
            ((n, record if text is None else {**record, "text": text}) for n, record, text in found),
            str(source),
        )
    if os.path.isdir(source):
        path = find_in_folder(Path(source), QUERIES_FILE)
        if path is None:
            raise InputError(
                f"the folder {name_of(source)} contains no {QUERIES_FILE}",
                "pass a BEIR folder, or a .jsonl or .tsv file",
            )
        source = path
    if str(source) != STANDARD_INPUT and os.path.isfile(source) and is_topics(source):
        return _read(read_topics(source), name_of(source))
    check_records(source)
    return _read(read_records(source, Keys(ID_KEYS, TEXT_KEYS)), name_of(source))


def _read(records: Iterator[tuple[int, Record]], where: str) -> Iterator[Query]:
    seen: dict[str, int] = {}
    for line, record in records:
        _, query_id = take_id(record, ID_KEYS, where, line)
        texts = take_texts(record, TEXT_KEYS, where, line)
        first = seen.setdefault(query_id, line)
        if first != line:
            error = DuplicateId(query_id, f"{where}, line {first}", f"{where}, line {line}")
            error.remedy = "give each query its own id, or remove one of the two"
            raise error
        yield Query(query_id, texts[0] if texts else "")
