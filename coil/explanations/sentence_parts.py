"""Sentence parts: how much each sentence of a document contributes to the product of the sentence vectors.

With mean pooling, the sentence vector is a sum over the tokens of the text, and so is its product with the
query. The parts are therefore exact; they are not estimated by leaving sentences out. The document is encoded
again to compute them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from coil.explanations.snippet import Span
from coil.scores.prepared import PreparedQuery
from coil.tokens.contexts import RowText
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder

# A run of white space is matched as a whole and checked afterwards (an empty line ends a sentence): a pattern
# for runs with two line breaks would be tried from every character of a long run.
_END = re.compile(r"(?<=[.!?。！？])[\"'”’)\]]*\s+|[。！？]|(?P<space>\s+)")
CONTEXT, START_AND_END, ROUNDING = "title and headings", "start and end", "rounding"
_ENDS = 1_000  # possible sentence ends between two calls of `go_on`: a millisecond
_NOTHING = 1e-6  # a contribution closer to 0 is not shown


@dataclass(frozen=True)
class SentencePart:
    """A sentence of the document, and its contribution to the score through the sentence vector.

    Without a span: the context that the row was encoded with ("title and headings"), the special tokens at
    both ends of a text ("start and end"), or the difference between the stored vector and that of the text
    ("rounding").
    """

    text: str
    span: Span | None
    contribution: float


def split_sentence_part(
    encoder: Encoder,
    query: PreparedQuery,
    row: RowText,
    chunk: Span,
    total: float | None,
    go_on: GoOn | None = None,
) -> tuple[SentencePart, ...]:
    """The sentences of a row's chunk with their contributions, in text order; they add up to `total`.

    The context that the row was encoded with is a separate part. The chunk ends where the model stopped
    reading. A sentence without tokens contributes nothing and is joined to the one before it, or to the next.
    """
    if total is None or query.sentence is None:
        return ()
    written = row.document.text[slice(*chunk)]
    found = encoder.sentence_terms(row.before + written)
    if found is None:
        return ()
    if go_on is not None:
        go_on()
    spans, terms, rest = found
    of_query = query.sentence.astype(np.float64)
    values = terms.astype(np.float64) @ of_query  # [tokens]
    in_context = spans[:, 0] < len(row.before)
    before = float(values[in_context].sum())
    spans, values = spans[~in_context] - len(row.before), values[~in_context]
    begins = np.array([start for start, _ in sentence_spans(written, go_on)])
    of_token = np.searchsorted(begins, spans[:, 0], side="right") - 1  # the sentence of each token
    with_tokens, number = np.unique(of_token, return_inverse=True)
    sums = np.bincount(number, weights=values).tolist()
    edges = [0, *begins[with_tokens[1:]].tolist(), len(written)]
    parts = [
        SentencePart(" ".join(written[start:end].split()), (chunk[0] + start, chunk[0] + end), value)
        for (start, end), value in zip(pairwise(edges), sums or [0.0], strict=True)
    ]
    if row.context:
        parts.append(SentencePart(CONTEXT, None, before))
    ends = float(rest.astype(np.float64) @ of_query)
    if abs(ends) > _NOTHING:
        parts.append(SentencePart(START_AND_END, None, ends))
    left = total - sum(part.contribution for part in parts)
    if abs(left) > _NOTHING:
        parts.append(SentencePart(ROUNDING, None, left))
    return tuple(parts)


def sentence_spans(text: str, go_on: GoOn | None = None) -> list[Span]:
    """The spans of the sentences of a text; together they cover the whole text."""
    spans: list[Span] = []
    begin = 0
    for number, match in enumerate(_END.finditer(text)):
        if go_on is not None and number % _ENDS == 0:
            go_on()
        space = match["space"]
        if space is not None and space.count("\n") < 2:
            continue
        if text[begin : match.end()].strip():
            spans.append((begin, match.end()))
            begin = match.end()
    if text[begin:].strip() or not spans:
        spans.append((begin, len(text)))
    else:
        spans[-1] = (spans[-1][0], len(text))
    return spans
