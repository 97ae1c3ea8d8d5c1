"""Anserini's JSON vectors: the token part of an index with n_t = 1 as integer weights.

With vectors of width 1, a query token contributes (max_j q·d_j)⁺, which is q·max_j d_j if q > 0 and
|q|·(−min_j d_j) if q < 0, each floored at 0. Two weights per token and text are therefore enough: the term
`bank` has the largest value, the term `-bank` the negated smallest, and weights that are not positive are
omitted. A query contains `bank` or `-bank` with the weight |q|. The sum of products that Anserini computes
over an impact index is then COIL's token score.

A weight w is stored as the integer nearest to scale·w, and the score is the sum of products divided by
scale². The error of the product of a query weight q and a document weight d is at most
(|q| + |d| + 1/(2·scale)) / (2·scale).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

from coil.errors import BadLine, OptionMismatch, OutputError
from coil.indexes.reader import IndexReader
from coil.lists.segment import Segment
from coil.texts.opening import Source, json_lines, name_of, shorten
from coil.texts.values import Query, clean
from coil.texts.writing import write_whole
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors

SCALE = 100
LARGEST_SCALE = 10_000
MINUS = "-"
CHUNK = "#"  # between a document id and a chunk number, as Anserini's -selectMaxPassage expects
_SCHEMA = 'write one object per line: {"id": "a", "contents": "...", "vector": {"bank": 12}}'


@dataclass(frozen=True)
class ImpactVector:
    """The id and contents of a text, and the integer weights of its terms."""

    text_id: str
    contents: str
    weights: dict[str, int]


def write_vectors(
    index: IndexReader,
    path: Path,
    scale: int = SCALE,
    contents: bool = True,
    progress: Callable[[int], object] | None = None,
) -> int:
    """Write the token part of an index with n_t = 1, one line per text; returns the number of lines.

    The file is read back and compared with the index before it appears under its name.
    """
    check_profile(index.encoder.config)
    _check_scale(scale)
    with index.pinned() as still:

        def write(file: TextIO) -> int:
            count = 0
            for row in _rows(still, contents):
                value = {"id": row.text_id, "contents": row.contents, "vector": quantise(row.weights, scale)}
                file.write(json.dumps(value, ensure_ascii=False) + "\n")
                count += 1
                if progress is not None:
                    progress(1)
            file.flush()
            if isinstance(file.name, str) and Path(file.name).is_file():  # a pipe cannot be read back
                _check_written(Path(file.name), _rows(still, contents), scale)
            return count

        return write_whole(path, write, "vectors.jsonl")


def write_queries(index: IndexReader, queries: Iterable[Query], path: Path, scale: int = SCALE) -> int:
    """Write queries for Anserini's TsvInt or TsvString reader; returns how many were written.

    Each line is an id, a tab, and the terms, each repeated as often as its weight. Queries without terms are
    skipped, since they match nothing.
    """
    check_profile(index.encoder.config)
    _check_scale(scale)

    def write(file: TextIO) -> int:
        count = 0
        for query in queries:
            [encoded] = index.encoder.encode_queries([query.text])
            weights = quantise(query_weights(encoded), scale)
            if weights:
                terms = " ".join(" ".join([term] * weight) for term, weight in weights.items())
                file.write(f"{clean(query.query_id)}\t{terms}\n")
                count += 1
        return count

    return write_whole(path, write, "queries.tsv")


def read_vectors(source: Source) -> Iterator[ImpactVector]:
    """Read a file of JSON vectors; other schemas are refused."""
    where = name_of(source)
    for line, value in json_lines(source):
        text_id, contents, vector = (value.get(name) for name in ("id", "contents", "vector"))
        wrong = None
        if not isinstance(text_id, str) or not text_id:
            wrong = f"the id is {_show(text_id)}; expected a string"
        elif vector is None:
            wrong = f"there is no vector, only {', '.join(sorted(value))[:200]}"
        elif not isinstance(vector, dict):
            wrong = f"the vector is a {type(vector).__name__}; expected weights by term"
        elif not isinstance(contents, str):
            wrong = f"the contents are {_show(contents)}; expected a string"
        else:
            for term, weight in vector.items():
                if type(weight) is not int or weight < 0:
                    wrong = (
                        f"the term {shorten(term)} has the weight {_show(weight)}; expected a whole number"
                    )
                    break
        if wrong is not None:
            raise BadLine(where, line, wrong, _SCHEMA)
        yield ImpactVector(str(text_id), str(contents), vector if isinstance(vector, dict) else {})


def quantise(weights: dict[str, float], scale: int) -> dict[str, int]:
    """The integers nearest to scale·w, without zeros."""
    whole = {term: round(weight * scale) for term, weight in weights.items()}
    return {term: weight for term, weight in whole.items() if weight}


def query_weights(query: TokenVectors) -> dict[str, float]:
    """The weight of each term of an encoded query; repeated tokens are added up."""
    weights: dict[str, float] = {}
    for key, value in zip(query.keys, query.vectors[:, 0].astype(np.float64).tolist(), strict=True):
        if key is not None and value:
            term = key if value > 0 else MINUS + key
            weights[term] = weights.get(term, 0.0) + abs(value)
    return weights


def check_profile(config: ModelConfig) -> None:
    """Refuse a model whose score is not a sum of products of term weights."""
    profile: ScoringProfile = config.profile
    if config.n_t != 1:
        raise OptionMismatch(
            f"the token vectors are {config.n_t} wide; only vectors of width 1 can be exported",
            "train a model with `coil train --preset paper --n-t 1`, and build an index with it",
        )
    if profile.weight != "one" or profile.alpha or profile.beta != 1.0 or not profile.floor:
        raise OptionMismatch(
            f"the scoring profile (weight {profile.weight}, alpha {profile.alpha:g}, beta {profile.beta:g}, "
            f"floor {profile.floor}) is not the paper's, so scores are not sums of products",
            "use a model with the paper's scoring profile",
        )


def _check_scale(scale: int) -> None:
    if type(scale) is not int or not 1 <= scale <= LARGEST_SCALE:
        raise OptionMismatch(f"the scale is {scale!r}; it must be a whole number from 1 to {LARGEST_SCALE:,}")


@dataclass(frozen=True)
class _Row:
    text_id: str
    contents: str
    weights: dict[str, float]


def _rows(index: IndexReader, contents: bool) -> Iterator[_Row]:
    """The texts of a pinned index in order: documents, and the chunks of long ones."""
    collection = index.searcher.collection
    several = any(
        bool((live.segment.row_documents[1:] == live.segment.row_documents[:-1]).any())
        for live in collection.segments
    )
    for live in collection.segments:
        segment = live.segment
        weights = _weights_by_row(segment)
        rows = np.arange(segment.n_rows) if live.alive is None else np.flatnonzero(live.alive)
        documents = segment.row_documents[rows]
        ordinals = np.unique(documents)
        for block in collection.blocks(ordinals.tolist()):
            for ordinal, document in zip(block, collection.fetch(block, texts=contents), strict=True):
                if several and CHUNK in document.doc_id:
                    raise OutputError(
                        f"the id {document.doc_id!r:.80} contains {CHUNK}, which separates ids from chunk "
                        "numbers",
                        "build the index with --long truncate, or with other ids",
                    )
                begin, end = np.searchsorted(documents, [ordinal, ordinal + 1]).tolist()
                for number, row in enumerate(rows[begin:end].tolist()):
                    name = document.doc_id if end - begin == 1 else f"{document.doc_id}{CHUNK}{number}"
                    start, stop = segment.row_spans[row].tolist()
                    yield _Row(
                        clean(name), clean(document.text[start:stop]) if contents else "", weights(row)
                    )


def _weights_by_row(segment: Segment) -> Callable[[int], dict[str, float]]:
    """A function that returns the term weights of a row."""
    names = list(segment.dictionary)
    _check_names(names)
    stored = segment.vectors[:] if segment.precise_vectors is None else segment.precise_vectors
    values: NDArray[np.float64] = stored.decode()[:, 0].astype(np.float64)
    offsets = segment.list_offsets.astype(np.int64)
    lists = np.repeat(np.arange(len(names)), np.diff(offsets))
    rows = segment.mention_rows().astype(np.int64)
    order = np.lexsort((lists, rows))
    rows, lists, values = rows[order], lists[order], values[order]
    begins = np.flatnonzero(np.diff(rows, prepend=-1) | np.diff(lists, prepend=-1))
    highest = np.maximum.reduceat(values, begins) if len(begins) else values
    lowest = np.minimum.reduceat(values, begins) if len(begins) else values
    of_row = np.searchsorted(rows[begins], np.arange(segment.n_rows + 1))

    def weights(row: int) -> dict[str, float]:
        found: dict[str, float] = {}
        for at in range(int(of_row[row]), int(of_row[row + 1])):
            name = names[int(lists[begins[at]])]
            for term, value in ((name, highest[at]), (MINUS + name, -lowest[at])):
                if value > 0:
                    found[term] = float(value)
        return found

    return weights


def _check_names(names: Iterable[str]) -> None:
    for name in names:
        if (name.startswith(MINUS) and len(name) > 1) or any(char.isspace() for char in name):
            raise OutputError(
                f"the list key {name!r:.80} cannot be exported: it starts with {MINUS} or contains a space",
                "use a model whose tokenizer splits off punctuation",
            )


def _check_written(path: Path, rows: Iterator[_Row], scale: int) -> None:
    """Read the file back; every weight must be exact up to rounding."""
    for line, (found, row) in enumerate(zip_longest(read_vectors(path), rows), start=1):
        if found is None or row is None or not _is_near(found, row, scale):
            raise OutputError(
                f"{path}, line {line} differs from what was written", "check the disk, and retry"
            )


def _is_near(found: ImpactVector, row: _Row, scale: int) -> bool:
    terms = {*found.weights, *row.weights}
    off = max((abs(found.weights.get(t, 0) - scale * row.weights.get(t, 0.0)) for t in terms), default=0.0)
    return (found.text_id, found.contents) == (row.text_id, row.contents) and off <= 0.5 + 1e-6


def _show(value: object) -> str:
    return "missing" if value is None else shorten(json.dumps(value, ensure_ascii=False))
