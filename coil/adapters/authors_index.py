"""An index of texts that the authors' code has encoded: nothing is encoded again."""

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

FIRST_CHECK = 100  # documents after which too many texts with other tokens end the import
MOST_DIFFERENT = 20  # one in so many


@dataclass
class ImportedTexts:
    """What became of the texts."""

    documents: int = 0  # in the index
    not_encoded: int = 0  # documents of the corpus without vectors
    without_text: int = 0  # encoded texts that the corpus does not have
    different: int = 0  # documents whose text has other tokens than were encoded: they cannot be explained


def import_encoded(
    folders: Iterable[str | Path],
    corpus: Iterable[Document],
    model: str | Path,
    out: Path,
    precision: Precision = "fp16",
    progress: Callable[[int], object] | None = None,
    encoder: Encoder | None = None,
) -> ImportedTexts:
    """Make an index of encoded texts; `corpus` has their texts, and `model` encodes the queries.

    The index is at `out` when all of it is there. A few texts may have other tokens than were encoded, since
    tokenizers differ in rare characters; they are found with the scores of their vectors, but cannot be
    explained. `progress` hears how many more documents are stored.
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
                "the corpus has none of the encoded texts: no id is the number of one, such as "
                f"{int(texts.numbers[0])}",
                "give the corpus that was encoded, such as collection.tsv",
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
            f"{different:,} of {read:,} texts have other tokens than were encoded, the last of them "
            f"{document.doc_id!r}",
            "give the corpus that was encoded, and the model with its tokenizer and --document-length",
        )


class _GivenVectors:
    """An encoder that is told the vectors of documents before it is asked for them, in the same order."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._waiting: deque[tuple[str, TokenVectors]] = deque()

    def expect(self, text: str, vectors: TokenVectors) -> None:
        """This text comes next, unless it is left out because it is empty."""
        self._waiting.append((text, vectors))

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors that were told."""
        for text in texts:
            while self._waiting[0][0] != text:
                self._waiting.popleft()
            yield self._waiting.popleft()[1]

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        """The vectors of queries, by the model."""
        return self._encoder.encode_queries(texts)

    def sentence_terms(self, text: str) -> SentenceTerms | None:
        """What each token adds to a sentence vector, by the model."""
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
        """That of the model, which the index is opened with."""
        return self._encoder.fingerprint
