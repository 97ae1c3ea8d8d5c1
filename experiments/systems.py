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
from coil.scores.prepared import prepare
from coil.scores.products import GRID
from coil.scores.scorer import score_with_numpy
from coil.texts.corpora import read_documents
from coil.texts.queries import read_queries
from coil.texts.values import Document, Query
from coil.vectors.encoder import Encoder

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


def coil_system(encoder: Encoder) -> System:
    """A COIL model of any kind (tok, full, dense)."""

    def run(collection: Collection) -> Scores:
        texts = (document.text for document in collection.documents)
        config = encoder.config
        segments = build_segments(encoder.encode_documents(texts), encoder.keys, config.n_t, config.n_c)
        for query in encoder.encode_queries(q.text for q in collection.queries):
            prepared = prepare(encoder, query)
            parts = [score_with_numpy(prepared, segment) for segment in segments]
            yield np.concatenate(parts) / GRID

    return run


def bm25(collection: Collection) -> Scores:
    """BM25: Lucene's variant, k1 0.9, b 0.4, English Snowball stems and stop words."""
    import bm25s
    import snowballstemmer

    settings = {
        "stopwords": "en",
        "stemmer": snowballstemmer.stemmer("english").stemWords,
        "show_progress": False,
    }
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

    from coil.tokens.list_keys import build_list_keys
    from coil.tokens.tokenizer import Tokenizer
    from coil.vectors.config import ModelConfig
    from coil.vectors.torch_model import CoilModel, load_backbone

    backbone = load_backbone(base)
    width = int(backbone.config.hidden_size)
    config = ModelConfig(n_t=0, n_c=width, pooling="mean", sentence_norm="unit")
    model = CoilModel(config, backbone)
    with torch.no_grad():
        model.cls_proj.weight.copy_(torch.eye(width))
        model.cls_proj.bias.zero_()
    tokenizer = Tokenizer.from_file(base / "tokenizer.json")
    keys = build_list_keys(config.profile, tokenizer.vocabulary, tokenizer.special_ids, tokenizer.unknown_id)
    model.save_pretrained(folder, keys)
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
