"""The explainer: a query is encoded once, however many documents are explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from coil.errors import InputError
from coil.explanations.explainer import Explainer, explain_hit
from coil.hits.searcher import Searcher
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.service.answers import Asked, answer_queries, explain_one
from coil.texts.values import Document
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.tiny import random_texts

QUERY = "river bank money"


class CountingEncoder(HashEncoder):
    """Keeps the texts that it encoded."""

    def __init__(self, n_t: int = 4, n_c: int = 3) -> None:
        super().__init__(n_t, n_c)
        self.queries: list[str] = []
        self.documents: list[str] = []

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        kept = list(texts)
        self.queries += kept
        return super().encode_queries(kept)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        kept = list(texts)
        self.documents += kept
        return super().encode_documents(kept)

    def forget(self) -> None:
        self.queries, self.documents = [], []


@pytest.fixture
def encoder() -> CountingEncoder:
    return CountingEncoder()


@pytest.fixture
def index(tmp_path: Path, encoder: CountingEncoder) -> Index:
    made = create(tmp_path / "index.coil", encoder=encoder)
    made.add({"id": n, "text": text} for n, text in enumerate(random_texts(40, longest=12)))
    encoder.forget()
    return made


@pytest.mark.parametrize("tok_only", [False, True])
def test_an_answer_with_matches_encodes_each_query_once(
    index: Index, encoder: CountingEncoder, tok_only: bool
) -> None:
    queries = [QUERY, "open a loan account", " "]
    with index.pinned() as pinned:
        answered = answer_queries(pinned, queries, Asked(k=5, tok_only=tok_only, matches=True), 60.0)
    assert [len(answer.value["hits"]) > 1 for answer in answered] == [True, True, False]
    assert encoder.queries == queries
    assert encoder.documents == queries[:2]  # what their own texts would score


def test_two_explanations_encode_the_query_once(index: Index, encoder: CountingEncoder) -> None:
    with index.pinned() as pinned:
        explained = explain_one(pinned, QUERY, "3", "4", tok_only=False, seconds=60.0)
    assert [explained[which]["doc_id"] for which in ("first", "second")] == ["3", "4"]
    assert encoder.queries == encoder.documents == [QUERY]


@pytest.mark.parametrize("tok_only", [False, True])
@pytest.mark.parametrize(("n_t", "n_c"), [(4, 3), (4, 0)])
def test_an_explainer_explains_what_the_searcher_found(n_t: int, n_c: int, tok_only: bool) -> None:
    documents = [Document(str(n), text) for n, text in enumerate(random_texts(30, longest=12))]
    searcher = Searcher.build(HashEncoder(n_t, n_c), documents)
    explainer = Explainer(searcher, QUERY, tok_only)
    hits = searcher.search(QUERY, k=5, tok_only=tok_only)
    assert hits
    for hit in hits:
        explanation = explainer.explain(hit.doc_id)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
        assert explanation.own_score == explainer.own_score
        assert explanation == explain_hit(searcher, QUERY, hit.doc_id, tok_only=tok_only)
    with pytest.raises(InputError, match="'nowhere'"):
        explainer.explain("nowhere")


def test_a_dense_model_is_not_explained_by_its_tokens() -> None:
    searcher = Searcher.build(HashEncoder(0, 3), [Document("a", "river")])
    with pytest.raises(InputError, match="token part"):
        Explainer(searcher, QUERY, tok_only=True)
