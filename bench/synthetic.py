"""A synthetic index with Zipf's list lengths: as large as one likes, with no text behind it.

    python -m bench.synthetic FOLDER --documents 1000000 [--n-c 128]

The segment files are real ones, byte by byte as docs/format.md says; only the vectors are random. Lists of
2,000 tokens, 60 mentions a document: about what MS MARCO's passages have.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from uuid import uuid4

import numpy as np
from tqdm import tqdm

from coil.lists.bounds import BLOCK, Bounds, Sketches
from coil.lists.groups import GroupedVectors
from coil.lists.precision import SCALES, StoredVectors
from coil.lists.segment import MOST_ROWS, Segment
from coil.scores.prepared import PreparedQuery
from coil.storage.disk import Folder, make_folders
from coil.storage.manifest import Manifest, SegmentEntry, publish
from coil.storage.stored_segment import write_stored_segment

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
    counts = rng.poisson(mentions_a_document() * rows)
    counts = np.maximum(counts, 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    mentions = int(offsets[-1])
    of_mention = rng.integers(0, rows, mentions, dtype=np.uint16 if rows < MOST_ROWS else np.uint32)
    mention_rows = np.empty(mentions, np.uint16)
    for begin, end in pairwise(offsets):
        mention_rows[begin:end] = np.sort(of_mention[begin:end])
    longest = np.float32(127 * np.sqrt(max(n_t, n_c)) * SCALES[110])
    blocks = np.where(counts > BLOCK, -(-counts // BLOCK), 0)
    block_offsets = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int64)
    return Segment(
        list_ids=np.arange(LISTS, dtype=np.int32),
        list_offsets=offsets,
        mention_rows=mention_rows,
        vectors=GroupedVectors(_codes(rng, mentions * n_t), _scales(rng, mentions), n_t, mentions),
        sentences=StoredVectors(_codes(rng, rows * n_c).reshape(rows, n_c), _scales(rng, rows)),
        row_documents=np.arange(first, first + rows, dtype=np.int64),
        row_spans=np.zeros((rows, 2), np.int64),
        bounds=Bounds(
            np.full(LISTS, longest),
            block_offsets,
            np.full(int(block_offsets[-1]), longest),
            np.full(-(-rows // BLOCK), longest),
            Sketches.none(),
        ),
    )


def write_index(folder: Path, documents: int, n_t: int = 32, n_c: int = 0) -> None:
    """Write segments and a manifest; the documents have ids and no text."""
    make_folders(folder)
    settings = {"model": None, "fingerprint": "", "config": {}, "precision": "int8", "long": "truncate"}
    rng = np.random.default_rng(0)
    entries: list[SegmentEntry] = []
    with Folder.open(folder) as opened:
        for begin in tqdm(range(0, documents, MOST_ROWS), unit="segment", disable=None):
            segment = make_segment(rng, begin + 1, min(MOST_ROWS, documents - begin), n_t, n_c)
            rows = ((ordinal, f"d{ordinal}", "", "{}", 0) for ordinal in segment.row_documents.tolist())
            entries.append(write_stored_segment(opened, len(entries) + 1, segment, rows))
        manifest = Manifest(uuid4().hex, settings, 1, documents + 1, len(entries) + 1, None, tuple(entries))
        publish(opened, manifest, None)


def make_queries(count: int, places: tuple[int, ...], n_t: int, n_c: int) -> list[PreparedQuery]:
    """Queries of as many tokens as there are places, on lists of about those lengths."""
    rng = np.random.default_rng(1)
    queries = []
    for number in range(count):
        tokens = np.array([place + number % VARIANTS for place in places], dtype=np.int32)
        queries.append(
            PreparedQuery(
                lists=tokens,
                vectors=rng.standard_normal((len(tokens), n_t)).astype(np.float32),
                sentence=rng.standard_normal(n_c).astype(np.float32) if n_c else None,
                places=np.arange(len(tokens)),
                floor=True,
            )
        )
    return queries


def _codes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Random bytes, none of them -128, which is never stored."""
    codes = np.frombuffer(rng.bytes(count), dtype=np.int8)
    return np.maximum(codes, -127)


def _scales(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(100, 111, count, dtype=np.uint8)


def main() -> None:
    """Write a synthetic index."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--n-t", type=int, default=32)
    parser.add_argument("--n-c", type=int, default=0)
    arguments = parser.parse_args()
    write_index(arguments.folder, arguments.documents, arguments.n_t, arguments.n_c)


if __name__ == "__main__":
    main()
