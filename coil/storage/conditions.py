"""Conditions of a query: which documents of a snapshot contain everything required and nothing excluded.

A word is looked up in its list, so any form of it matches; with lists of word pieces, it is searched for in
all texts, as written. A phrase is searched for in the texts of the documents that contain all its words: word
for word, consecutively, ignoring case and accents. Punctuation between the words matters only if the phrase
contains some. A word that the tokenizer splits, such as well-known or 中国, is a phrase with or without
quotation marks. In a field, a word is searched for as written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import distinct, is_among
from coil.errors import InputError, SearchTimeout
from coil.storage.snapshot import Snapshot, living_documents
from coil.texts.asking import Condition
from coil.texts.values import clean
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.encoder import Encoder

_WORDS = re.compile(r"[^\W_]+")
_WORDS_AND_MARKS = re.compile(r"[^\W_]+|[^\w\s]|_")
_MARKS = re.compile(r"[^\w\s]|_")
_SPACE = re.compile(r"\s")
_BETWEEN = re.compile(r"[\W_]")  # separates words
_PIECE = 1 << 15  # characters of a long text; at most twice as many between two checks of the deadline
_REMEMBERED = 10_000  # distinct values of a field that are checked only once per condition
_SHORT = 256  # characters of such a value
Ordinals = NDArray[np.int64]


def documents_with(
    snapshot: Snapshot, encoder: Encoder, conditions: Sequence[Condition], deadline: float | None = None
) -> Ordinals:
    """The ordinals, ascending, of the documents that meet all conditions; SearchTimeout after the deadline.

    Lists are checked first; fields and texts are read only for the remaining documents.
    """
    with_lists = encoder.config.profile.list_key == "word"
    of_texts = [condition for condition in conditions if condition.field is None]
    maybe_with: dict[Condition, Ordinals] = {}  # candidates from the lists
    words: set[Condition] = set()  # conditions that the lists decide
    everyone = _living(snapshot)
    for condition in of_texts:
        if not with_lists:
            maybe_with[condition] = everyone
            continue
        keys = _keys_of(encoder, condition)
        maybe_with[condition] = _with_all(snapshot, keys)
        if len(keys) == 1 and not condition.phrase:
            words.add(condition)
    kept = everyone
    for condition in of_texts:
        if condition.wanted:
            kept = _intersect(kept, maybe_with[condition])
    for condition in conditions:
        phrase = Phrase(encoder.tokenizer, condition.text, deadline)
        if condition.field is not None:
            found = _with_field(snapshot, condition.field, phrase, kept, deadline)
        elif condition in words:
            found = maybe_with[condition]
        else:
            found = _with_phrase(snapshot, phrase, _intersect(kept, maybe_with[condition]))
        kept = kept[is_among(kept, found) == condition.wanted]
    return kept


class Phrase:
    """Consecutive words to search for in texts.

    A long text is read in pieces, and the deadline is checked between them: the tokenizer blocks all other
    threads while it normalises a piece.
    """

    def __init__(self, tokenizer: Tokenizer, said: str, deadline: float | None = None) -> None:
        self._tokenizer, self._deadline = tokenizer, deadline
        self._keeps_ascii = tokenizer.keeps_ascii
        normal = self._normal(said)
        self._pattern = _WORDS_AND_MARKS if _MARKS.search(normal) else _WORDS
        self._words = self._pattern.findall(normal)

    @property
    def ascii_word(self) -> str | None:
        """A word that a printable ASCII text must contain, in any case, to contain the phrase.

        None if there is none, or if the tokenizer may change such a text in other ways.
        """
        return clean(max(self._words, key=len)) if self._words and self._keeps_ascii else None

    def is_in(self, text: str) -> bool:
        """Whether a text contains these words consecutively; what separates them does not matter."""
        wanted, before = f" {' '.join(self._words)} ", list[str]()
        for piece in _pieces(text):
            self.check_time()
            words = before + self._pattern.findall(self._normal(piece))
            if wanted in f" {' '.join(words)} ":
                return True
            before = words[-len(self._words) :]  # a phrase may continue in the next piece
        return False

    def check_time(self) -> None:
        """Raise SearchTimeout after the deadline."""
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise SearchTimeout(
                "the phrase search exceeded its time limit", "simplify the query, or allow more time"
            )

    def _normal(self, text: str) -> str:
        if self._keeps_ascii and text.isascii() and text.isprintable():
            return text.lower()
        return self._tokenizer.normalise(text).lower()


def _pieces(text: str) -> Iterator[str]:
    """Split a long text into pieces, between words if possible."""
    begin = 0
    while len(text) - begin > 2 * _PIECE:
        reach = begin + _PIECE, begin + 2 * _PIECE
        found = _SPACE.search(text, *reach) or _BETWEEN.search(text, *reach)
        end = begin + 2 * _PIECE if found is None else found.start()
        yield text[begin:end]
        begin = end
    yield text[begin:]


def _keys_of(encoder: Encoder, condition: Condition) -> tuple[str | None, ...]:
    """The list key of each word, None for stop words and marks."""
    [keyed] = encoder.keys.of_texts([condition.text], 2**31)
    if not any(keyed.keys):
        raise InputError(
            f"{str(condition)[:100]} contains only stop words, which are not indexed",
            "omit the operator, or add a rarer word to the phrase",
        )
    return keyed.keys


def _with_all(snapshot: Snapshot, keys: Sequence[str | None]) -> Ordinals:
    """The documents that contain all of these words, each in any of their chunks."""
    listed = [key for key in dict.fromkeys(keys) if key is not None]
    return reduce(_intersect, [_with_key(snapshot, key) for key in listed])


def _with_key(snapshot: Snapshot, key: str) -> Ordinals:
    parts = [np.zeros(0, np.int64)]
    for live in snapshot.segments:
        rows = live.segment.rows_at(live.segment.find(key))[0]
        if live.alive is not None:
            rows = rows[live.alive[rows]]
        parts.append(distinct(live.segment.row_documents[rows]).astype(np.int64))
    return np.concatenate(parts)


def _living(snapshot: Snapshot) -> Ordinals:
    parts = [np.zeros(0, np.int64)]
    for live in snapshot.segments:
        parts.append(living_documents(live).astype(np.int64))
    return np.concatenate(parts)


def _with_phrase(snapshot: Snapshot, phrase: Phrase, maybe: Ordinals) -> Ordinals:
    found = []
    for some in snapshot.blocks(maybe.tolist()):
        phrase.check_time()
        for ordinal, document in zip(some, snapshot.fetch(some), strict=True):
            if phrase.is_in(document.text):
                found.append(ordinal)
    return np.array(found, dtype=np.int64)


def _with_field(
    snapshot: Snapshot, field: str, phrase: Phrase, maybe: Ordinals, deadline: float | None
) -> Ordinals:
    is_in = lru_cache(_REMEMBERED)(phrase.is_in)

    def contains(text: str) -> bool:
        return is_in(text) if len(text) <= _SHORT else phrase.is_in(text)

    values = snapshot.field_values(field, maybe.tolist(), deadline, phrase.ascii_word)
    found = [ordinal for ordinal, value in values if any(map(contains, _texts_of(value)))]
    return np.array(found, dtype=np.int64)


def _texts_of(value: Any) -> Iterator[str]:
    """The texts to search in a value: strings, numbers and booleans, and those in a list."""
    if isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, list):
        for part in value:
            yield from _texts_of(part)


def _intersect(one: Ordinals, other: Ordinals) -> Ordinals:
    return one[is_among(one, other)]
