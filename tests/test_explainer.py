"""The explainer: a query is encoded once, however many documents are explained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import get_args

import pytest

import coil
from coil.errors import InputError
from coil.explanations.explainer import Explainer, explain_hit
from coil.hits.searcher import Searcher
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.service.answers import Asked, Explained, answer_queries, explain_one
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.tiny import random_texts

QUERY = "river bank money"


class CountingEncoder(HashEncoder):
    """Keeps the texts that it encoded."""

    def __init__(self, n_t: int = 4, n_c: int = 3) -> None:
        super().__init__(n_t, n_c)
        self.queries: list[str] = []
        self.told: list[str] = []
        self.documents: list[str] = []

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        kept = list(texts)
        self.queries += kept
        return super().encode_queries(kept)

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        kept = list(texts)
        self.documents += kept
        return super().encode_documents(kept)

    def sentence_terms(self, text: str) -> None:
        self.told.append(text)

    def forget(self) -> None:
        self.queries, self.documents, self.told = [], [], []


@pytest.fixture
def encoder() -> CountingEncoder:
    return CountingEncoder()


@pytest.fixture
def index(tmp_path: Path, encoder: CountingEncoder) -> Index:
    made = create(tmp_path / "index.coil", encoder=encoder)
    made.add({"id": n, "text": text} for n, text in enumerate(random_texts(40, longest=12)))
    encoder.forget()
    return made


@pytest.mark.parametrize("by", get_args(By))
def test_an_answer_with_matches_encodes_each_query_once(
    index: Index, encoder: CountingEncoder, by: By
) -> None:
    queries = [QUERY, "open a loan account", " "]
    with index.pinned() as pinned:
        answered = answer_queries(pinned, queries, Asked(k=5, by=by, matches=True), 60.0)
    assert [len(answer.value["hits"]) > 1 for answer in answered] == [True, True, False]
    assert encoder.queries == (queries if by != "bm25" else [])  # which counts words
    assert encoder.documents == encoder.told == []  # that would take too long for every hit


def test_two_explanations_encode_the_query_once(index: Index, encoder: CountingEncoder) -> None:
    with index.pinned() as pinned:
        explained = explain_one(pinned, QUERY, "3", "4", Explained(), seconds=60.0)
    assert [explained[which]["doc_id"] for which in ("first", "second")] == ["3", "4"]
    assert encoder.queries == [QUERY]
    assert encoder.told == [index.document(doc_id).text for doc_id in ("3", "4")]


@pytest.mark.parametrize(
    ("n_c", "by"),
    [(3, "coil"), (3, "tokens"), (3, "bm25"), (3, "dense"), (3, "hybrid"), (0, "coil"), (0, "tokens")],
)
def test_an_explainer_explains_what_the_searcher_found(n_c: int, by: By) -> None:
    documents = [Document(str(n), text) for n, text in enumerate(random_texts(30, longest=12))]
    searcher = Searcher.build(HashEncoder(4, n_c), documents)
    explainer = Explainer(searcher, QUERY, by)
    hits = searcher.search(QUERY, k=5, by=by)
    assert hits
    for hit in hits:
        explanation = explainer.explain(hit.doc_id)
        assert explanation.score == pytest.approx(hit.score, abs=1e-5)
        assert explanation.own_score == explainer.own_score
        assert explanation == explain_hit(searcher, QUERY, hit.doc_id, by=by)
    with pytest.raises(InputError, match="'nowhere'"):
        explainer.explain("nowhere")


def test_a_dense_model_is_not_explained_by_its_tokens() -> None:
    searcher = Searcher.build(HashEncoder(0, 3), [Document("a", "river")])
    with pytest.raises(InputError, match="no token vectors"):
        Explainer(searcher, QUERY, "tokens")
    counted = Explainer(searcher, "river", "bm25").explain("a")
    assert [match.query_token for match in counted.matches] == ["river"], "words can be counted all the same"


@pytest.mark.parametrize("query", ["", "  \n", "\ud800", "\u200b"])
@pytest.mark.parametrize("by", get_args(By))
def test_a_query_without_words_gives_no_document_a_score(index: Index, query: str, by: By) -> None:
    """As a search finds nothing with it, and a reranker gives every candidate 0."""
    assert index.search(query, by=by) == []
    assert index.rerank(query, ["3"], by=by)[0].score == 0.0
    alone = coil.explain(index.encoder, query, index.document("3"), by=by)
    for explained in (
        index.explain(query, "3", by=by),
        Explainer(index.searcher, query, by).explain("3"),
        alone,
    ):
        assert explained.score == 0.0
        assert (explained.matches, explained.sentence, explained.sentence_parts) == ((), None, ())
        assert explained.own_score is None
        assert str(explained)
        assert str(explained.versus(explained))
    over_http = explain_one(index, query, "3", "4", Explained(by), 10.0)
    assert over_http["first"]["score"] == over_http["second"]["score"] == 0.0
