"""The Encoder: turns any number of texts into TokenVectors, in input order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coil.errors import ModelError, WrongShape
from coil.tokens.list_keys import ListKeys
from coil.tokens.model_json import COPY
from coil.tokens.tokenizer import Tokenizer, Tokens
from coil.vectors.config import ModelConfig
from coil.vectors.model_files import ModelFiles
from coil.vectors.token_vectors import TokenVectors

WINDOW = 1024  # texts held at a time, so memory does not grow with the collection
WINDOW_CHARACTERS = 4_000_000
LENGTH_STEP = 8


SentenceTerms = tuple[NDArray[np.int32], NDArray[np.float32], NDArray[np.float32]]
"""The span of each token [tokens, 2], its term [tokens, n_c], and that of bias and special tokens [n_c]."""


Batch = tuple[list[tuple[str, Tokens]], int]
"""Texts with their tokens, and the length to which they are padded."""


class Encoder(Protocol):
    """The interface of encoders: they turn texts into TokenVectors."""

    @property
    def config(self) -> ModelConfig:
        """Shape and scoring profile of the model."""
        ...

    @property
    def keys(self) -> ListKeys:
        """The list key of each token of a text."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Names and spans of the tokens."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of everything that determines the vectors."""
        ...

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of queries, in input order."""
        ...

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of documents, in input order."""
        ...

    def sentence_terms(self, text: str) -> SentenceTerms | None:
        """Each token's contribution to a document's sentence vector; None if the model cannot tell."""
        ...


class BatchEncoder(ABC):
    """What all encoders share: windows of texts, batches, results in order."""

    def __init__(self, files: ModelFiles, batch_tokens: int, bucketed: bool = True, threads: int = 1) -> None:
        self._files = files
        self.batch_tokens = batch_tokens
        self._bucketed = bucketed
        self._threads = threads  # each encodes a batch

    @property
    def config(self) -> ModelConfig:
        """Shape and scoring profile of the model."""
        return self._files.config

    @property
    def keys(self) -> ListKeys:
        """The list key of each token of a text."""
        return self._files.keys

    @property
    def tokenizer(self) -> Tokenizer:
        """Names and spans of the tokens."""
        return self._files.tokenizer

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of everything that determines the vectors."""

    @abstractmethod
    def _forward(
        self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """Run the language model: [batch, length] ids → [batch, length, n_t] and [batch, n_c]."""

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of queries, in input order."""
        return self._encode(texts, self.config.profile.query_length)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of documents, in input order."""
        return self._encode(texts, self.config.profile.document_length)

    def _states(self, input_ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32] | None:
        """The language model's last states, [batch, length, width]; None if they are not available."""
        return None

    def sentence_terms(self, text: str) -> SentenceTerms | None:
        """Each token's contribution to a document's sentence vector; None if the model cannot tell.

        The vector is W·p + b, where p is the mean of the states h_j of n tokens, possibly scaled to length 1.
        So a token contributes W·h_j / n, or W·h_j / (n·‖mean‖); b and the special tokens are the rest.
        """
        config = self.config
        if not config.n_c or config.pooling != "mean" or config.sentence_norm == "layer":
            return None
        [tokens] = self.tokenizer.cut([text], config.profile.document_length)
        width = padded_length(len(tokens), config.profile.document_length)
        states = self._states(*pad([tokens], width))
        if states is None:
            return None
        weight, bias = self._files.sentence_projection
        hidden = states[0, : len(tokens)].astype(np.float64)
        length = float(np.linalg.norm(hidden.mean(axis=0))) if config.sentence_norm == "unit" else 1.0
        terms = hidden @ weight.T.astype(np.float64) / (len(tokens) * length)
        last = tokens.first + len(tokens.spans)
        rest = terms[: tokens.first].sum(axis=0) + terms[last:].sum(axis=0) + bias
        return tokens.spans, terms[tokens.first : last].astype(np.float32), rest.astype(np.float32)

    def _encode(self, texts: Iterable[str], length: int) -> Iterator[TokenVectors]:
        for window in windows(texts):
            tokens = self.tokenizer.cut(window, length)
            results: list[TokenVectors | None] = [None] * len(tokens)
            lengths = [padded_length(len(t), length) for t in tokens]
            cut = equal_batches if self._bucketed else batches_in_order
            batches = list(cut(lengths, self.batch_tokens))
            padded = [
                ([(window[i], tokens[i]) for i in batch], max(lengths[i] for i in batch)) for batch in batches
            ]
            for batch, of_batch in zip(batches, self._encode_batches(padded), strict=True):
                for place, result in zip(batch, of_batch, strict=True):
                    results[place] = result
            for finished in results:
                assert finished is not None
                yield finished

    def _encode_batches(self, batches: Sequence[Batch]) -> Iterable[list[TokenVectors]]:
        return map(self._encode_batch, batches)

    def _encode_batch(self, given: Batch) -> list[TokenVectors]:
        batch, width = given
        token_vectors, sentences = self._forward(*pad([tokens for _, tokens in batch], width))
        self._check(token_vectors, (len(batch), width, self.config.n_t))
        self._check(sentences, (len(batch), self.config.n_c))
        found = []
        for row, (text, tokens) in enumerate(batch):
            keyed = self.keys.of(text, tokens)
            positions = keyed.places + tokens.first
            found.append(
                TokenVectors(
                    keys=keyed.keys,
                    positions=positions.astype(np.int32),
                    spans=keyed.spans,
                    vectors=(
                        token_vectors[row, positions]
                        if token_vectors is not None
                        else np.zeros((len(positions), 0), dtype=np.float32)
                    ),
                    sentence=sentences[row].copy() if sentences is not None else None,
                    dropped=tokens.dropped,
                )
            )
        return found

    def _check(self, vectors: NDArray[np.float32] | None, shape: tuple[int, ...]) -> None:
        """Check the output of the model, which may be damaged."""
        if vectors is not None and vectors.shape != shape:
            raise WrongShape(
                f"the model in {self._files.folder} returns vectors of shape {list(vectors.shape)}; "
                f"expected {list(shape)}",
                COPY,
            )
        if vectors is not None and not np.isfinite(vectors).all():
            raise ModelError(
                f"the model in {self._files.folder} returns vectors with NaN or infinite values", COPY
            )


def read_queries(encoder: Encoder, texts: Sequence[str]) -> list[TokenVectors]:
    """The words of queries without vectors, for a search by counts. The language model is not run."""
    found = []
    for text, tokens in zip(
        texts, encoder.tokenizer.cut(texts, encoder.config.profile.query_length), strict=True
    ):
        keyed = encoder.keys.of(text, tokens)
        found.append(
            TokenVectors(
                keys=keyed.keys,
                positions=(keyed.places + tokens.first).astype(np.int32),
                spans=keyed.spans,
                vectors=np.zeros((len(keyed.keys), 0), dtype=np.float32),
                sentence=None,
                dropped=tokens.dropped,
            )
        )
    return found


def padded_length(length: int, most: int) -> int:
    """The length to which a text is padded, regardless of the other texts in its batch.

    A multiple of eight, but never more than `most`, the maximum length of the language model.
    """
    return max(length, min(-(-length // LENGTH_STEP) * LENGTH_STEP, most))


def pad(batch: Sequence[Tokens], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The input of the language model: ids [batch, width], padded on the right, and the attention mask."""
    input_ids = np.zeros((len(batch), width), dtype=np.int64)
    mask = np.zeros((len(batch), width), dtype=np.int64)
    for row, tokens in enumerate(batch):
        input_ids[row, : len(tokens)] = tokens.input_ids
        mask[row, : len(tokens)] = 1
    return input_ids, mask


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Split a stream of texts into windows of limited number and size."""
    stream = iter(texts)
    while window := list(islice(stream, 1)):
        characters = len(window[0])
        while len(window) < WINDOW and characters < WINDOW_CHARACTERS:
            following = next(stream, None)
            if following is None:
                break
            window.append(following)
            characters += len(following)
        yield window


def equal_batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions of texts with the same padded length, with up to `batch_tokens` per batch.

    There is hardly any padding. Because a text is never padded to the length of another, its vectors are the
    same alone and in any batch: an index does not depend on how it was built.
    """
    for length, places in groupby(
        sorted(range(len(lengths)), key=lambda i: -lengths[i]), lengths.__getitem__
    ):
        same = list(places)
        at_once = max(1, batch_tokens // length)
        for begin in range(0, len(same), at_once):
            yield same[begin : begin + at_once]


def batches_in_order(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Positions in the given order, with a padded size of up to `batch_tokens`, or a single longer text."""
    batch: list[int] = []
    width = 0
    for place, length in enumerate(lengths):
        grown = max(width, length)
        if batch and grown * (len(batch) + 1) > batch_tokens:
            yield batch
            batch, grown = [], length
        batch.append(place)
        width = grown
    if batch:
        yield batch
