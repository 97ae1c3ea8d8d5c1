"""Did you mean: for a query word that no document contains, a frequent word that is one edit away."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from coil.hits.collection import Collection
from coil.lists.rows import row_texts
from coil.tokens.tokenizer import Tokens
from coil.vectors.encoder import Encoder

_SHORTEST, _LONGEST = 4, 30  # letters of a word that may be misspelled
_MOST_WORDS = 5  # of a query
_FREQUENT = 2  # texts that have the other word


@dataclass(frozen=True)
class Suggestion:
    """A query word that no document contains, and the word that may have been meant."""

    word: str
    span: tuple[int, int]
    suggestion: str


def suggest_words(
    encoder: Encoder, collection: Collection, query: str, go_on: Callable[[], object] | None = None
) -> list[Suggestion]:
    """Suggestions for the query words that no document contains, in order.

    `go_on` is called before each word; an exception from it ends the call.
    """
    if encoder.config.profile.list_key != "word":
        return []  # lists of pieces: a word that is in no document has no list of its own
    found: list[Suggestion] = []
    looked_at = 0
    [tokens] = encoder.tokenizer.cut([query], encoder.config.profile.query_length)
    keyed = encoder.keys.of(query, tokens)
    for (start, end), key in zip(keyed.spans.tolist(), keyed.keys, strict=True):
        written = query[start:end]
        word = encoder.tokenizer.normalise(written).lower()
        if key is None or not word.isalpha() or not _SHORTEST <= len(word) <= _LONGEST:
            continue
        if collection.statistics.rows_with(key):
            continue
        looked_at += 1
        if go_on is not None:
            go_on()
        meant = _nearest(encoder, collection, word)
        if meant is not None:
            found.append(Suggestion(written, (start, end), meant))
        if looked_at == _MOST_WORDS:
            break
    return found


def _nearest(encoder: Encoder, collection: Collection, word: str) -> str | None:
    """The most frequent word of the collection among those one edit away."""
    variants = dict.fromkeys(_edits(word))
    keys = {variant: encoder.keys.of_word(variant) for variant in variants}
    rows = {key: collection.statistics.rows_with(key) for key in dict.fromkeys(keys.values()) if key}
    likely = sorted((key for key, n in rows.items() if n >= _FREQUENT), key=lambda key: -rows[key])
    for key in likely:
        forms = {variant for variant, of in keys.items() if of == key}
        written = _written(encoder, collection, key, forms)
        if written is not None:
            return written
    return None


def _written(encoder: Encoder, collection: Collection, key: str, forms: set[str]) -> str | None:
    """Which of these forms a document has: a list is named by a stem, which nobody writes."""
    for live in collection.segments:
        rows = live.segment.rows_at(live.segment.find(key))[0]
        if live.alive is not None:
            rows = rows[live.alive[rows]]
        for row in rows[:3].tolist():
            document = collection.document(int(live.segment.row_documents[row]))
            start, end = live.segment.row_spans[row].tolist()
            [row_text] = row_texts(encoder, document, [(start, end)], collection.context)
            text = row_text.text
            [tokens] = encoder.tokenizer.cut([text], encoder.config.profile.document_length)
            for written in _words(encoder, text, tokens):
                if written in forms:
                    return written
    return None


def _words(encoder: Encoder, text: str, tokens: Tokens) -> Iterator[str]:
    _, spans = tokens.words()
    for start, end in np.asarray(spans).tolist():
        yield encoder.tokenizer.normalise(text[start:end]).lower()


def _edits(word: str) -> Iterator[str]:
    """Every text that is one deletion, exchange of neighbours, replacement or insertion away."""
    letters = sorted({*string.ascii_lowercase, *word})
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        if after:
            yield before + after[1:]
            yield from (before + letter + after[1:] for letter in letters)
        if len(after) > 1:
            yield before + after[1] + after[0] + after[2:]
        yield from (before + letter + after for letter in letters)
