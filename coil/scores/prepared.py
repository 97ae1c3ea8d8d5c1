"""PreparedQuery: everything about an encoded query that a scorer needs, computed once.

A scorer is a function of a prepared query and a segment. The parameters from the profile and the statistics
of the collection are applied here: with rarity r_i, a token contributes

    f · (base_i + v_i · v_j)⁺        base_i = r_i·α,  v_i = r_i·β·v_i^q,  f = tf / (tf + c0 + c1·len)

and the sentence vector is γ(q)·v_cls^q. Scorers and rankers need neither profile nor statistics.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from coil.compiled import importing
from coil.errors import InputError
from coil.forks import cached
from coil.lists.precision import quantise_queries
from coil.lists.sentences import head_width
from coil.scores.products import QueryVector
from coil.tokens.profile import ScoringProfile
from coil.vectors.token_vectors import TokenVectors

_NO_SENTENCE = np.zeros(0, np.float32)


class KnowsCollection(Protocol):
    """The statistics that weights are computed from."""

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        ...

    @property
    def mean_length(self) -> float:
        """The mean number of mentions per row."""
        ...

    def rows_with(self, key: str) -> int:
        """The number of rows with this key."""
        ...

    def rarity(self, key: str) -> float:
        """The rarity of a key: the weight of a match."""
        ...


class Saturation(NamedTuple):
    """The constants of the factor tf / (tf + c0 + c1·len)."""

    c0: float
    c1: float


@dataclass(frozen=True, eq=False)
class PreparedQuery:
    """The query tokens that have a list, each occurrence separately, and the sentence vector.

    `places` are the positions of these tokens in the encoded query. If only counts matter (β = 0), vectors
    have no dimensions. Without `saturation`, the factor is 1. With `floor`, a token adds at least 0.
    """

    keys: tuple[str, ...]  # [tokens]
    bases: NDArray[np.float32]  # [tokens]
    vectors: NDArray[np.float32]  # [tokens, n_t or 0]
    sentence: NDArray[np.float32] | None  # [n_c], None: no sentence part
    places: NDArray[np.intp]  # [tokens]
    saturation: Saturation | None
    floor: bool
    encoded: TokenVectors

    @classmethod
    def of(cls, query: TokenVectors, profile: ScoringProfile, collection: KnowsCollection) -> PreparedQuery:
        """Prepare an encoded query for a collection with these statistics."""
        listed = [place for place, key in enumerate(query.keys) if key is not None]
        counted = profile.beta == 0.0
        sentence = None
        if profile.uses_sentence and query.sentence is not None:
            sentence = np.float32(profile.gamma_of(len(listed))) * query.sentence.astype(np.float32)
        # Without α and vectors, no list can contribute.
        if profile.alpha == 0.0 and (counted or not query.vectors.shape[1]):
            listed = []
        keys = tuple(key for key in (query.keys[place] for place in listed) if key is not None)
        vectors = np.zeros((len(keys), 0), np.float32)
        if not counted:
            vectors = np.float32(profile.beta) * query.vectors[listed].astype(np.float32)
        bases = np.full(len(keys), profile.alpha, np.float32)
        saturation = None
        if profile.weight == "bm25":
            rarities = np.array([collection.rarity(key) for key in keys], dtype=np.float32)
            vectors, bases = vectors * rarities[:, None], bases * rarities
            c0, c1 = profile.k1 * (1 - profile.b), profile.k1 * profile.b / collection.mean_length
            saturation = Saturation(float(np.float32(c0)), float(np.float32(c1)))
        if not (np.isfinite(vectors).all() and (sentence is None or np.isfinite(sentence).all())):
            raise InputError("a query vector contains NaN or infinity", "check the model")
        return cls(
            keys,
            bases,
            np.ascontiguousarray(vectors),
            sentence,
            np.array(listed, dtype=np.intp),
            saturation,
            profile.floor,
            query,
        )

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[tuple[str, np.float32, QueryVector]]:
        """Key, base and vector of each token."""
        return zip(self.keys, self.bases, self.token_vectors, strict=True)

    @property
    def n_t(self) -> int:
        """The number of dimensions of the token vectors; 0 if only counts matter."""
        return int(self.vectors.shape[1])

    def factors(
        self, counts: NDArray[np.int64], lengths: NDArray[np.uint32]
    ) -> NDArray[np.float32] | np.float32:
        """f for postings with these numbers of mentions, in rows of these lengths."""
        if self.saturation is None:
            return np.float32(1.0)
        tf = counts.astype(np.float32)
        c0, c1 = np.float32(self.saturation.c0), np.float32(self.saturation.c1)
        found = tf / (tf + (c0 + c1 * lengths.astype(np.float32)))
        return found.astype(np.float32, copy=False)

    @cached
    def own_score(self) -> float | None:
        """The score of the query's own text as a document of this collection; None for an empty query.

        A score by itself says little; its share of the own score says more. A score may exceed the own score,
        but to come near it, a text has to say what the query says, in the same words.
        """
        if not len(self.encoded):
            return None
        total = 0.0
        own = self.encoded.vectors[self.places].astype(np.float64)  # [tokens, n_t]
        listed = sum(key is not None for key in self.encoded.keys)
        for number, key in enumerate(self.keys):
            same = [other for other, of in enumerate(self.keys) if of == key]
            best = 0.0
            if self.n_t:
                best = float((own[same] @ self.vectors[number].astype(np.float64)).max())
            fit = float(self.bases[number]) + best
            factor = self.factors(np.array([len(same)]), np.array([listed], dtype=np.uint32))
            total += float(np.reshape(factor, -1)[0]) * (max(fit, 0.0) if self.floor else fit)
        if self.sentence is not None and self.encoded.sentence is not None:
            total += float(self.sentence.astype(np.float64) @ self.encoded.sentence.astype(np.float64))
        return total

    @cached
    def token_vectors(self) -> tuple[QueryVector, ...]:
        """The token vectors in the forms used for products with lists."""
        return _forms(self.vectors)

    @cached
    def sentence_vectors(self) -> tuple[QueryVector, QueryVector] | None:
        """Head and tail of the sentence vector, in the same forms."""
        if self.sentence is None:
            return None
        width = head_width(len(self.sentence))
        head, tail = self.sentence[:width], self.sentence[width:]
        return QueryVector.of(head), QueryVector.of(tail)

    @cached
    def native(self) -> Any:
        """The query in the form that the native kernels read; they compute the same 15-bit codes."""
        saturation = self.saturation or Saturation(0.0, 0.0)
        with importing():
            native = importlib.import_module("coil._native")
        return native.Query(
            keys=[key.encode() for key in self.keys],
            bases=self.bases,
            vectors=self.vectors,
            sentence=_NO_SENTENCE if self.sentence is None else self.sentence,
            weighted=self.saturation is not None,
            c0=saturation.c0,
            c1=saturation.c1,
            floor=self.floor,
        )


def _forms(vectors: NDArray[np.float32]) -> tuple[QueryVector, ...]:
    """[n, dim] → n vectors, each exact and in 15 bits."""
    codes, scales = quantise_queries(vectors)
    return tuple(QueryVector(*forms) for forms in zip(vectors, codes, scales, strict=True))
