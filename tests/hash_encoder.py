"""An encoder without a language model, and what an index answers with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from coil.indexes.index import Index
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import PROFILE, make_keys, make_tokenizer


class HashEncoder:
    """Vectors that depend on a text alone, made without a language model: thousands of changes are quick."""

    def __init__(self, n_t: int = 4, n_c: int = 3) -> None:
        self.config = ModelConfig(n_t=n_t, n_c=n_c, profile=PROFILE)
        self.keys = make_keys(self.config)
        self.tokenizer = Tokenizer(make_tokenizer(), "tiny")
        self.fingerprint = f"hash-{n_t}-{n_c}"

    def _encode(self, texts: Iterable[str], length: int) -> Iterator[TokenVectors]:
        for text in texts:
            [tokens] = self.tokenizer.cut([text], length)
            ids = tokens.input_ids[1:-1]
            rng = np.random.default_rng([int(i) for i in tokens.input_ids])
            vectors = rng.standard_normal((len(ids), self.config.n_t)).astype(np.float32)
            sentence = rng.standard_normal(self.config.n_c).astype(np.float32) if self.config.n_c else None
            positions = np.arange(1, len(ids) + 1, dtype=np.int32)
            yield TokenVectors(ids, positions, tokens.spans, vectors, sentence, tokens.dropped)

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._encode(texts, self.config.profile.query_length)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        return self._encode(texts, self.config.profile.document_length)


QUERIES = ["river bank", "money money loan", "the a of", "token vector list query"]


def answers(index: Index) -> list[list[tuple[str, float, tuple[int, int]]]]:
    """Everything the queries find, to the last bit."""
    found = index.search_many(QUERIES, k=1000)
    return [[(hit.doc_id, hit.score, hit.chunk) for hit in hits] for hits in found]
