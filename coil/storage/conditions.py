"""Conditions of a query: which documents of a snapshot have what they must have, and not what they must not.

A word is looked up in its list, so any form of it will do. A phrase is looked for in the texts of the
documents that have all of its words: word for word, in a row, without regard to case and accents. Punctuation
between the words matters only where the phrase has some itself. In a field, a word is looked for as written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from functools import reduce
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
_LONG = 1 << 20  # characters; about twice as many are looked at between two looks at the clock
Ordinals = NDArray[np.int64]


def documents_with(
    snapshot: Snapshot, encoder: Encoder, conditions: Sequence[Condition], deadline: float | None = None
) -> Ordinals:
    """The ordinals, ascending, of the documents that fulfil all conditions; SearchTimeout after the deadline.

    Lists are looked at first, fields and texts only of what they leave.
    """
    of_lists = [condition for condition in conditions if condition.field is None]
    keys = {condition: _keys_of(encoder, condition) for condition in of_lists}
    kept: Ordinals | None = None
    for condition in of_lists:
        if condition.wanted:
            kept = _both(kept, _with_all(snapshot, keys[condition]))
    if kept is None:
        kept = _living(snapshot)
    for condition in of_lists:
        if not condition.wanted and not condition.phrase:
            kept = _kept(kept, _with_all(snapshot, keys[condition]), wanted=False)
    for condition in conditions:
        if condition.field is not None:
            found = _with_field(snapshot, encoder.tokenizer, condition, kept, deadline)
            kept = _kept(kept, found, condition.wanted)
    for condition in of_lists:
        if condition.phrase:
            maybe = kept if condition.wanted else _both(kept, _with_all(snapshot, keys[condition]))
            found = _with_phrase(snapshot, encoder.tokenizer, condition.text, maybe, deadline)
            kept = _kept(kept, found, condition.wanted)
    return kept


def has_words(tokenizer: Tokenizer, said: str, text: str) -> bool:
    """Whether a text has these words in a row."""
    pattern = _WORDS_AND_MARKS if _MARKS.search(_normal(tokenizer, said)) else _WORDS
    return _in_a_row(tokenizer, pattern, said) in _in_a_row(tokenizer, pattern, text)


def _in_a_row(tokenizer: Tokenizer, pattern: re.Pattern[str], text: str) -> str:
    return f" {' '.join(pattern.findall(_normal(tokenizer, text)))} "


def _normal(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.normalise(clean(text)).lower()


def _keys_of(encoder: Encoder, condition: Condition) -> list[str]:
    """The lists of the words."""
    [keyed] = encoder.keys.of_texts([condition.text], 2**31)
    keys = [key for key in dict.fromkeys(keyed.keys) if key is not None]
    if not keys:
        raise InputError(
            f"{str(condition)[:100]} has only stop words, which no list is kept of",
            "leave the operator out, or add a rarer word to the phrase",
        )
    return keys


def _with_all(snapshot: Snapshot, keys: Sequence[str]) -> Ordinals:
    """The documents with all of these words, each in any of its chunks."""
    return reduce(_intersect, [_with_key(snapshot, key) for key in keys])


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


def _with_phrase(
    snapshot: Snapshot, tokenizer: Tokenizer, phrase: str, maybe: Ordinals, deadline: float | None
) -> Ordinals:
    found = []
    for some in snapshot.blocks(maybe.tolist()):
        _check_time(deadline)
        for ordinal, document in zip(some, snapshot.fetch(some), strict=True):
            for piece in _pieces(document.text):
                if has_words(tokenizer, phrase, piece):
                    found.append(ordinal)
                    break
                if len(piece) > _LONG:
                    _check_time(deadline)
    return np.array(found, dtype=np.int64)


def _pieces(text: str) -> Iterator[str]:
    """A text, or a very long one in parts, cut at spaces; each repeats half of the one before, so that a
    phrase is whole in one of them."""
    begin = 0
    while len(text) - begin > 2 * _LONG:
        end = _SPACE.search(text, begin + 2 * _LONG)
        if end is None:
            break
        yield text[begin : end.start()]
        middle = _SPACE.search(text, begin + _LONG)
        begin = end.start() if middle is None else middle.start()
    yield text[begin:]


def _with_field(
    snapshot: Snapshot, tokenizer: Tokenizer, condition: Condition, maybe: Ordinals, deadline: float | None
) -> Ordinals:
    assert condition.field is not None
    found = [
        ordinal
        for ordinal, value in snapshot.field_values(condition.field, deadline)
        if any(has_words(tokenizer, condition.text, text) for text in _texts_of(value))
    ]
    return _intersect(maybe, np.array(found, dtype=np.int64))


def _texts_of(value: Any) -> Iterator[str]:
    """What words are looked for in: texts and numbers, and those of a list."""
    if isinstance(value, bool):
        yield "true" if value else "false"
    elif isinstance(value, str | int | float):
        yield str(value)
    elif isinstance(value, list):
        for part in value:
            yield from _texts_of(part)


def _kept(kept: Ordinals, found: Ordinals, wanted: bool) -> Ordinals:
    return found if wanted else kept[~is_among(kept, found)]


def _both(kept: Ordinals | None, found: Ordinals) -> Ordinals:
    return found if kept is None else _intersect(kept, found)


def _intersect(one: Ordinals, other: Ordinals) -> Ordinals:
    return one[is_among(one, other)]


def _check_time(deadline: float | None) -> None:
    if deadline is not None and time.monotonic() > deadline:
        raise SearchTimeout(
            "looking for a phrase took longer than it was given", "simplify the query, or allow more time"
        )
