"""Rows: documents encoded as an index stores them, one row per text that the model encodes in one piece."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal, TypeVar

from coil.errors import InputError, ModelError
from coil.lists.segment import MOST_ROWS
from coil.texts.values import Document
from coil.tokens.chunks import chunk_spans
from coil.tokens.contexts import ContextRule, Outline, RowText, context_room
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

Long = Literal["chunk", "truncate"]
Span = tuple[int, int]
Rows = list[tuple[Span, TokenVectors]]
"""The span and the vectors of every row of a document."""

T = TypeVar("T")
_PART = 8_192  # tokens to encode between two calls of `go_on`: seconds on a slow machine


def encode_rows(
    encoder: Encoder, documents: Iterable[Document], long: Long, context: ContextRule
) -> Iterator[tuple[Document, Rows]]:
    """Each document with its rows, in order; only a few documents are held in memory at a time."""
    cut = ((document, document, row_spans(encoder, document, long, context)) for document in documents)
    return encode_spans(encoder, cut, context)


def row_texts(
    encoder: Encoder, document: Document, spans: Sequence[Span], context: ContextRule
) -> Iterator[RowText]:
    """The text that the model reads for each row: context and span."""
    most = context_room(encoder.tokenizer, encoder.config.profile.document_length, context.tokens)
    outline = Outline(document, context.front_matter) if most > 0 else None
    for span in spans:
        yield outline.row(encoder.tokenizer, span, most) if outline else RowText(document, span)


def encode_spans(
    encoder: Encoder,
    documents: Iterable[tuple[T, Document, Sequence[Span]]],
    context: ContextRule,
    go_on: GoOn | None = None,
) -> Iterator[tuple[T, Rows]]:
    """The first value of each triple, with the rows of the document's spans, in order.

    A document without spans has no rows. A truncated row ends where the model stopped reading. `go_on` is
    called regularly, even within a document with many rows; what it raises is passed on.
    """
    waiting: deque[tuple[T, Sequence[Span]]] = deque()
    shifts: deque[int] = deque()  # of each row: from positions in its text to positions in the document

    def pieces() -> Iterator[str]:
        for owner, document, spans in documents:
            waiting.append((owner, spans))
            for row in row_texts(encoder, document, spans, context):
                shifts.append(row.span[0] - len(row.before))
                yield row.text

    def read(span: Span, of_row: TokenVectors) -> tuple[Span, TokenVectors]:
        shift = shifts.popleft()
        if of_row.dropped:
            end = int(of_row.spans[-1, 1]) + shift if len(of_row) else 0
            span = span[0], max(span[0], end)
        return span, of_row

    vectors = _encode_in_parts(encoder, pieces(), go_on) if go_on else encoder.encode_documents(pieces())
    for first in vectors:
        while waiting and not waiting[0][1]:
            yield waiting.popleft()[0], []
        if not waiting:
            raise _miscounted("more")
        owner, spans = waiting.popleft()
        rows = [read(span, of_row) for span, of_row in zip(spans, chain([first], vectors), strict=False)]
        if len(rows) < len(spans):
            raise _miscounted("fewer")
        yield owner, rows
    while waiting:
        owner, spans = waiting.popleft()
        if spans:
            raise _miscounted("fewer")
        yield owner, []


def _miscounted(how: str) -> ModelError:
    return ModelError(
        f"the encoder returned {how} results than it was given texts", "return one for each text"
    )


def _encode_in_parts(encoder: Encoder, texts: Iterable[str], go_on: GoOn) -> Iterator[TokenVectors]:
    """Like `encode_documents`, with a call of `go_on` before each part."""
    part: list[str] = []
    tokens = 0
    for text in texts:
        part.append(text)
        tokens += min(len(text), encoder.config.profile.document_length)  # a token has at least one character
        if tokens >= _PART:
            go_on()
            yield from encoder.encode_documents(part)
            part, tokens = [], 0
    go_on()
    yield from encoder.encode_documents(part)


def row_spans(
    encoder: Encoder,
    document: Document,
    long: Long,
    context: ContextRule,
    place: Callable[[Document], str] | None = None,
    go_on: GoOn | None = None,
) -> list[Span]:
    """The span of each row: the whole text, which the encoder truncates, or the chunks of a long text.

    `context` determines the context of each row. `place` describes where the document comes from, for the
    error that it has too many chunks.
    """
    if long == "truncate":
        return [(0, len(document.text))]
    length, tokenizer = encoder.config.profile.document_length, encoder.tokenizer
    outline = Outline(document, context.front_matter)
    reserved = outline.reserved(tokenizer, context_room(tokenizer, length, context.tokens))
    headings = [heading.start for heading in outline.headings]
    spans = chunk_spans(tokenizer, document.text, length, go_on, headings, reserved)
    if len(spans) > MOST_ROWS:
        where = f"document {document.doc_id!r:.80}" if place is None else place(document)
        raise InputError(
            f"{where}: {len(document.text):,} characters give {len(spans):,} chunks, which exceeds the limit "
            f"of {MOST_ROWS:,}",
            "split it into several documents",
        )
    return spans
