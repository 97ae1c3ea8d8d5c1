"""BM25 over the token lists equals bm25s on the same tokens, and leaves out what was deleted."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coil.hits.hit import Hit
from coil.indexes.index import Index
from coil.indexes.opening import create
from tests.hash_encoder import HashEncoder
from tests.tiny import WEIGHED, WORDS

bm25s = pytest.importorskip("bm25s")


def texts(n: int, seed: int = 3, longest: int = 30) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, longest))) for _ in range(n)]


def lists_of(encoder: HashEncoder, text: str) -> list[str]:
    [keyed] = encoder.keys.of_texts([text], 10_000)
    return [key for key in keyed.keys if key is not None]


def bm25(index: Index, query: str, k: int = 10, filter: str | None = None) -> list[Hit]:
    return index.search(query, k, filter, by="bm25")


def oracle(encoder: HashEncoder, documents: list[str], query: str) -> np.ndarray:
    """The score of every document for a query, from bm25s."""
    corpus = [lists_of(encoder, text) for text in documents]
    retriever = bm25s.BM25(method="lucene", k1=0.9, b=0.4, dtype="float64")
    retriever.index(corpus, show_progress=False)
    known = set(retriever.vocab_dict)
    total = np.zeros(len(documents))
    for token in lists_of(encoder, query):  # one by one: each occurrence counts
        if token in known:
            total += retriever.get_scores([token])
    return total


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return create(tmp_path / "a.coil", encoder=HashEncoder())


QUERIES = ["river bank", "money money loan", "token vector list query", "deep water flow and the bank"]


def expect(index: Index, kept: dict[str, str], encoder: HashEncoder) -> None:
    for query in QUERIES:
        scores = oracle(encoder, list(kept.values()), query)
        ids = list(kept)
        ranked = sorted((i for i in range(len(ids)) if scores[i] > 0), key=lambda i: -scores[i])
        hits = bm25(index, query, k=len(ids))
        assert len(hits) == len(ranked)
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        found = {hit.doc_id: hit.score for hit in hits}
        for i in ranked:
            assert found[ids[i]] == pytest.approx(scores[i], rel=1e-5)
        # The same order, except among equals, which stand in order of insertion here.
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert [hit.doc_id for hit in hits] == [
            hit.doc_id for hit in sorted(hits, key=lambda hit: (-hit.score, ids.index(hit.doc_id)))
        ]
        assert bm25(index, query, k=3) == hits[:3]


def test_equals_bm25s_over_several_segments_and_deletions(index: Index) -> None:
    encoder = HashEncoder()
    kept = {f"d{i}": text for i, text in enumerate(texts(60))}
    for begin in range(0, 60, 20):
        index.add({"id": i, "text": kept[i]} for i in list(kept)[begin : begin + 20])
    assert index.inspect().segments == 3
    expect(index, kept, encoder)
    gone = [f"d{i}" for i in range(0, 60, 7)]
    index.delete(gone)
    for doc_id in gone:
        del kept[doc_id]
    assert index.inspect().deleted_rows == len(gone)
    expect(index, kept, encoder)
    index.compact()
    expect(index, kept, encoder)


def test_a_wrong_parameter_would_be_noticed(index: Index) -> None:
    kept = {f"d{i}": text for i, text in enumerate(texts(30))}
    index.add({"id": i, "text": text} for i, text in kept.items())
    index.use(HashEncoder(profile=replace(WEIGHED, b=0.5)))
    with pytest.raises(AssertionError):
        expect(index, kept, HashEncoder())


def test_a_long_document_scores_what_its_best_chunk_scores(index: Index) -> None:
    long = " ".join(["water flow"] * 60 + ["river bank river bank"] + ["kitchen wood"] * 60)
    index.add([{"id": "long", "text": long}, {"id": "short", "text": "river water"}])
    assert index.inspect().rows > 3
    hit = next(h for h in bm25(index, "river bank") if h.doc_id == "long")
    assert "river bank" in long[slice(*hit.chunk)]
    assert hit.chunk != (0, len(long))


def test_filters_and_nothing_to_find(index: Index) -> None:
    assert bm25(index, "river") == []
    index.add({"id": f"{i}", "text": "river bank", "year": 2000 + i} for i in range(5))
    assert [h.doc_id for h in bm25(index, "river", filter="year >= 2003")] == ["3", "4"]
    assert bm25(index, "") == []
    assert bm25(index, "mountain") == []
    assert bm25(index, "river", k=0) == []
