"""Builds an index from texts encoded by the authors' code, without encoding them again."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coil.adapters.authors_encoded import EncodedReader, EncodedTexts, number_of
from coil.errors import InputError
from coil.indexes.opening import check_free, create
from coil.lists.precision import Precision
from coil.texts.values import Document
from coil.tokens.contexts import NO_CONTEXT
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.config import ModelConfig
from coil.vectors.encoder import Encoder, SentenceTerms
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.token_vectors import TokenVectors

FIRST_CHECK = 100  # documents before the share of mismatches is checked
MOST_DIFFERENT = 20  # at most one document in this many may mismatch


@dataclass
class ImportedTexts:
    """The outcome of an import."""

    documents: int = 0  # indexed
    not_encoded: int = 0  # documents of the corpus without vectors
    without_text: int = 0  # encoded texts that are not in the corpus
    different: int = 0  # documents whose text does not match the encoded tokens


def import_encoded(
    folders: Iterable[str | Path],
    corpus: Iterable[Document],
    model: str | Path,
    out: Path,
    precision: Precision = "fp16",
    progress: Callable[[int], object] | None = None,
    encoder: Encoder | None = None,
) -> ImportedTexts:
    """Build an index from encoded texts; `corpus` provides the texts, and `model` encodes the queries.

    The index appears at `out` when it is complete. Tokenizers differ in rare characters, so a few texts may
    not match their encoded tokens: they are indexed with their vectors, but cannot be explained. `progress`
    is called with the number of additional documents.
    """
    texts = EncodedTexts(folders)
    check_free(out)
    given = _GivenVectors(encoder if encoder is not None else OnnxEncoder(model))
    reader = EncodedReader(texts, given)
    counts = ImportedTexts()
    unfinished = out.with_name(f".partial-{out.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        with create(unfinished, model, precision, "truncate", encoder=given, context=NO_CONTEXT) as index:
            counts.documents = index.add(
                _documents(corpus, texts, reader, given, counts),
                encoded=None if progress is None else lambda count, _: progress(count),
            )
        if not counts.documents:
            raise InputError(
                f"the corpus contains none of the encoded texts, such as {int(texts.numbers[0])}",
                "pass the corpus that was encoded, such as collection.tsv",
            )
        counts.without_text = len(texts) - counts.documents
        if out.is_dir():
            out.rmdir()
        unfinished.rename(out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return counts


def _documents(
    corpus: Iterable[Document],
    texts: EncodedTexts,
    reader: EncodedReader,
    given: _GivenVectors,
    counts: ImportedTexts,
) -> Iterator[Document]:
    read = 0
    for document in corpus:
        number = number_of(document.doc_id)
        if number is None or number not in texts:
            counts.not_encoded += 1
            continue
        read += 1
        vectors = reader.placed(number, document.text)
        if vectors is None:
            counts.different += 1
            vectors = reader.vectors(number)
            if read >= FIRST_CHECK:
                _check_different(counts.different, read, document)
        given.expect(document.text, vectors)
        yield document
    if counts.different:
        _check_different(counts.different, read, document)


def _check_different(different: int, read: int, document: Document) -> None:
    if different * MOST_DIFFERENT > read:
        raise InputError(
            f"{different:,} of {read:,} texts do not match the encoded tokens, most recently "
            f"{document.doc_id!r}",
            "pass the corpus that was encoded, and convert the model with the same tokenizer and "
            "--document-length",
        )


class _GivenVectors:
    """An encoder that receives the vectors of each document before it has to return them, in order."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._waiting: deque[tuple[str, TokenVectors]] = deque()

    def expect(self, text: str, vectors: TokenVectors) -> None:
        """Announce the next text; an empty one may be skipped."""
        self._waiting.append((text, vectors))

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The announced vectors."""
        for text in texts:
            while self._waiting[0][0] != text:
                self._waiting.popleft()
            yield self._waiting.popleft()[1]

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of queries, from the model."""
        return self._encoder.encode_queries(texts)

    def sentence_terms(self, text: str) -> SentenceTerms | None:
        """What each token adds to a sentence vector, from the model."""
        return self._encoder.sentence_terms(text)

    @property
    def config(self) -> ModelConfig:
        """Shape and scoring profile of the model."""
        return self._encoder.config

    @property
    def keys(self) -> ListKeys:
        """The list key of each token."""
        return self._encoder.keys

    @property
    def tokenizer(self) -> Tokenizer:
        """Names and spans of the tokens."""
        return self._encoder.tokenizer

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the model."""
        return self._encoder.fingerprint
