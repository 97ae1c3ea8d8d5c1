"""PreparedQuery: everything about an encoded query that a scorer needs, worked out once.

A scorer is a function of a prepared query and a segment. What the equation takes from the profile and from
the list keys is settled here, so that scorers and rankers need neither.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import InputError
from coil.forks import cached
from coil.lists.precision import quantise_queries
from coil.scores.products import QueryVector
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

_NO_SENTENCE = np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class PreparedQuery:
    """The query tokens that have a list, each occurrence on its own, and the sentence vector.

    `places` are the places of these tokens in the encoded query. With `floor`, a token adds at least 0.
    """

    lists: NDArray[np.int32]  # [tokens]
    vectors: NDArray[np.float32]  # [tokens, n_t]
    sentence: NDArray[np.float32] | None  # [n_c], None: no sentence part
    places: NDArray[np.intp]  # [tokens]
    floor: bool

    @classmethod
    def of(cls, query: TokenVectors, profile: ScoringProfile, keys: ListKeys) -> PreparedQuery:
        """Prepare an encoded query."""
        lists = keys.of(query.token_ids)
        # A dense model has no token vectors, so its tokens have no lists.
        places = np.flatnonzero(lists != NO_LIST) if query.vectors.shape[1] else np.zeros(0, np.intp)
        vectors = np.ascontiguousarray(query.vectors[places], dtype=np.float32)
        sentence = query.sentence
        if sentence is not None:
            sentence = np.ascontiguousarray(sentence, dtype=np.float32)
        if not (np.isfinite(vectors).all() and (sentence is None or np.isfinite(sentence).all())):
            raise InputError("a query vector holds NaN or infinity", "check the model: it cannot search")
        return cls(lists[places], vectors, sentence, places, profile.floor)

    def __len__(self) -> int:
        return len(self.lists)

    def __iter__(self) -> Iterator[tuple[int, QueryVector]]:
        """The list and the vector of each token."""
        return zip(self.lists.tolist(), self.token_vectors, strict=True)

    def without_sentence(self) -> PreparedQuery:
        """The same query by its tokens alone."""
        return self if self.sentence is None else replace(self, sentence=None)

    @property
    def n_t(self) -> int:
        """The width of the token vectors; 0 for a dense model."""
        return int(self.vectors.shape[1])

    @cached
    def token_vectors(self) -> tuple[QueryVector, ...]:
        """The token vectors in every form that lists are multiplied with."""
        return _forms(self.vectors)

    @cached
    def sentence_vector(self) -> QueryVector | None:
        """The same for the sentence vector."""
        return None if self.sentence is None else _forms(self.sentence[None])[0]

    @cached
    def native(self) -> Any:
        """The query as the native kernels read it; they make the same 15-bit codes."""
        return importlib.import_module("coil._native").Query(
            lists=self.lists,
            vectors=self.vectors,
            sentence=_NO_SENTENCE if self.sentence is None else self.sentence,
            floor=self.floor,
        )


def prepare(encoder: Encoder, query: TokenVectors, tok_only: bool = False) -> PreparedQuery:
    """Prepare a query that `encoder` encoded; `tok_only` leaves the sentence vector out."""
    prepared = PreparedQuery.of(query, encoder.config.profile, encoder.keys)
    return prepared.without_sentence() if tok_only else prepared


def _forms(vectors: NDArray[np.float32]) -> tuple[QueryVector, ...]:
    """[n, dim] → n vectors, as they are and in 15 bits."""
    codes, scales = quantise_queries(vectors)
    return tuple(QueryVector(*forms) for forms in zip(vectors, codes, scales, strict=True))
