"""Runs: the ranked documents of many queries, in TREC's six columns `query Q0 document rank score tag`.

The documents of a query are ordered by score, descending, and ties by their order in the file. The rank
column is written but not read, as in trec_eval. Scores are written with all their digits, so that reading a
run restores the same numbers, ties and order. (trec_eval itself, and `coil evaluate` with it, orders ties by
document id; see `coil.metrics.evaluation`.)

If an id contains a space, the columns of its line are separated by tabs; trec_eval cannot read such a line.
An id cannot contain tabs or line breaks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from coil.errors import BadLine, OutputError
from coil.texts.decompression import COMPRESSIONS
from coil.texts.opening import Source, name_of, read_lines, shorten, split_columns
from coil.texts.values import clean
from coil.texts.writing import write_whole

Run = dict[str, dict[str, float]]
"""Query id → document id → score, with the documents in ranked order."""

_BREAKS = re.compile("[\t\r\n\v\f]")


def read_run(source: Source) -> Run:
    """Read a run from a file, plain or compressed. An empty file is an empty run."""
    run: Run = {}
    for number, line in read_lines(source):
        columns = split_columns(line, 6)
        if not columns or columns == [""]:
            continue
        if len(columns) != 6 or not (columns[0] and columns[2]):
            raise BadLine(
                name_of(source),
                number,
                f"expected six columns, found {shorten(line)}",
                "write `query Q0 document rank score tag`",
            )
        query_id, _, doc_id, _, score_text, _ = columns
        score = _score(score_text)
        if score is None:
            raise BadLine(
                name_of(source),
                number,
                f"the score {shorten(score_text)} is not a finite number",
                "write it as 12.5",
            )
        if doc_id in run.setdefault(query_id, {}):
            raise BadLine(
                name_of(source),
                number,
                f"duplicate document {shorten(doc_id)} for query {shorten(query_id)}",
                "remove one of the two lines",
            )
        run[query_id][doc_id] = score
    return {query_id: dict(_ranked(documents.items())) for query_id, documents in run.items()}


def write_run(
    path: str | Path, rows: Iterable[tuple[str, Iterable[tuple[str, float]]]], tag: str = "coil"
) -> int:
    """Write a run atomically and return its number of lines.

    `rows` contains each query once: its id, and its documents as (doc_id, score) pairs.
    """
    if Path(path).suffix.lower() in COMPRESSIONS:
        raise OutputError(
            f"runs are written uncompressed, but {path} has the extension of a compressed file",
            "drop the last extension",
        )
    _check_column(tag, "tag")
    if " " in tag:
        raise OutputError(f"the tag {tag!r} contains a space", "choose a tag without spaces")
    return write_whole(path, lambda file: _write_rows(file, rows, tag), "run.trec")


def _write_rows(file: TextIO, rows: Iterable[tuple[str, Iterable[tuple[str, float]]]], tag: str) -> int:
    count = 0
    seen: set[str] = set()
    for query_id, documents in rows:
        if query_id in seen:
            raise OutputError(f"duplicate query {shorten(query_id)} in the run", "give each query its own id")
        seen.add(query_id)
        _check_column(query_id, "query id")
        given = [(doc_id, float(score)) for doc_id, score in documents]
        if len({doc_id for doc_id, _ in given}) < len(given):
            raise OutputError(
                f"query {shorten(query_id)} has a duplicate document", "list each document once per query"
            )
        for rank, (doc_id, score) in enumerate(_ranked(given), start=1):
            _check_column(doc_id, "document id")
            if not math.isfinite(score):
                raise OutputError(
                    f"document {shorten(doc_id)} has the score {score} for query {shorten(query_id)}",
                    "scores must be finite numbers",
                )
            columns = (clean(query_id), "Q0", clean(doc_id), str(rank), repr(score), tag)
            file.write(("\t" if " " in query_id or " " in doc_id else " ").join(columns) + "\n")
            count += 1
    return count


def _ranked(documents: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Sort by score, descending; Python's sort is stable, so ties keep their order."""
    return sorted(documents, key=lambda pair: -pair[1])


def _score(text: str) -> float | None:
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) and "_" not in text else None  # Python would read 1_0 as ten


def _check_column(value: str, what: str) -> None:
    if not value or _BREAKS.search(value):
        raise OutputError(
            f"the {what} {value!r:.80} cannot be written: it is empty or contains a tab or a line break",
            "use a different one",
        )
