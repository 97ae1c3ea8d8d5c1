"""Needles: words that occur in exactly one document. A search for one should find that document first."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from coil.indexes.index import Index
from coil.lists.rows import row_texts
from coil.texts.values import Document
from coil.tokens.profile import By

NEEDLES = 500
SHORTEST = 3  # characters


@dataclass(frozen=True)
class Miss:
    """A needle that did not find its document first."""

    word: str
    document: str
    first: str | None


def keys_of_rows(index: Index) -> list[tuple[str, list[str]]]:
    """The document and the keys of each row of the index, in order."""
    rows = []
    encoder, collection = index.encoder, index.searcher.collection
    for live in collection.segments:
        segment = live.segment
        for ordinal, (start, end) in zip(
            segment.row_documents.tolist(), segment.row_spans.tolist(), strict=True
        ):
            document: Document = collection.document(ordinal)
            [row] = row_texts(encoder, document, [(start, end)], collection.context)
            [keyed] = encoder.keys.of_texts([row.text], encoder.config.profile.document_length)
            rows.append((document.doc_id, [key for key in keyed.keys if key is not None]))
    return rows


def choose_needles(index: Index, number: int = NEEDLES, seed: int = 0) -> dict[str, str]:
    """Words that exactly one document has, drawn with a fixed seed, and that document."""
    documents: dict[str, set[str]] = {}
    for doc_id, keys in keys_of_rows(index):
        for key in set(keys):
            documents.setdefault(key, set()).add(doc_id)
    lonely = sorted(key for key, ids in documents.items() if len(ids) == 1 and len(key) >= SHORTEST)
    # A stem is no word: take those that are their own stem, as a person would type them.
    typed = [key for key in lonely if index.encoder.keys.of_texts([key], 16)[0].keys == (key,)]
    chosen = random.Random(seed).sample(typed, min(number, len(typed)))
    return {key: next(iter(documents[key])) for key in chosen}


def find_misses(index: Index, needles: Mapping[str, str], by: By = "coil") -> list[Miss]:
    """The needles that do not find their document first."""
    found = index.search_many(list(needles), 1, by=by, plain=True)
    misses = []
    for (word, document), hits in zip(needles.items(), found, strict=True):
        first = hits[0].doc_id if hits else None
        if first != document:
            misses.append(Miss(word, document, first))
    return misses
