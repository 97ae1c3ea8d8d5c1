"""The stored vectors of one document, put back to their places in its text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.explanations.snippet import Span
from coil.hits.searcher import Searcher
from coil.lists.segment import LiveSegment, Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.scorer import score_between
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors


def stored_vectors(searcher: Searcher, ordinal: int, query: PreparedQuery) -> tuple[TokenVectors, Span]:
    """A document's stored vectors in the query's lists, from the chunk that scores best for the query.

    The lists do not tell where in the text a mention is; the tokenizer does: the n-th mention of a list is
    the n-th token of that list in the text.
    """
    live, rows = _rows_of(searcher, ordinal)
    begin, stop = int(rows[0]), int(rows[-1]) + 1
    row = begin + int(np.argmax(score_between(query, live.segment, begin, stop)))
    start, end = live.segment.row_spans[row].tolist()
    text = searcher.collection.document(ordinal).text[start:end]
    return _vectors_of_row(searcher.encoder, live.segment, row, text, start, query), (start, end)


def _rows_of(searcher: Searcher, ordinal: int) -> tuple[LiveSegment, NDArray[np.intp]]:
    for live in searcher.collection.segments:
        documents = live.segment.row_documents  # ascending
        rows = np.arange(*np.searchsorted(documents, [ordinal, ordinal + 1]))
        if len(rows) and (live.alive is None or live.alive[rows[0]]):
            return live, rows
    raise InputError(f"no segment holds the document with the ordinal {ordinal}", "run `coil verify`")


def _vectors_of_row(
    encoder: Encoder, segment: Segment, row: int, text: str, start: int, query: PreparedQuery
) -> TokenVectors:
    tokenizer = encoder.tokenizer
    [tokens] = tokenizer.cut([text], encoder.config.profile.document_length)
    prefix = len(tokenizer.prefix)
    token_ids = tokens.input_ids[prefix : len(tokens) - len(tokenizer.suffix)]
    lists = encoder.keys.of(token_ids)
    stored = segment.vectors if segment.precise_vectors is None else segment.precise_vectors
    places: list[NDArray[np.intp]] = []
    vectors: list[NDArray[np.float32]] = []
    for list_id in np.unique(query.lists).tolist():
        mentions = segment.mentions_of(list_id)
        of_list = segment.mention_rows[mentions]  # ascending: a row's mentions are side by side
        first, last = (mentions.start + int(np.searchsorted(of_list, at)) for at in (row, row + 1))
        places.append(np.flatnonzero(lists == list_id))
        vectors.append(stored[first:last].decode())
    joined = np.concatenate([np.zeros(0, np.intp), *places])
    order = np.argsort(joined, kind="stable")
    kept = joined[order]
    sentences = segment.sentences if segment.precise_sentences is None else segment.precise_sentences
    return TokenVectors(
        token_ids=token_ids[kept],
        positions=(kept + prefix).astype(np.int32),
        spans=(tokens.spans[kept] + start).astype(np.int32),
        vectors=np.concatenate([np.zeros((0, segment.vectors.dim), np.float32), *vectors])[order],
        sentence=sentences[np.array([row])].decode()[0] if sentences.dim else None,
    )
