"""An encoder without a language model, and what an index answers with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from coil.indexes.index import Index
from coil.tokens.profile import ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import WEIGHED, make_keys, make_tokenizer


class HashEncoder:
    """Vectors that depend on a text alone, made without a language model: thousands of changes are quick."""

    def __init__(self, n_t: int = 4, n_c: int = 3, profile: ScoringProfile = WEIGHED) -> None:
        self.config = ModelConfig(n_t=n_t, n_c=n_c, profile=profile)
        self.keys = make_keys(self.config)
        self.tokenizer = Tokenizer(make_tokenizer(), "tiny")
        self.fingerprint = f"hash-{n_t}-{n_c}-{profile.list_key}"

    def _encode(self, texts: Iterable[str], length: int) -> Iterator[TokenVectors]:
        for text in texts:
            [tokens] = self.tokenizer.cut([text], length)
            keyed = self.keys.of(text, tokens)
            rng = np.random.default_rng([int(i) for i in tokens.input_ids])
            vectors = rng.standard_normal((len(tokens) - 2, self.config.n_t)).astype(np.float32)
            sentence = rng.standard_normal(self.config.n_c).astype(np.float32) if self.config.n_c else None
            positions = (keyed.places + 1).astype(np.int32)
            yield TokenVectors(
                keyed.keys, positions, keyed.spans, vectors[keyed.places], sentence, tokens.dropped
            )

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._encode(texts, self.config.profile.query_length)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._encode(texts, self.config.profile.document_length)

    def sentence_terms(self, text: str) -> None:
        return None


QUERIES = ["river bank", "money money loan", "the a of", "token vector list query"]


def answers(index: Index) -> list[list[tuple[str, float, tuple[int, int]]]]:
    """Everything the queries find, to the last bit."""
    found = index.search_many(QUERIES, k=1000)
    return [[(hit.doc_id, hit.score, hit.chunk) for hit in hits] for hits in found]
