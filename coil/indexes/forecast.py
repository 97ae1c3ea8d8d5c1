"""Estimates the cost of building an index from a sample that is actually indexed in a temporary folder.

All documents are read, so that invalid lines and duplicate ids are found. The exception is a single document
that is too large for the memory limit, unless it is in the sample.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coil.errors import SET_ON_DUPLICATE, DuplicateId, InputError, how_many
from coil.indexes.cpu_time import CpuTime
from coil.indexes.opening import create
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.storage.intake import OnDuplicate, SourcePositions
from coil.texts.given import GivenDocuments, Texts
from coil.texts.values import Document
from coil.vectors.encoder import Encoder
from coil.vectors.parallel import MOST_ENCODING, usable_cores

SAMPLE = 400  # documents
SECONDS = 10.0
AT_ONCE = 40


@dataclass(frozen=True)
class Forecast:
    """An estimate of size and time, and what it is based on."""

    documents: int
    empty: int  # documents without text, which are skipped and not among `documents`
    mentions: int
    bytes_lists: int
    bytes_documents: int
    seconds: float  # with other programs as busy as they were
    seconds_alone: float  # on an otherwise idle machine
    cpu_seconds: float
    sampled: int  # documents encoded for the estimate
    sampled_share: float  # of all characters


def forecast(
    documents: Texts,
    encoder: Encoder,
    precision: Precision = "int8",
    long: Long = "chunk",
    seed: int = 0,
    most_seconds: float = SECONDS,
    on_duplicate: OnDuplicate = "error",
    read: Callable[[int], object] | None = None,
) -> Forecast:
    """Read all documents, index a random sample of them, and scale by the number of characters.

    `read` is called with the number of further documents read.
    """
    start = CpuTime.now()
    placed = GivenDocuments(documents)
    with tempfile.TemporaryDirectory(prefix="coil-forecast-") as scratch:
        checked = _unique(placed, Path(scratch) / "ids.sqlite") if on_duplicate == "error" else placed
        sample, count, empty, size = _sample(checked, random.Random(seed), read)
    reading = start.until(CpuTime.now())
    if not count:
        what = f"only {how_many(empty, 'empty document')}" if empty else "no documents"
        raise InputError(f"the corpus contains {what}", "check the path and the format")
    with tempfile.TemporaryDirectory(prefix="coil-forecast-") as scratch:
        index = create(Path(scratch) / "sample.coil", precision=precision, long=long, encoder=encoder)
        for _ in encoder.encode_documents([sample[0].text]):  # the first text includes the startup time
            pass
        start = CpuTime.now()
        taken = 0
        # A duplicate id may be in the sample twice: it is encoded twice as well.
        while taken < len(sample) and (not taken or time.monotonic() - start.clock < most_seconds):
            index.update(sample[taken : taken + AT_ONCE])
            taken += AT_ONCE
        encoding = start.until(CpuTime.now())
        index.compact()
        facts = index.inspect()
        index.close()
    sampled, cores = sample[:taken], min(usable_cores(), MOST_ENCODING)
    share = sum(_size_of(document) for document in sampled) / size
    return Forecast(
        documents=count,
        empty=empty,
        mentions=round(facts.mentions / share),
        bytes_lists=round(facts.bytes_lists / share),
        bytes_documents=round(facts.bytes_documents / share),
        seconds=reading.clock + encoding.clock / share,
        seconds_alone=reading.seconds_alone(1) + encoding.seconds_alone(cores) / share,
        cpu_seconds=reading.ours + encoding.ours / share,
        sampled=len(sampled),
        sampled_share=share,
    )


def _unique(documents: GivenDocuments, path: Path) -> Iterator[Document]:
    """Yield the same documents; a second one with the same id raises DuplicateId, as in a build.

    The error names both places. The ids are kept in a file, because they may exceed memory.
    """
    places, number = SourcePositions(), 0
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("CREATE TABLE seen (doc_id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID")
        connection.execute("BEGIN")
        for document in documents:
            doc_id = document.doc_id
            row = connection.execute("SELECT number FROM seen WHERE doc_id = ?", (doc_id,)).fetchone()
            if row is not None:
                mark, exact = places.of(row[0])
                first = documents.place_of(mark, doc_id)
                second = documents.place_of(documents.mark, doc_id)
                first = first if exact else f"a place after {first}"
                raise DuplicateId(doc_id, first, second, SET_ON_DUPLICATE)
            if not document.is_empty:
                number += 1
                places.note(number, documents.mark)
                connection.execute("INSERT INTO seen VALUES (?, ?)", (doc_id, number))
            yield document


def _sample(
    documents: Iterable[Document], rng: random.Random, read: Callable[[int], object] | None
) -> tuple[list[Document], int, int, int]:
    """A random sample in random order (a reservoir), the numbers of documents with and without text, and the
    size of all."""
    sample: list[Document] = []
    count = empty = size = 0
    for document in documents:
        if read is not None:
            read(1)
        if document.is_empty:
            empty += 1
            continue
        count += 1
        size += _size_of(document)
        if len(sample) < SAMPLE:
            sample.append(document)
        elif (place := rng.randrange(count)) < SAMPLE:
            sample[place] = document
    rng.shuffle(sample)
    return sample, count, empty, size


def _size_of(document: Document) -> int:
    """The number of characters, plus a constant per document."""
    return len(document.text) + 50
