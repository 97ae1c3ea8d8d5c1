"""The list key: which inverted list a token belongs to.

The key is a table over the vocabulary, made once from the profile and saved with the model, so that
training, index, search and explanation share one definition and searching needs no stemmer.
"""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coil.errors import require
from coil.tokens.profile import ScoringProfile

NO_LIST = -1
WORD_STARTS = ("Ġ", "▁")

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


@dataclass(frozen=True)
class ListKeys:
    """The table: `table[token_id]` is the list of that token, or NO_LIST.

    A list is named by a token id too: the smallest one of its class, so a list can be shown as a token.
    """

    table: NDArray[np.int32]  # [vocabulary]

    @property
    def vocabulary_size(self) -> int:
        """How many tokens the table covers."""
        return len(self.table)

    def of(self, token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
        """The list of each token, NO_LIST where it has none."""
        return self.table[token_ids]

    def members(self, list_id: int) -> NDArray[np.intp]:
        """The tokens that share a list, ascending."""
        return np.flatnonzero(self.table == list_id)


def build_list_keys(
    profile: ScoringProfile, vocabulary: Sequence[str], special_ids: Sequence[int], unknown_id: int | None
) -> ListKeys:
    """Make the table for a vocabulary (`vocabulary[i]` is the token with id i)."""
    table = np.arange(len(vocabulary), dtype=np.int32)
    # Byte-pair vocabularies mark where a word starts, word-piece vocabularies where one goes on.
    marked = any(token.startswith(WORD_STARTS) for token in vocabulary)
    words = [_whole_word(token, marked) for token in vocabulary]
    if profile.list_key == "stem":
        stemmer = require("snowballstemmer", "train").stemmer("english")
        representative: dict[str, int] = {}
        for token_id, word in enumerate(words):
            if word is not None and word.isalpha() and len(word) > 1:
                table[token_id] = representative.setdefault(stemmer.stemWord(word.lower()), token_id)
    if profile.unlisted == "stopwords":
        for token_id, token in enumerate(vocabulary):
            word = words[token_id]
            bare = token.removeprefix("##").removeprefix("Ġ").removeprefix("▁")
            if (word is not None and word.lower() in STOP_WORDS) or _is_punctuation(bare):
                table[token_id] = NO_LIST
        if unknown_id is not None:
            table[unknown_id] = NO_LIST
    table[list(special_ids)] = NO_LIST
    return ListKeys(_named_by_smallest(table))


def unlisted_reason(text: str, unknown: bool) -> str:
    """Why a token that is written like this has no list, in words; `unknown` is the tokenizer's verdict."""
    if unknown:
        return "unknown to the model"
    if _is_punctuation(text):
        return "punctuation"
    return "stop word" if text.lower() in STOP_WORDS else "without a list"


def _whole_word(token: str, marked: bool) -> str | None:
    """The word that a vocabulary entry spells on its own, or None for a continuation piece."""
    if token.startswith(WORD_STARTS):
        return token[1:]
    return None if marked or token.startswith("##") else token


def _is_punctuation(text: str) -> bool:
    return bool(text) and all(
        char in string.punctuation or unicodedata.category(char)[0] in "PZC" for char in text
    )


def _named_by_smallest(table: NDArray[np.int32]) -> NDArray[np.int32]:
    """Name each class by its smallest surviving member (a stop word may have named it before)."""
    smallest: dict[int, int] = {}
    for token_id, key in enumerate(table.tolist()):
        if key != NO_LIST:
            smallest.setdefault(key, token_id)
    return np.array([smallest.get(key, NO_LIST) for key in table.tolist()], dtype=np.int32)
