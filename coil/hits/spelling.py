"""Spelling suggestions: for a query word that no document contains, the most frequent word one edit away."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Collection as Container
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.hits.collection import Collection
from coil.lists.rows import row_texts
from coil.tokens.list_keys import Keyed
from coil.tokens.tokenizer import Tokens
from coil.vectors.encoder import Encoder

_SHORTEST, _LONGEST = 4, 30  # letters of a word that may be misspelled
_MOST_WORDS = 5  # of a query
LOOKED_AT = 8  # rows, the first with a key, that are searched for the spelling of its word


@dataclass(frozen=True)
class Suggestion:
    """A query word that no document contains, and the word that may have been meant."""

    word: str
    span: tuple[int, int]
    suggestion: str


class KnowsWords(Protocol):
    """The source of suggestions: how many rows have a key, and how its word is spelled there."""

    def rows_with(self, keys: Sequence[str]) -> list[int]:
        """How many rows have each of these keys."""
        ...

    def written(self, key: str, forms: Container[str]) -> Sequence[tuple[int, str | None]]:
        """The first LOOKED_AT rows with a key, in order of insertion.

        Each with its ordinal and the first of its words that is one of these forms.
        """
        ...


class CollectionWords:
    """The words of a local collection."""

    def __init__(self, encoder: Encoder, collection: Collection) -> None:
        self._encoder, self._collection = encoder, collection

    def rows_with(self, keys: Sequence[str]) -> list[int]:
        """How many rows have each of these keys."""
        return [self._collection.statistics.rows_with(key) for key in keys]

    def written(self, key: str, forms: Container[str]) -> Sequence[tuple[int, str | None]]:
        """The first rows with a key: the ordinal of each, and the first of its words among these forms."""
        return [
            (ordinal, next((word for word in self._words(ordinal, span) if word in forms), None))
            for ordinal, span in islice(self._rows(key), LOOKED_AT)
        ]

    def _rows(self, key: str) -> Iterator[tuple[int, tuple[int, int]]]:
        """The document and the span of each row of a list, in order."""
        for live in self._collection.segments:
            rows = live.segment.rows_at(live.segment.find(key))[0]
            if live.alive is not None:
                rows = rows[live.alive[rows]]
            for row in rows[:LOOKED_AT].tolist():
                start, end = live.segment.row_spans[row].tolist()
                yield int(live.segment.row_documents[row]), (start, end)

    def _words(self, ordinal: int, span: tuple[int, int]) -> Iterator[str]:
        encoder, document = self._encoder, self._collection.document(ordinal)
        [row_text] = row_texts(encoder, document, [span], self._collection.context)
        text = row_text.text
        [tokens] = encoder.tokenizer.cut([text], encoder.config.profile.document_length)
        _, spans = tokens.words()
        for start, end in np.asarray(spans).tolist():
            yield encoder.tokenizer.normalise(text[start:end]).lower()


def suggest_words(
    encoder: Encoder, words: KnowsWords, query: str, go_on: Callable[[], object] | None = None
) -> list[Suggestion]:
    """Suggestions for the query words that no document contains, in order.

    `go_on` is called before each word and may raise an exception to stop.
    """
    if encoder.config.profile.list_key != "word":
        return []  # with lists of word pieces, words have no keys
    found: list[Suggestion] = []
    looked_at = 0
    [tokens] = encoder.tokenizer.cut([query], encoder.config.profile.query_length)
    keyed = encoder.keys.of(query, tokens)
    ordinary = _is_ordinary(encoder, tokens, keyed).tolist()
    for (start, end), key, is_ordinary in zip(keyed.spans.tolist(), keyed.keys, ordinary, strict=True):
        written = query[start:end]
        word = encoder.tokenizer.normalise(written).lower()
        if key is None or not word.isalpha() or not _SHORTEST <= len(word) <= _LONGEST:
            continue
        if words.rows_with([key])[0]:
            continue
        looked_at += 1
        if go_on is not None:
            go_on()
        meant = _nearest(encoder, words, word, is_ordinary)
        if meant is not None:
            found.append(Suggestion(written, (start, end), meant))
        if looked_at == _MOST_WORDS:
            break
    return found


def _is_ordinary(encoder: Encoder, tokens: Tokens, keyed: Keyed) -> NDArray[np.bool_]:
    """For each word of a query, whether the vocabulary of the language model contains it as a whole.

    Misspellings are almost always split into several tokens.
    """
    pieces = np.diff(keyed.places, append=len(tokens.spans))
    first = tokens.input_ids[tokens.first + keyed.places]
    unknown = encoder.tokenizer.unknown_id
    found: NDArray[np.bool_] = (pieces == 1) & (first != (-1 if unknown is None else unknown))
    return found


def _nearest(encoder: Encoder, words: KnowsWords, word: str, is_ordinary: bool) -> str | None:
    """The most frequent word of the collection among those one edit away.

    A word that only one text contains may itself be a typo or a name, and an ordinary word is probably not a
    typo but may have another spelling, as in colour and color. In both cases the suggestion must begin with
    the same letter.
    """
    variants = dict.fromkeys(_edits(word))
    keys = {variant: encoder.keys.of_word(variant) for variant in variants}
    different = [key for key in dict.fromkeys(keys.values()) if key]
    rows = dict(zip(different, words.rows_with(different), strict=True))
    forms_of: dict[str, set[str]] = {}
    for variant, key in keys.items():
        if key and rows[key] and (variant[:1] == word[0] or (rows[key] > 1 and not is_ordinary)):
            forms_of.setdefault(key, set()).add(variant)
    for key in sorted(forms_of, key=lambda key: -rows[key]):  # a key is a stem, not a word as written
        for _, form in words.written(key, forms_of[key]):
            if form is not None:
                return form
    return None


def _edits(word: str) -> Iterator[str]:
    """Every string that is one deletion, transposition, replacement or insertion away."""
    letters = sorted({*string.ascii_lowercase, *word})
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        yield from (before + letter + after for letter in letters)
