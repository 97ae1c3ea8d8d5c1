"""COIL, and the other scoring systems that its index supports, through the usual index and searcher.

A model of the paper's form (`CoilTok`, `CoilFull`, `Dense`) has lists of word pieces and no collection
weights; one of the default form (`Coil`) has lists of words and BM25 weights.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from coil.indexes.building import open_build
from coil.indexes.opening import open_index
from coil.systems.fitting import fit_model
from coil.systems.system import Answered, Say, TrainingData, option, silent
from coil.texts.values import Document, Query
from coil.tokens.profile import PAPER, WORDS, By
from coil.training.options import TrainingOptions
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import resolve_folder
from coil.vectors.onnx_encoder import OnnxEncoder
from coil.vectors.parallel import usable_cores

COMMIT_EVERY = 4096  # documents: a kill loses at most this many
LENGTHS = ("query_length", "document_length")


@dataclass(frozen=True)
class Coil:
    """A COIL model: the bundled one, unless another is named or trained."""

    continues_index: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False

    name: str = "COIL"
    model: str | None = None
    by: By = option("coil", "Scoring system of the index.")
    n_t: int = option(32, "When trained: dimensions of the token vectors.")
    n_c: int = option(256, "When trained: dimensions of the sentence vector; 0 for none.")
    form: Literal["words", "paper"] = option(
        "words", "When trained: words with BM25 weights, or the paper's word pieces without weights."
    )
    precision: Literal["int8", "fp16", "fp32"] = option("int8", "How the index stores vectors.")
    long: Literal["chunk", "truncate"] = option(
        "chunk", "Split long documents into chunks, or truncate them."
    )
    weights: Literal["int8", "fp32", "torch"] = option(
        "int8", "Encoder: int8 or fp32 ONNX weights, or PyTorch."
    )
    device: str = option("cpu", "Where to search and, with weights=torch, to encode: cpu or cuda.")
    threads: int = option(0, "Threads for encoding and searching; 0 uses every core.")

    def index_inputs(self) -> dict[str, Any]:
        """The inputs of the index, which all scoring systems of a model share."""
        return {
            "index": "coil",
            "precision": self.precision,
            "long": self.long,
            "weights": self.weights,
        }

    def training_inputs(self) -> dict[str, Any]:
        """Only the shape: the search options do not matter."""
        return {"train": "coil", "n_t": self.n_t, "n_c": self.n_c, "form": self.form}

    def text_bytes(self, folder: Path) -> int:
        """The size of the ids, texts and fields that the index stores to show hits."""
        with open_index(folder) as index:
            return index.inspect().bytes_documents

    def fit(self, data: TrainingData, folder: Path, say: Say = silent) -> None:
        """Train like `coil train`, and export to ONNX."""
        fit_model(self.recipe(data.recipe), data, folder, say)
        from coil.vectors.export import export_model

        say("exporting to ONNX")
        export_model(folder, ["fp32", "int8"])

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe with the shape of this model."""
        profile = (WORDS if self.form == "words" else PAPER).to_json()
        shape = {name: value for name, value in profile.items() if name not in LENGTHS}
        shape["token_norm"] = "unit" if self.form == "words" else "none"  # the paper uses plain products
        if self.form == "words":
            shape["sentence_norm"] = "unit"  # γ·√n is the weight of a cosine
        if not (self.n_t and self.n_c):  # only a model with both parts supports this
            shape["token_only"] = 0.0
        if not self.n_c:
            shape["keep"] = 0.0
        if not self.n_t:
            shape["keep_tokens"] = 0.0
        return replace(shared, n_t=self.n_t, n_c=self.n_c, **shape)

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Build the index, or continue an interrupted build."""
        index, before = open_build(
            folder, self.model, self.precision, self.long, resume=True, encoder=self._encoder
        )
        with index:
            if not before.finished:
                index.build(documents, before.on_duplicate, None, COMMIT_EVERY, left_out=lambda ids: None)

    def search(self, queries: Sequence[Query], k: int, folder: Path) -> Iterator[Answered]:
        """Search one query at a time, like a user; quotes and signs are not operators."""
        device = None if self.device == "cpu" else self.device
        with open_index(folder, self._encoder, threads=self._threads, device=device) as index:
            for query in queries:
                [answer] = index.answer_many([query.text], k, by=self.by, plain=True)
                cost = answer.stats
                yield Answered(
                    query.query_id,
                    [hit.doc_id for hit in answer.hits],
                    [hit.score for hit in answer.hits],
                    {"encode": cost.encode_ms, "search": cost.score_ms, "fetch": cost.fetch_ms},
                )

    def rerank_stored(
        self, queries: Sequence[Query], candidates: Mapping[str, Sequence[str]], folder: Path
    ) -> Iterator[Answered]:
        """Score the candidates in the index; documents without text are not in it."""
        with open_index(folder, self._encoder, threads=self._threads) as index:
            for query in queries:
                there = [doc_id for doc_id in candidates[query.query_id] if doc_id in index]
                began = time.perf_counter()
                [hits] = index.rerank_many([query.text], [there], self.by)
                took = 1000 * (time.perf_counter() - began)
                yield Answered(
                    query.query_id,
                    [hit.doc_id for hit in hits],
                    [hit.score for hit in hits],
                    {"rerank": took},
                )

    @cached_property
    def _encoder(self) -> Encoder:
        if self.weights == "torch":
            from coil.vectors.torch_encoder import TorchEncoder

            return TorchEncoder(self.model, self.device)
        return OnnxEncoder(resolve_folder(self.model), self.weights, self.threads)

    @property
    def _threads(self) -> int:
        return self.threads or usable_cores()


@dataclass(frozen=True)
class OwnBm25(Coil):
    """COIL's own BM25: the equation with other constants, over the index of a model."""

    name: str = "BM25 (coil)"
    by: By = option("bm25", "Scoring system of the index.")


@dataclass(frozen=True)
class CoilFull(Coil):
    """COIL-full of the paper: token vectors and a sentence vector, word pieces, no weights."""

    needs_model: ClassVar[bool] = True

    name: str = "COIL-full"
    n_c: int = option(768, "When trained: dimensions of the sentence vector.")
    form: Literal["words", "paper"] = option("paper", "When trained: as for coil.")


@dataclass(frozen=True)
class CoilTok(CoilFull):
    """COIL-tok of the paper: token vectors alone."""

    name: str = "COIL-tok"
    n_c: int = option(0, "When trained: dimensions of the sentence vector; 0 for none.")


@dataclass(frozen=True)
class Dense(Coil):
    """The sentence vector alone; if trained, a model without token vectors."""

    name: str = "dense"
    by: By = option("dense", "Scoring system of the index.")
    n_t: int = option(0, "When trained: dimensions of the token vectors; 0 for none.")
    n_c: int = option(768, "When trained: dimensions of the sentence vector.")
    form: Literal["words", "paper"] = option("paper", "When trained: as for coil.")
