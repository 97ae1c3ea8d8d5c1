"""Chunks: a text that is too long for the model, cut into overlapping parts that are not."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from coil.tokens.tokenizer import PIECE, GoOn, Tokenizer

OVERLAP = 0.25  # share of a chunk that the next one repeats, so that no passage is cut apart in both
_SPACE = re.compile(r"\s")


def chunk_spans(
    tokenizer: Tokenizer, text: str, length: int, go_on: GoOn | None = None
) -> list[tuple[int, int]]:
    """The characters of each chunk; one chunk, the whole text, where `length` tokens hold it."""
    room = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    if len(text) <= room:  # a token has at least one character
        return [(0, len(text))]
    token_spans = _token_spans(tokenizer, text, go_on)
    if len(token_spans) <= room:
        return [(0, len(text))]
    starts_word = np.concatenate([[True], token_spans[1:, 0] > token_spans[:-1, 1]])
    spans: list[tuple[int, int]] = []
    begin = 0
    while True:
        end = min(begin + room, len(token_spans))
        last = end == len(token_spans)
        if not last:
            end = _at_word(starts_word, end, begin)
        stop = len(text) if last else int(token_spans[end - 1, 1])
        spans.append((int(token_spans[begin, 0]) if begin else 0, stop))
        if last:
            return spans
        step = max(1, round((end - begin) * (1 - OVERLAP)))
        begin = max(_at_word(starts_word, begin + step, begin), begin + 1)


def _token_spans(tokenizer: Tokenizer, text: str, go_on: GoOn | None) -> NDArray[np.int32]:
    """The characters of every token, [tokens, 2]; very long texts are cut in pieces, at spaces."""
    pieces = []
    begin = 0
    while begin < len(text):
        if go_on is not None:
            go_on()
        end = begin + PIECE
        space = _SPACE.search(text, end, end + PIECE)
        end = space.start() if space else end
        [tokens] = tokenizer.cut([text[begin:end]], 2**31)
        pieces.append(tokens.spans + np.int32(begin))
        begin = end
    return np.concatenate(pieces)


def _at_word(starts_word: np.ndarray, place: int, lowest: int) -> int:
    """The nearest place at or before this one where a word starts; the place itself if there is none."""
    found = place
    while found > lowest and not starts_word[found]:
        found -= 1
    return found if found > lowest else place
