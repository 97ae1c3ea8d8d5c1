"""The stored vectors of one document, mapped back to their positions in its text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.explanations.explanation import Scored
from coil.explanations.snippet import Span
from coil.hits.searcher import Searcher
from coil.lists.rows import row_texts
from coil.lists.segment import LiveSegment, Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_between
from coil.texts.values import Document
from coil.tokens.list_keys import Keyed
from coil.tokens.tokenizer import GoOn
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True, eq=False)
class StoredRow:
    """The row of a document that scores best for a query, as stored."""

    scored: Scored
    span: Span  # of the row in the document's text, including what was cut off
    end: int  # of the last word that the model read
    dropped: int  # tokens that were cut off


def stored_row(
    searcher: Searcher, ordinal: int, query: PreparedQuery, document: Document, go_on: GoOn | None = None
) -> StoredRow:
    """A document's stored vectors in the query's lists, from the chunk that scores best for the query.

    The lists do not store the positions of mentions in the text. They are found with the tokenizer: the n-th
    mention of a row in a list is the n-th token of the text with that list's key.
    """
    live, rows = _rows_of(searcher, ordinal)
    begin, stop = int(rows[0]), int(rows[-1]) + 1
    row = begin + int(np.argmax(score_between(query, live.segment, begin, stop)))
    start, end = live.segment.row_spans[row].tolist()
    if row == stop - 1:
        end = len(document.text)  # the model was given the rest of the text, even if it could not read it all
    encoder = searcher.encoder
    [text] = row_texts(encoder, document, [(start, end)], searcher.collection.context)
    [tokens] = encoder.tokenizer.cut([text.text], encoder.config.profile.document_length, go_on)
    keyed = encoder.keys.of(text.text, tokens)
    vectors = _vectors_of_row(live.segment, row, keyed, query)
    read = int(keyed.spans[-1, 1]) if len(keyed.spans) else 0
    last = max(0, read - len(text.before))
    scored = Scored(text, vectors, int(live.segment.row_lengths[row]))
    return StoredRow(scored, (start, end), start + last, tokens.dropped)


def _rows_of(searcher: Searcher, ordinal: int) -> tuple[LiveSegment, NDArray[np.intp]]:
    for live in searcher.collection.segments:
        documents = live.segment.row_documents  # ascending
        rows = np.arange(*np.searchsorted(documents, [ordinal, ordinal + 1]))
        if len(rows) and (live.alive is None or live.alive[rows[0]]):
            return live, rows
    raise InputError(f"no segment contains the document with the ordinal {ordinal}", "run `coil verify`")


def _vectors_of_row(segment: Segment, row: int, keyed: Keyed, query: PreparedQuery) -> TokenVectors:
    stored = segment.vectors if segment.precise_vectors is None else segment.precise_vectors
    places: list[NDArray[np.intp]] = []
    vectors: list[NDArray[np.float32]] = []
    for key in dict.fromkeys(query.keys):
        at = segment.find(key)
        rows, starts, counts = segment.rows_at(at)
        posting = int(np.searchsorted(rows, row))
        if posting == len(rows) or rows[posting] != row:
            continue
        first = segment.mentions_at(at).start + int(starts[posting])
        found = np.array([place for place, other in enumerate(keyed.keys) if other == key], dtype=np.intp)
        if len(found) != counts[posting]:
            raise InputError(
                "the stored text does not match the indexed words", "run `coil verify`, or index it again"
            )
        places.append(found)
        vectors.append(stored[first : first + len(found)].decode())
    joined = np.concatenate([np.zeros(0, np.intp), *places])
    order = np.argsort(joined, kind="stable")
    kept = joined[order]
    sentences = segment.sentences if segment.precise_sentences is None else segment.precise_sentences
    return TokenVectors(
        keys=tuple(keyed.keys[place] for place in kept.tolist()),
        positions=kept.astype(np.int32),
        spans=keyed.spans[kept].astype(np.int32),
        vectors=np.concatenate([np.zeros((0, segment.vectors.dim), np.float32), *vectors])[order],
        sentence=sentences[np.array([row])].decode()[0] if sentences.dim else None,
    )
