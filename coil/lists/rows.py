"""Rows: documents encoded as an index stores them, one row a text that the model takes in one piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Literal

from coil.errors import InputError
from coil.lists.segment import MOST_ROWS
from coil.texts.values import Document
from coil.tokens.chunks import chunk_spans
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

Long = Literal["chunk", "truncate"]
Rows = list[tuple[tuple[int, int], TokenVectors]]
"""The characters and the vectors of every chunk of a document."""


def encode_rows(
    encoder: Encoder, documents: Iterable[Document], long: Long
) -> Iterator[tuple[Document, Rows]]:
    """Each document with its rows, in order; few documents are held at a time."""
    waiting: deque[tuple[Document, list[tuple[int, int]]]] = deque()

    def texts() -> Iterator[str]:
        for document in documents:
            spans = row_spans(encoder, document, long)
            waiting.append((document, spans))
            for start, end in spans:
                yield document.text[start:end]

    vectors = encoder.encode_documents(texts())
    for first in vectors:
        document, spans = waiting.popleft()
        rows = [(spans[0], first)]
        rows += [(span, next(vectors)) for span in spans[1:]]
        yield document, rows


def row_spans(encoder: Encoder, document: Document, long: Long) -> list[tuple[int, int]]:
    """The characters of each row: the text, which the encoder cuts off, or the chunks of a long one."""
    if long == "truncate":
        return [(0, len(document.text))]
    spans = chunk_spans(encoder.tokenizer, document.text, encoder.config.profile.document_length)
    if len(spans) > MOST_ROWS:
        raise InputError(
            f"the document {document.doc_id!r} has {len(spans):,} chunks, more than {MOST_ROWS:,}",
            "split it into several documents",
        )
    return spans
