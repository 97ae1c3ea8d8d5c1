"""The systems that are compared: each turns a collection into one array of scores per query."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.hits.collection import build_segments
from coil.hits.top_k import top_k
from coil.lists.segment import LiveSegment, Segment
from coil.scores.prepared import PreparedQuery
from coil.scores.products import GRID
from coil.scores.scorer import score_with_numpy
from coil.scores.statistics import Statistics
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.texts.values import Document, Query
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

Scores = Iterator[NDArray[np.float32]]  # per query: [documents]
System = Callable[["Collection"], Scores]


@dataclass(frozen=True)
class Collection:
    """Documents and queries of a BEIR folder."""

    name: str
    folder: Path
    documents: list[Document]
    queries: list[Query]

    @classmethod
    def read(cls, folder: Path, judged: set[str] | None = None) -> Collection:
        """Read a folder; `judged` keeps only those queries."""
        queries = [q for q in read_queries(folder) if judged is None or q.query_id in judged]
        return cls(folder.name, folder, list(read_documents(folder)), queries)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A collection as one model encodes it; it answers as any of the five systems."""

    profile: ScoringProfile
    segments: list[Segment]
    queries: list[TokenVectors]

    @classmethod
    def of(cls, collection: Collection, encoder: Encoder) -> Encoded:
        """Encode documents and queries."""
        texts = (document.text for document in collection.documents)
        segments = build_segments(encoder.encode_documents(texts), encoder.config)
        queries = list(encoder.encode_queries(query.text for query in collection.queries))
        return cls(encoder.config.profile, segments, queries)

    def scores(self, profile: ScoringProfile) -> Scores:
        """The scores of all documents for each query, by the equation of this profile."""
        statistics = Statistics([LiveSegment(segment, None) for segment in self.segments])
        for query in self.queries:
            prepared = PreparedQuery.of(query, profile, statistics)
            parts = [score_with_numpy(prepared, segment) for segment in self.segments]
            yield np.concatenate(parts) / GRID


class Model:
    """A COIL model of any kind (tok, full, dense); what it encodes serves all systems that it answers as."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = encoder
        self._last: tuple[Path, Encoded] | None = None

    def answering(self, by: By = "coil") -> System:
        """The model by its own equation, or as another system."""

        def run(collection: Collection) -> Scores:
            if self._last is None or self._last[0] != collection.folder:
                self._last = collection.folder, Encoded.of(collection, self._encoder)
            encoded = self._last[1]
            yield from encoded.scores(encoded.profile.answering(by))

        return run


def bm25(collection: Collection) -> Scores:
    """BM25: Lucene's variant, k1 0.9, b 0.4, English Snowball stems and stop words."""
    import bm25s
    import Stemmer

    settings = {"stopwords": "en", "stemmer": Stemmer.Stemmer("english"), "show_progress": False}
    index = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    index.index(bm25s.tokenize([d.text for d in collection.documents], **settings), show_progress=False)
    for query in collection.queries:
        words = bm25s.tokenize([query.text], return_ids=False, **settings)[0]
        known = [word for word in words if word in index.vocab_dict]
        yield index.get_scores(known) if known else np.zeros(len(collection.documents), np.float32)


def z_score(scores: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scores of one query at mean 0 and deviation 1."""
    return (scores - scores.mean()) / max(float(scores.std()), 1e-9)


def make_untuned(base: Path, folder: Path) -> Path:
    """The base model as it is: a dense retriever with its own mean-pooled unit vector, nothing trained."""
    import torch

    from coil.vectors.backbone import load_backbone
    from coil.vectors.config import ModelConfig
    from coil.vectors.torch_model import CoilModel

    backbone = load_backbone(base)
    width = int(backbone.config.hidden_size)
    config = ModelConfig(n_t=0, n_c=width, pooling="mean", sentence_norm="unit")
    model = CoilModel(config, backbone)
    with torch.no_grad():
        model.cls_proj.weight.copy_(torch.eye(width))
        model.cls_proj.bias.zero_()
    model.save_pretrained(folder)
    shutil.copy(base / "tokenizer.json", folder / "tokenizer.json")
    return folder


def ranking(
    collection: Collection, scores: NDArray[np.float32], k: int, without_zero: bool
) -> dict[str, float]:
    """The k best documents of one query with their scores."""
    best = top_k(scores, k, without_zero)
    return {collection.documents[i].doc_id: float(scores[i]) for i in best.tolist()}


def say(text: str) -> None:
    """Progress, to standard error."""
    print(text, file=sys.stderr, flush=True)
