"""Every scorer and the searcher against the oracle: ids, order and scores, ties included."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from numpy.typing import NDArray

from coil.errors import DuplicateId, InputError
from coil.explanations.stored import stored_vectors
from coil.hits.collection import MemoryCollection, build_segments
from coil.hits.searcher import Searcher
from coil.hits.top_k import top_k
from coil.lists.segment import Segment
from coil.scores import oracle
from coil.scores.native import NativeScorer
from coil.scores.prepared import PreparedQuery, prepare
from coil.scores.products import mention_products, to_grid
from coil.scores.scorer import Scorer, score_with_numpy
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import make_model, make_vectors

Scores = NDArray[np.int64]
VOCABULARY = 6
# Tokens 0 and 1 share a list, as two words with one stem do; 3 and 5 have none.
SHARED = np.array([0, 0, 2, NO_LIST, 4, NO_LIST], dtype=np.int32)
PLAIN = np.arange(VOCABULARY, dtype=np.int32)


@dataclass(frozen=True)
class Case:
    """A collection, a query and what decides the scores."""

    query: TokenVectors
    documents: list[TokenVectors]
    keys: ListKeys
    config: ModelConfig
    k: int


@st.composite
def cases(draw: st.DrawFn, whole_numbers: bool) -> Case:
    n_t, n_c = draw(st.sampled_from([(0, 3), (1, 0), (1, 2), (3, 0), (3, 2), (17, 5)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=6)
    documents = [
        make_vectors(rng, token_ids, n_t, n_c, whole_numbers)
        for token_ids in draw(st.lists(tokens, max_size=8))
    ]
    profile = ScoringProfile(floor=draw(st.booleans()))
    return Case(
        query=make_vectors(rng, draw(tokens), n_t, n_c, whole_numbers),
        documents=documents,
        keys=ListKeys(draw(st.sampled_from([PLAIN, SHARED]))),
        config=ModelConfig(n_t=n_t, n_c=n_c, profile=profile),
        k=draw(st.integers(-1, 10)),
    )


@dataclass(frozen=True)
class NoEncoder:
    """Configuration and list keys without a language model: `rank` takes vectors."""

    config: ModelConfig
    keys: ListKeys
    tokenizer = None
    fingerprint = "none"

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        raise AssertionError("not to be called")

    encode_documents = encode_queries


def ranked(case: Case, scorer: Scorer | None, query_keys: ListKeys | None = None) -> list[tuple[int, float]]:
    """What a searcher finds; `query_keys` prepare the query with other lists than the documents have."""
    segments = build_segments(case.documents, case.keys, case.config.n_t, case.config.n_c)
    documents = [Document(str(i), "") for i in range(len(case.documents))]
    collection = MemoryCollection(documents, segments)
    searcher = Searcher(NoEncoder(case.config, query_keys or case.keys), collection, scorer)  # type: ignore[arg-type]
    return [(found.ordinal, found.score) for found in searcher.rank(case.query, case.k)]


def expected(case: Case) -> list[tuple[int, float]]:
    return oracle.rank(case.query, case.documents, case.k, case.config.profile, case.keys)


def agrees(case: Case, scorer: Scorer | None) -> bool:
    """Whole numbers leave no room for rounding: ids, order and scores must be the very same."""
    return ranked(case, scorer) == expected(case)


SCORERS = pytest.mark.parametrize("scorer", [score_with_numpy, NativeScorer(), None])


@SCORERS
@given(case=cases(whole_numbers=True))
@settings(max_examples=300, deadline=None)
def test_ids_order_and_scores_are_the_oracles(scorer: Scorer | None, case: Case) -> None:
    assert ranked(case, scorer) == expected(case)


@SCORERS
@given(case=cases(whole_numbers=False))
@settings(max_examples=150, deadline=None)
def test_real_vectors_score_as_the_oracle_says(scorer: Scorer | None, case: Case) -> None:
    everything = replace(case, k=100)
    ours, theirs = ranked(everything, scorer), expected(everything)
    assert {ordinal for ordinal, _ in ours} == {ordinal for ordinal, _ in theirs}
    exact = dict(theirs)
    for ordinal, value in ours:
        assert value == pytest.approx(exact[ordinal], abs=1e-4)
    # The order may differ from the oracle's only where float32 cannot tell two scores apart.
    for (first, _), (second, _) in pairwise(ours):
        assert exact[first] >= exact[second] - 1e-4


@SCORERS
@pytest.mark.parametrize(("n_t", "n_c"), [(32, 0), (8, 6), (17, 384)])
def test_equal_documents_tie_exactly(scorer: Scorer | None, n_t: int, n_c: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query, other, document = (make_vectors(rng, [0, 2, 4, 0], n_t, n_c) for _ in range(3))
        config, keys = ModelConfig(n_t=n_t, n_c=n_c), ListKeys(PLAIN)
        collection = [document, other, document, document, other, *[document] * (seed + 2)]
        scores = dict(ranked(Case(query, collection, keys, config, k=100), scorer))
        assert len({scores.get(i) for i, made in enumerate(collection) if made is document}) == 1


# --- the comparison itself must be able to fail ----------------------------------------------------------


LOOKING = settings(
    max_examples=2000,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def sums_instead_of_max(query: PreparedQuery, segment: Segment) -> Scores:
    scores = score_with_numpy(replace(query, lists=query.lists[:0], vectors=query.vectors[:0]), segment)
    for list_id, vector in query:
        postings = segment.list_of(list_id)
        products = mention_products(postings.vectors, vector)
        np.add.at(scores, postings.rows, to_grid(np.maximum(products, 0.0)))
    return scores


def forgets_the_floor(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, floor=False), segment)


def floors_everything(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, floor=True), segment)


def collapses_repeated_tokens(query: PreparedQuery, segment: Segment) -> Scores:
    _, first = np.unique(query.lists, return_index=True)
    return score_with_numpy(replace(query, lists=query.lists[first], vectors=query.vectors[first]), segment)


def confuses_two_lists(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, lists=np.where(query.lists == 2, 0, query.lists)), segment)


def forgets_the_sentence(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(query.without_sentence(), segment)


@pytest.mark.parametrize(
    "wrong",
    [
        sums_instead_of_max,
        forgets_the_floor,
        floors_everything,
        collapses_repeated_tokens,
        confuses_two_lists,
        forgets_the_sentence,
    ],
)
def test_a_wrong_scorer_is_caught(wrong: Scorer) -> None:
    counterexample = find(cases(whole_numbers=True), lambda case: not agrees(case, wrong), settings=LOOKING)
    assert agrees(counterexample, score_with_numpy)
    with pytest.raises(NoSuchExample):  # the same search finds nothing against a right one
        find(
            cases(whole_numbers=True),
            lambda case: not agrees(case, score_with_numpy),
            settings=settings(LOOKING, max_examples=100),
        )


def test_a_query_prepared_without_shared_lists_is_caught() -> None:
    def is_wrong(case: Case) -> bool:
        own = np.where(case.keys.table == NO_LIST, NO_LIST, np.arange(case.keys.vocabulary_size))
        return ranked(case, None, ListKeys(own.astype(np.int32))) != expected(case)

    assert agrees(find(cases(whole_numbers=True), is_wrong, settings=LOOKING), None)


# --- top_k -----------------------------------------------------------------------------------------------


@given(
    scores=st.lists(st.sampled_from([-2.0, -0.0, 0.0, 0.5, 1.0, 3.0]), max_size=30),
    k=st.integers(-2, 35),
    without_zero=st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_top_k_is_a_sort_by_score_then_ordinal(scores: list[float], k: int, without_zero: bool) -> None:
    candidates = [i for i, value in enumerate(scores) if value != 0.0 or not without_zero]
    wanted = sorted(candidates, key=lambda i: (-scores[i], i))[: max(k, 0)]
    assert top_k(np.array(scores, dtype=np.float32), k, without_zero).tolist() == wanted


def test_ties_at_the_last_place_go_to_the_first_in_order() -> None:
    scores = np.ones(1000, dtype=np.float32)
    scores[700] = 2.0
    assert top_k(scores, 4, without_zero=False).tolist() == [700, 0, 1, 2]


# --- the searcher over texts -----------------------------------------------------------------------------

TEXTS = [
    "the bank of the river was steep",
    "money in the bank",
    "",
    "open a loan account",
    "money in the bank",
]
DOCUMENTS = [Document(f"d{i}", text, {"place": i}) for i, text in enumerate(TEXTS)]


@pytest.fixture(scope="module", params=[(8, 0), (8, 6), (0, 6)], ids=["COIL-tok", "COIL-full", "dense"])
def searcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    from coil.vectors.torch_encoder import TorchEncoder

    n_t, n_c = request.param
    config = ModelConfig(n_t=n_t, n_c=n_c, profile=ScoringProfile(query_length=16, document_length=32))
    folder: Path = tmp_path_factory.mktemp("models") / config.kind
    return Searcher.build(TorchEncoder(make_model(folder, config)), DOCUMENTS)


def test_hits_are_the_oracles_with_what_the_documents_carry(searcher: Searcher) -> None:
    encoder = searcher.encoder
    query = "river bank money"
    vectors = list(encoder.encode_documents(TEXTS))
    [query_vectors] = encoder.encode_queries([query])
    expected = oracle.rank(query_vectors, vectors, 10, encoder.config.profile, encoder.keys)
    hits = searcher.search(query)
    assert [hit.doc_id for hit in hits] == [f"d{ordinal}" for ordinal, _ in expected]
    assert [hit.score for hit in hits] == pytest.approx([value for _, value in expected], abs=1e-4)
    assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
    for hit in hits:
        document = DOCUMENTS[int(hit.doc_id[1:])]
        assert (hit.text, hit.fields) == (document.text, document.fields)


def test_many_queries_give_what_one_by_one_gives(searcher: Searcher) -> None:
    queries = ["bank", "", "river bank river", "loan"]
    together = searcher.search_many(queries, k=10)
    for hits, query in zip(together, queries, strict=True):
        # Other batches round otherwise, so two scores that are all but equal may change places.
        alone = {hit.doc_id: hit.score for hit in searcher.search(query, k=10)}
        assert {hit.doc_id: hit.score for hit in hits} == pytest.approx(alone, abs=1e-4)
    assert searcher.search_many([], k=3) == []


@pytest.mark.parametrize("query", ["", "   ", "\n\t", "\u200b"])
def test_nothing_asked_gives_no_hits(searcher: Searcher, query: str) -> None:
    assert searcher.search(query) == []


def test_odd_numbers_of_hits(searcher: Searcher) -> None:
    everything = searcher.search("bank", k=1000)
    assert len(everything) == (3 if searcher.encoder.config.n_c == 0 else len(DOCUMENTS))
    assert searcher.search("bank", k=2) == everything[:2]
    assert searcher.search("bank", k=0) == []


def test_an_empty_collection_is_searched_in_vain(searcher: Searcher) -> None:
    assert Searcher.build(searcher.encoder, []).search("bank") == []


def test_progress_adds_up(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.hits.collection.REPORT_EVERY", 2)
    heard: list[int] = []
    again = Searcher.build(searcher.encoder, iter(DOCUMENTS), heard.append)
    assert heard == [2, 2, 1]
    scores = {hit.doc_id: hit.score for hit in searcher.search("money in the bank")}
    assert {hit.doc_id: hit.score for hit in again.search("money in the bank")} == pytest.approx(
        scores, abs=1e-4
    )


def test_the_lists_give_a_documents_vectors_back(searcher: Searcher) -> None:
    if not searcher.encoder.config.n_t:
        pytest.skip("a dense model stores no tokens")
    [encoded] = searcher.encoder.encode_documents([TEXTS[0]])
    query = prepare(searcher.encoder, encoded)
    stored, chunk = stored_vectors(searcher, searcher.collection.ordinal_of("d0"), query)
    assert chunk == (0, len(TEXTS[0]))
    assert stored.token_ids.tolist() == encoded.token_ids.tolist()
    assert stored.spans.tolist() == encoded.spans.tolist()
    np.testing.assert_allclose(stored.vectors, encoded.vectors, atol=1e-5)


def test_mistakes_are_named(searcher: Searcher) -> None:
    with pytest.raises(DuplicateId, match="document 1 and document 3"):
        Searcher.build(searcher.encoder, [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0]])
    with pytest.raises(InputError, match="'nowhere'"):
        searcher.collection.ordinal_of("nowhere")
