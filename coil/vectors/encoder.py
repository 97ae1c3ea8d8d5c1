"""The Encoder: texts in, TokenVectors out, in input order, whatever the number of texts."""

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


class Encoder(Protocol):
    """Anything that turns texts into TokenVectors."""

    @property
    def config(self) -> ModelConfig:
        """Shape and scoring profile of the model."""
        ...

    @property
    def keys(self) -> ListKeys:
        """The inverted list of each token."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """Names and spans of the tokens."""
        ...

    @property
    def fingerprint(self) -> str:
        """A digest of everything that decides the vectors."""
        ...

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of queries, in input order."""
        ...

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of documents, in input order."""
        ...


class BatchEncoder(ABC):
    """The part that all encoders share: windows of texts, batches of similar length, results in order."""

    def __init__(self, files: ModelFiles, batch_tokens: int, bucketed: bool = True) -> None:
        self._files = files
        self.batch_tokens = batch_tokens
        self._bucketed = bucketed

    @property
    def config(self) -> ModelConfig:
        """Shape and scoring profile of the model."""
        return self._files.config

    @property
    def keys(self) -> ListKeys:
        """The inverted list of each token."""
        return self._files.keys

    @property
    def tokenizer(self) -> Tokenizer:
        """Names and spans of the tokens."""
        return self._files.tokenizer

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A digest of everything that decides the vectors."""

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

    def _encode(self, texts: Iterable[str], length: int) -> Iterator[TokenVectors]:
        for window in windows(texts):
            tokens = self.tokenizer.cut(window, length)
            results: list[TokenVectors | None] = [None] * len(tokens)
            lengths = [padded_length(len(t), length) for t in tokens]
            cut = equal_batches if self._bucketed else batches_in_order
            for batch in cut(lengths, self.batch_tokens):
                chosen = [tokens[i] for i in batch]
                width = max(lengths[i] for i in batch)
                for place, result in zip(batch, self._encode_batch(chosen, width), strict=True):
                    results[place] = result
            for finished in results:
                assert finished is not None
                yield finished

    def _encode_batch(self, batch: list[Tokens], width: int) -> Iterator[TokenVectors]:
        token_vectors, sentences = self._forward(*pad(batch, width))
        self._check(token_vectors, (len(batch), width, self.config.n_t))
        self._check(sentences, (len(batch), self.config.n_c))
        first, last = len(self.tokenizer.prefix), len(self.tokenizer.suffix)
        for row, tokens in enumerate(batch):
            end = len(tokens) - last
            n = end - first
            vectors = (
                np.ascontiguousarray(token_vectors[row, first:end])
                if token_vectors is not None
                else np.zeros((n, 0), dtype=np.float32)
            )
            yield TokenVectors(
                token_ids=tokens.input_ids[first:end],
                positions=np.arange(first, end, dtype=np.int32),
                spans=tokens.spans,
                vectors=vectors,
                sentence=sentences[row].copy() if sentences is not None else None,
                dropped=tokens.dropped,
            )

    def _check(self, vectors: NDArray[np.float32] | None, shape: tuple[int, ...]) -> None:
        """A damaged model may give anything."""
        if vectors is not None and vectors.shape != shape:
            raise WrongShape(
                f"the model in {self._files.folder} gives vectors of shape {list(vectors.shape)}; "
                f"expected {list(shape)}",
                COPY,
            )
        if vectors is not None and not np.isfinite(vectors).all():
            raise ModelError(
                f"the model in {self._files.folder} gives vectors that are not finite numbers", COPY
            )


def padded_length(length: int, most: int) -> int:
    """The length to which a text is filled up, whatever stands beside it in a batch.

    A multiple of eight, but never more than `most`, which is all that the language model has room for.
    """
    return max(length, min(-(-length // LENGTH_STEP) * LENGTH_STEP, most))


def pad(batch: Sequence[Tokens], width: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The language model's input: ids [batch, width], filled up at the right, and the mask of real ones."""
    input_ids = np.zeros((len(batch), width), dtype=np.int64)
    mask = np.zeros((len(batch), width), dtype=np.int64)
    for row, tokens in enumerate(batch):
        input_ids[row, : len(tokens)] = tokens.input_ids
        mask[row, : len(tokens)] = 1
    return input_ids, mask


def windows(texts: Iterable[str]) -> Iterator[list[str]]:
    """Cut a stream of texts into windows bounded in number and in characters."""
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
    """Places of texts of one padded length each, at most `batch_tokens` together.

    Hardly any work goes into padding, and because a text is never padded to its neighbours' length, its
    vectors are the same alone and in any batch: an index does not depend on how it came to be.
    """
    for length, places in groupby(
        sorted(range(len(lengths)), key=lambda i: -lengths[i]), lengths.__getitem__
    ):
        same = list(places)
        at_once = max(1, batch_tokens // length)
        for begin in range(0, len(same), at_once):
            yield same[begin : begin + at_once]


def batches_in_order(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Places in the order given, padded size at most `batch_tokens` where a single text allows it."""
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
