"""An encoder without a language model whose sentence vector is a sum over tokens, as with mean pooling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokens
from coil.vectors.encoder import SentenceTerms
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.tiny import WEIGHED


class SummingEncoder(HashEncoder):
    """Knows what each token adds to its sentence vector, which is of length 1 or a little less."""

    def __init__(self, n_t: int = 4, n_c: int = 16, profile: ScoringProfile = WEIGHED) -> None:
        super().__init__(n_t, n_c, profile)
        self.fingerprint = f"sum-{self.fingerprint}"

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._summed(texts, self.config.profile.query_length)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._summed(texts, self.config.profile.document_length)

    def sentence_terms(self, text: str) -> SentenceTerms:  # type: ignore[override]
        [tokens] = self.tokenizer.cut([text], self.config.profile.document_length)
        terms = self._terms(tokens)
        inside = slice(tokens.first, tokens.first + len(tokens.spans))
        rest = terms.sum(axis=0) - terms[inside].sum(axis=0)
        return tokens.spans, terms[inside], rest

    def _summed(self, texts: Iterable[str], length: int) -> Iterator[TokenVectors]:
        for text in texts:
            [encoded] = self._encode([text], length)
            [tokens] = self.tokenizer.cut([text], length)
            # Less than 1, so that a token's similarity is one of vectors that are alike.
            scaled = encoded.vectors / np.maximum(np.linalg.norm(encoded.vectors, axis=1, keepdims=True), 1.0)
            yield replace(encoded, vectors=scaled, sentence=self._terms(tokens).sum(axis=0))

    def _terms(self, tokens: Tokens) -> NDArray[np.float32]:
        """What each token adds, the marks at both ends included. [tokens, n_c]"""
        of_token = [_draw(int(token), self.config.n_c) for token in tokens.input_ids]
        summed = np.array(of_token) / max(float(np.linalg.norm(np.sum(of_token, axis=0))), 1e-9)
        return summed.astype(np.float32)


@cache
def _draw(token: int, n_c: int) -> NDArray[np.float64]:
    return np.random.default_rng(token).standard_normal(n_c)
