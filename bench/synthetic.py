"""Creates a synthetic index of any size, with list lengths that follow Zipf's law and without texts.

    python -m bench.synthetic FOLDER --documents 1000000 [--n-c 256]

The segment files have the format specified in docs/format.md; only the vectors are random. There are lists of
2,000 words and 60 mentions per document, about as in the passages of MS MARCO. Token vectors have a length of
about 1. The head of a sentence vector holds seven tenths of its squared length, as along principal
directions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
from tqdm import tqdm

from coil.lists.building import assemble_segment
from coil.lists.precision import StoredVectors
from coil.lists.segment import MOST_ROWS, LiveSegment, Segment
from coil.lists.sentences import Sentences, head_width
from coil.scores.prepared import PreparedQuery
from coil.scores.statistics import Statistics
from coil.storage.disk import Folder, make_folders
from coil.storage.manifest import Manifest, SegmentEntry, publish
from coil.storage.stored_segment import write_stored_segment
from coil.tokens.profile import WORDS, By, ScoringProfile
from coil.vectors.token_vectors import TokenVectors

LISTS = 2000
MENTIONS = 60  # a document
# Places of the query tokens' lists. Together 1.8 mentions a document, as in the notes on layouts; and 4.1,
# as MS MARCO's queries have without a stop list.
QUERY = (8, 15, 30, 50, 80, 120)
HEAVY_QUERY = (2, 6, 12, 25, 50, 100)
VARIANTS = 4  # queries that use neighbouring lists, so that one does not find the other's in the cache


def mentions_a_document() -> np.ndarray:
    """How often each list's token occurs in a document, on average."""
    weights = 1 / (np.arange(LISTS) + 2)
    return MENTIONS * weights / weights.sum()


def make_segment(rng: np.random.Generator, first: int, rows: int, n_t: int, n_c: int) -> Segment:
    """The lists of `rows` documents, the first of which has the ordinal `first`."""
    counts = np.maximum(rng.poisson(mentions_a_document() * rows), 1)
    numbers = np.repeat(np.arange(LISTS, dtype=np.int32), counts)
    of_mention = rng.integers(0, rows, len(numbers))
    head = head_width(n_c)
    return assemble_segment(
        [f"w{number}" for number in range(LISTS)],
        numbers,
        of_mention,
        _vectors(rng, len(numbers), n_t, 1.0),
        Sentences(_vectors(rng, rows, head, 0.7), _vectors(rng, rows, n_c - head, 0.3)),
        np.arange(first, first + rows, dtype=np.int64),
        np.zeros((rows, 2), np.uint32),
        precise=None,
        errors=(0.0, 0.0),
        saturation=(WORDS.k1, WORDS.b),
    )


def write_index(folder: Path, documents: int, n_t: int = 32, n_c: int = 0) -> None:
    """Write segments and a manifest; the documents have ids and no text."""
    make_folders(folder)
    config = {"n_t": n_t, "n_c": n_c}
    settings = {"model": None, "fingerprint": "", "config": config, "precision": "int8", "long": "truncate"}
    rng = np.random.default_rng(0)
    entries: list[SegmentEntry] = []
    with Folder.open(folder) as opened:
        for begin in tqdm(range(0, documents, MOST_ROWS), unit="segment", disable=None):
            segment = make_segment(rng, begin + 1, min(MOST_ROWS, documents - begin), n_t, n_c)
            rows = ((ordinal, f"d{ordinal}", "", "{}", 0) for ordinal in segment.row_documents.tolist())
            entries.append(write_stored_segment(opened, len(entries) + 1, segment, rows))
        manifest = Manifest(uuid4().hex, settings, 1, documents + 1, len(entries) + 1, None, tuple(entries))
        publish(opened, manifest, None)


def make_queries(
    count: int,
    places: tuple[int, ...],
    n_t: int,
    n_c: int,
    segments: Sequence[LiveSegment],
    by: By = "coil",
    profile: ScoringProfile = WORDS,
) -> list[PreparedQuery]:
    """Queries of as many words as there are places, on lists of about those lengths."""
    rng = np.random.default_rng(1)
    statistics = Statistics(segments)
    queries = []
    for number in range(count):
        keys = tuple(f"w{place + number % VARIANTS}" for place in places)
        vectors = rng.standard_normal((len(keys), n_t)).astype(np.float32) / np.float32(max(n_t, 1) ** 0.5)
        sentence = None
        if n_c:
            parts = (_unit(rng, 1, head_width(n_c), 0.7), _unit(rng, 1, n_c - head_width(n_c), 0.3))
            sentence = np.concatenate(parts, axis=1)[0]
        spans = np.zeros((len(keys), 2), np.int32)
        encoded = TokenVectors(keys, np.arange(len(keys), dtype=np.int32), spans, vectors, sentence)
        queries.append(PreparedQuery.of(encoded, profile.answering(by), statistics))
    return queries


def _unit(rng: np.random.Generator, count: int, dim: int, squared: float) -> np.ndarray:
    made = rng.standard_normal((count, dim)).astype(np.float32)
    return made * np.float32((squared / max(dim, 1)) ** 0.5)


def _vectors(rng: np.random.Generator, count: int, dim: int, squared: float) -> StoredVectors:
    """Random vectors of about this squared length: bytes, none of them -128, which is never stored."""
    codes = np.maximum(np.frombuffer(rng.bytes(count * dim), dtype=np.int8), np.int8(-127))
    # A random byte is 73 long on average; of the scale 2^((c - 160) / 8) the nearest is taken.
    scale = 160 + 8 * np.log2(max(squared / max(dim, 1), 1e-9) ** 0.5 / 73.3)
    return StoredVectors(
        codes.reshape(count, dim), rng.integers(int(scale) - 3, int(scale) + 4, count, np.uint8)
    )


def main() -> None:
    """Write a synthetic index."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--n-t", type=int, default=32)
    parser.add_argument("--n-c", type=int, default=256)
    arguments = parser.parse_args()
    write_index(arguments.folder, arguments.documents, arguments.n_t, arguments.n_c)


if __name__ == "__main__":
    main()
