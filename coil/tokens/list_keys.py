"""The list key: a text that identifies the inverted list of a token.

For word pieces, the key is the vocabulary entry. For words, a mention is a whole word as found by the
tokenizer's pre-tokenizer, and the key is its English stem, without attached symbols. This vocabulary is open:
a word that the model has never seen has its own list and matches only itself.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.texts.values import clean
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer, Tokens

LONGEST_KEY = 96  # bytes of UTF-8
_KEPT = 60  # bytes of a longer word, followed by a digest of the whole
_REMEMBERED, _SHORT = 1 << 17, 40  # words whose keys are cached, and their characters
_OF_EMOJI = frozenset(["\u200d", *map(chr, range(0xFE00, 0xFE10))])  # zero-width joiner, variation selectors

# Function words that carry no topic. Kept short on purpose: a word that can name a topic keeps its list.
STOP_WORDS = frozenset(
    """a about after again against all also am an and any are aren as at be because been before being below
    between both but by can could couldn d did didn do does doesn doing don down during each few for
    from further had hadn has hasn have haven having he her here hers herself him himself his how i if
    in into is isn it its itself just let ll m may me might mightn more most must mustn my myself needn
    no nor not now o of off on once only or other ought our ours ourselves out over own re s same shall
    shan she should shouldn so some such t than that the their theirs them themselves then there these
    they this those through to too under until up upon us ve very was wasn we were weren what when where
    which while who whom whose why will with won would wouldn y you your yours yourself yourselves""".split()
)


@dataclass(frozen=True, eq=False)
class Keyed:
    """The mentions of a text: the token that has the vector, the character span, the key (None: no list)."""

    places: NDArray[np.intp]  # [mentions] among the text's tokens
    spans: NDArray[np.int32]  # [mentions, 2]
    keys: tuple[str | None, ...]


class ListKeys:
    """Assigns list keys to the tokens of texts. Training, index, search and explanation share it."""

    def __init__(self, profile: ScoringProfile, tokenizer: Tokenizer) -> None:
        self.profile = profile
        self._tokenizer = tokenizer
        self._stemmer: Any = None
        if profile.list_key == "word":
            import Stemmer  # not needed if texts are already token ids

            self._stemmer = Stemmer.Stemmer("english", 0)  # without a cache: keys are cached here
        self._of_short = lru_cache(_REMEMBERED)(self._key_of_word)
        self._of_token: list[str | None] | None = None

    def of(self, text: str, tokens: Tokens) -> Keyed:
        """The mentions of a text, given its tokens."""
        if self.profile.list_key == "wordpiece":
            names = self._token_keys()
            ids = tokens.input_ids[tokens.first : tokens.first + len(tokens.spans)].tolist()
            return Keyed(np.arange(len(ids)), tokens.spans, tuple(names[token] for token in ids))
        places, spans = tokens.words()
        text = clean(text)
        keys = tuple(self.of_word(text[start:end]) for start, end in spans.tolist())
        return Keyed(places, spans, keys)

    def of_texts(self, texts: Sequence[str], length: int) -> list[Keyed]:
        """The mentions of texts, each truncated to `length` tokens; no language model is run."""
        return [
            self.of(text, tokens)
            for text, tokens in zip(texts, self._tokenizer.cut(texts, length), strict=True)
        ]

    def _token_keys(self) -> list[str | None]:
        """The key of every entry of the vocabulary."""
        if self._of_token is None:
            names: list[str | None] = list(self._tokenizer.vocabulary)
            for token_id, name in enumerate(names):
                assert name is not None
                bare = name.removeprefix("##").removeprefix("Ġ").removeprefix("▁")
                stop = name.removeprefix("Ġ").removeprefix("▁").lower() in STOP_WORDS
                if self.profile.unlisted == "stopwords" and (stop or is_punctuation(bare)):
                    names[token_id] = None
                else:
                    names[token_id] = shorten(name)
            unlisted = list(self._tokenizer.special_ids)
            if self.profile.unlisted == "stopwords" and self._tokenizer.unknown_id is not None:
                unlisted.append(self._tokenizer.unknown_id)
            for token_id in unlisted:
                names[token_id] = None
            self._of_token = names
        return self._of_token

    def of_word(self, written: str) -> str | None:
        """The key of a word as written in a text. Those of long words are not cached: anyone who searches a
        server could fill its memory with them."""
        return self._of_short(written) if len(written) <= _SHORT else self._key_of_word(written)

    def _key_of_word(self, written: str) -> str | None:
        word = without_symbols(self._tokenizer.normalise(written).strip()).lower()
        if not word:
            return None
        if self.profile.unlisted == "stopwords" and (word in STOP_WORDS or is_punctuation(word)):
            return None
        if len(word) > 1 and word.isalpha() and len(word) <= LONGEST_KEY:
            word = self._stemmer.stemWord(word)
        return shorten(word)


def without_symbols(word: str) -> str:
    """A word without the symbols attached to it, as in Acme™ and great😀, unless it consists of symbols.

    The pre-tokenizer of BERT splits at punctuation only. ASCII symbols are left to it, so that the + of c++
    stays if a pre-tokenizer keeps it.
    """
    if word.isascii() or word.isalnum():
        return word
    begin, end = 0, len(word)
    while begin < end and _is_symbol(word[begin]):
        begin += 1
    while begin < end and _is_symbol(word[end - 1]):
        end -= 1
    bare = word[begin:end]
    return bare if any(map(str.isalnum, bare)) else word


def _is_symbol(char: str) -> bool:
    """Whether a character is a symbol, or joins or modifies emoji; their colours are symbols as well."""
    return not char.isascii() and (unicodedata.category(char)[0] == "S" or char in _OF_EMOJI)


def shorten(key: str) -> str:
    """The key itself or, if it is too long, its beginning and a digest."""
    encoded = key.encode()
    if len(encoded) <= LONGEST_KEY:
        return key
    digest = blake2b(encoded, digest_size=16).hexdigest()
    return encoded[:_KEPT].decode(errors="ignore") + "…" + digest


def unlisted_reason(text: str) -> str:
    """Why a token with this text has no list, for explanations."""
    if is_punctuation(text):
        return "punctuation"
    return "stop word" if text.lower() in STOP_WORDS else "without a list"


def is_punctuation(text: str) -> bool:
    """Whether a text consists only of punctuation, spaces and control characters."""
    return bool(text) and all(
        char in string.punctuation or unicodedata.category(char)[0] in "PZC" for char in text
    )
