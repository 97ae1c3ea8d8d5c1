"""Judgements (qrels): which documents are relevant to which query, and to what degree.

Two file formats are supported, plain or compressed:

- TREC: four columns: query, anything, document, relevance;
- BEIR: three columns: query, document, relevance, after a header such as `query-id corpus-id score`.

Columns are separated by tabs or white space. A relevance is a whole number; 0 and below mean not relevant.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from coil.errors import BadLine, InputError
from coil.texts.irds import irds_judgements, is_irds
from coil.texts.opening import Source, name_of, read_lines, shorten, split_columns
from coil.texts.records import find_in_folder

Judgements = dict[str, dict[str, int]]
"""Query id → document id → relevance."""

JUDGEMENTS_FILE = "qrels/test.tsv"

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,7}", re.ASCII)
_REMEDY = (
    "write TREC's `query 0 document relevance`, or BEIR's `query<TAB>document<TAB>relevance` after a header"
)


def read_judgements(source: Source) -> Judgements:
    """The judgements of a file, of a BEIR folder's test split, or of `irds:NAME`.

    A duplicate line is counted once; two different relevances for one query and document are an
    error, and so is a file without any judgement.
    """
    if is_irds(source):
        return irds_judgements(source)
    if os.path.isdir(source):
        path = find_in_folder(Path(source), JUDGEMENTS_FILE)
        if path is None:
            raise InputError(
                f"the folder {name_of(source)} contains no {JUDGEMENTS_FILE}", "pass the qrels file"
            )
        source = path
    judgements = _read(source)
    if not judgements:
        raise InputError(f"{name_of(source)} contains no judgements", _REMEDY)
    return judgements


def _read(source: Source) -> Judgements:
    judgements: Judgements = {}
    width = 0  # 3 or 4, known after the first line
    for number, line in read_lines(source):
        columns = split_columns(line, *((width,) if width else (3, 4)))
        if not columns or columns == [""]:
            continue
        first = not width
        width = width or len(columns)
        if len(columns) != width or width not in (3, 4) or not (columns[0] and columns[-2]):
            expected = width if width in (3, 4) else "3 or 4"
            raise BadLine(
                name_of(source), number, f"expected {expected} columns, found {shorten(line)}", _REMEDY
            )
        if not _WHOLE_NUMBER.fullmatch(columns[-1].strip(" ")):
            if first and width == 3:  # BEIR's header
                continue
            raise BadLine(
                name_of(source),
                number,
                f"the relevance {shorten(columns[-1])} is not a whole number of at most seven digits",
                _REMEDY,
            )
        relevance = int(columns[-1])
        known = judgements.setdefault(columns[0], {}).setdefault(columns[-2], relevance)
        if known != relevance:
            raise BadLine(
                name_of(source),
                number,
                f"document {shorten(columns[-2])} is judged {relevance} for query {shorten(columns[0])}, "
                f"but {known} earlier in the file",
                "remove one of the two lines",
            )
    return judgements
