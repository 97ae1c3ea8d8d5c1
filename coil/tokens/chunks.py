"""Chunks: splitting a text that is too long for the model.

A chunk ends before a heading if there is one in the second half of the maximum length, otherwise after the
last paragraph there, otherwise after the last sentence, otherwise between two words. After a chunk that ends
with a paragraph, the next one does not overlap it, since no passage is split. Otherwise the next chunk
repeats a quarter of it, from the start of a sentence if possible. Together, the chunks cover the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from coil.tokens.tokenizer import PIECE, GoOn, Tokenizer

OVERLAP = 0.25  # share of a chunk that the next one repeats if a passage is split
_SPACE = re.compile(r"\s")
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n\s*")
_SENTENCE = re.compile(r"(?<=[.!?。！？])[\"'”’)\]]*\s+")
_WORD, _SENTENCE_START, _PARAGRAPH_START, _HEADING_START = range(4)
_ENDS = 1_000  # boundaries found between two calls of `go_on`


def chunk_spans(
    tokenizer: Tokenizer,
    text: str,
    length: int,
    go_on: GoOn | None = None,
    headings: Sequence[int] = (),
    reserved: tuple[int, int] = (0, 0),
) -> list[tuple[int, int]]:
    """The character span of each chunk; a text that fits into `length` tokens is a single chunk.

    `headings` are the positions at which headings begin. `reserved` is the number of tokens to keep free for
    the context before a chunk: for one that is the whole text, and for one of several.
    """
    room = length - len(tokenizer.prefix) - len(tokenizer.suffix)
    whole, part = reserved
    if len(text) <= room - whole:  # a token has at least one character
        return [(0, len(text))]
    token_spans = _token_spans(tokenizer, text, go_on)
    if len(token_spans) <= room - whole:
        return [(0, len(text))]
    room = max(1, room - part)
    starts_word = np.concatenate([[True], token_spans[1:, 0] > token_spans[:-1, 1]])
    places = _starts(text, token_spans, starts_word, headings, go_on)
    spans: list[tuple[int, int]] = []
    begin = last = 0
    while True:
        end = min(begin + room, len(token_spans))
        first = int(token_spans[begin, 0]) if begin else 0
        if end == len(token_spans):
            spans.append((first, len(text)))
            return spans
        least = max(begin + max(1, room // 2), last + 1)  # a chunk ends after the end of the previous one
        kind, end = _end(places, starts_word, least, end)
        following = end if kind >= _PARAGRAPH_START else _overlapping(places, starts_word, begin, end)
        stop = token_spans[end, 0] if following == end else token_spans[end - 1, 1]
        spans.append((first, int(stop)))
        begin, last = following, end


def _starts(
    text: str,
    token_spans: NDArray[np.int32],
    starts_word: NDArray[np.bool_],
    headings: Sequence[int],
    go_on: GoOn | None,
) -> list[NDArray[np.intp]]:
    """The tokens at which sentences, paragraphs and headings begin, by kind; the entry for words is empty."""
    found = [np.zeros(0, dtype=np.intp)]
    sentences: Iterator[int] = (match.end() for match in _SENTENCE.finditer(text))
    paragraphs = (match.end() for match in _PARAGRAPH.finditer(text))
    for characters in (sentences, paragraphs, iter(headings)):
        starts = np.fromiter(_asked(characters, go_on), dtype=np.int64)
        tokens = np.unique(np.searchsorted(token_spans[:, 0], starts))
        tokens = tokens[tokens < len(token_spans)]
        found.append(tokens[starts_word[tokens]])
    return found


def _asked(characters: Iterator[int], go_on: GoOn | None) -> Iterator[int]:
    for number, character in enumerate(characters):
        if go_on is not None and number % _ENDS == 0:
            go_on()
        yield character


def _end(
    places: list[NDArray[np.intp]], starts_word: NDArray[np.bool_], least: int, end: int
) -> tuple[int, int]:
    """The best place for a chunk to end, from `least` to `end`, after the kind of text that begins there."""
    for kind in (_HEADING_START, _PARAGRAPH_START, _SENTENCE_START):
        found = int(np.searchsorted(places[kind], end, side="right")) - 1
        if found >= 0 and places[kind][found] >= least:
            return kind, int(places[kind][found])
    return _WORD, _at_word(starts_word, end, least - 1)


def _overlapping(places: list[NDArray[np.intp]], starts_word: NDArray[np.bool_], begin: int, end: int) -> int:
    """Where the next chunk begins if it repeats the end of this one."""
    step = max(1, round((end - begin) * (1 - OVERLAP)))
    sentences = places[_SENTENCE_START]
    found = int(np.searchsorted(sentences, begin + step))
    if found < len(sentences) and sentences[found] < end:
        return int(sentences[found])
    return max(_at_word(starts_word, begin + step, begin), begin + 1)


def _token_spans(tokenizer: Tokenizer, text: str, go_on: GoOn | None) -> NDArray[np.int32]:
    """The character span of every token, [tokens, 2]; very long texts are split at spaces first."""
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


def _at_word(starts_word: NDArray[np.bool_], place: int, lowest: int) -> int:
    """The nearest place at or before this one where a word starts; the place itself if there is none."""
    found = place
    while found > lowest and not starts_word[found]:
        found -= 1
    return found if found > lowest else place
