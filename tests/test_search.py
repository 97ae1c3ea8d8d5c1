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
from coil.explanations.stored import stored_row
from coil.hits.collection import MemoryCollection, build_segments
from coil.hits.rankers import Selection
from coil.hits.searcher import Searcher
from coil.hits.top_k import top_k
from coil.lists.segment import Segment
from coil.scores import oracle
from coil.scores.native import NativeScorer, load_native
from coil.scores.prepared import PreparedQuery
from coil.scores.products import mention_products, to_grid
from coil.scores.scorer import Scorer, score_with_numpy
from coil.texts.values import Document
from coil.tokens.profile import By, ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.token_vectors import TokenVectors
from tests.tiny import WEIGHED, make_model, make_vectors

Scores = NDArray[np.int64]
LISTS = 4  # and -1, which is no list
SYSTEMS: tuple[By, ...] = ("coil", "tokens", "bm25", "dense", "hybrid")


@dataclass(frozen=True)
class Case:
    """A collection, a query and what decides the scores."""

    query: TokenVectors
    documents: list[TokenVectors]
    config: ModelConfig
    k: int
    by: By = "coil"

    @property
    def profile(self) -> ScoringProfile:
        return self.config.profile.answering(self.by)


@st.composite
def cases(draw: st.DrawFn, whole_numbers: bool, weighed: bool = False) -> Case:
    """Whole numbers make ties and exact sums; `weighed` cases have weights, and any system answers."""
    n_t, n_c = draw(st.sampled_from([(0, 3), (1, 0), (1, 2), (3, 0), (3, 2), (17, 5), (4, 70)]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = st.lists(st.integers(-1, LISTS - 1), max_size=6)
    documents = [
        make_vectors(rng, lists, n_t, n_c, whole_numbers) for lists in draw(st.lists(tokens, max_size=8))
    ]
    profile, by = ScoringProfile(floor=draw(st.booleans())), "coil"
    if weighed:
        alpha, beta = draw(st.sampled_from([(1.0, 0.0), (1.0, 0.25), (0.0, 1.0), (0.5, 2.0)]))
        gamma, rule = draw(st.sampled_from([(0.0, "constant"), (1.0, "constant"), (2.0, "root")]))
        profile = replace(WEIGHED, alpha=alpha, beta=beta, gamma=gamma, gamma_rule=rule)
        ways = [
            way for way in SYSTEMS if (n_t or way != "tokens") and (n_c or way not in ("dense", "hybrid"))
        ]
        by = draw(st.sampled_from(ways))
    return Case(
        query=make_vectors(rng, draw(tokens), n_t, n_c, whole_numbers),
        documents=documents,
        config=ModelConfig(n_t=n_t, n_c=n_c, profile=profile),
        k=draw(st.integers(-1, 10)),
        by=by,
    )


@dataclass(frozen=True)
class NoEncoder:
    """A configuration without a language model: `rank` takes vectors."""

    config: ModelConfig
    tokenizer = None
    fingerprint = "none"

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        raise AssertionError("not to be called")

    encode_documents = encode_queries


def ranked(case: Case, scorer: Scorer | None) -> list[tuple[int, float]]:
    """What a searcher finds."""
    segments = build_segments(case.documents, case.config)
    documents = [Document(str(i), "") for i in range(len(case.documents))]
    searcher = Searcher(NoEncoder(case.config), MemoryCollection(documents, segments), scorer)  # type: ignore[arg-type]
    [(found, _)] = searcher.rank_many([case.query], Selection(case.k), case.by)
    return [(one.ordinal, one.score) for one in found]


def expected(case: Case) -> list[tuple[int, float]]:
    return oracle.rank(case.query, case.documents, case.k, case.profile)


def agrees(case: Case, scorer: Scorer | None) -> bool:
    """Whole numbers leave no room for rounding: ids, order and scores must be the very same."""
    return ranked(case, scorer) == expected(case)


def agrees_closely(case: Case, scorer: Scorer | None) -> bool:
    """With weights there is rounding: the same documents, scores within it, and an order that fits them."""
    everything = replace(case, k=100)
    ours, exact = ranked(everything, scorer), dict(expected(everything))
    # Rounding can only take away or add what scores next to nothing.
    if any(abs(exact.get(i, 0.0)) > 1e-4 for i in set(exact) ^ {ordinal for ordinal, _ in ours}):
        return False
    if any(abs(value - exact.get(ordinal, 0.0)) > 1e-4 for ordinal, value in ours):
        return False
    close = all(exact.get(a, 0.0) >= exact.get(b, 0.0) - 1e-4 for (a, _), (b, _) in pairwise(ours))
    ties = all(a < b for (a, one), (b, other) in pairwise(ours) if one == other)
    return close and ties and ranked(case, scorer) == ours[: max(case.k, 0)]


SCORERS = pytest.mark.parametrize(
    "scorer", [score_with_numpy, *([NativeScorer()] if load_native() else []), None]
)


@SCORERS
@given(case=cases(whole_numbers=True))
@settings(max_examples=300, deadline=None)
def test_ids_order_and_scores_are_the_oracles(scorer: Scorer | None, case: Case) -> None:
    assert ranked(case, scorer) == expected(case)


@SCORERS
@given(case=cases(whole_numbers=False))
@settings(max_examples=150, deadline=None)
def test_real_vectors_score_as_the_oracle_says(scorer: Scorer | None, case: Case) -> None:
    assert agrees_closely(case, scorer)


@SCORERS
@given(case=cases(whole_numbers=False, weighed=True) | cases(whole_numbers=True, weighed=True))
@settings(max_examples=400, deadline=None)
def test_every_system_scores_as_the_oracle_says(scorer: Scorer | None, case: Case) -> None:
    assert agrees_closely(case, scorer)


def test_the_papers_systems_are_special_cases() -> None:
    """eq. 4 and eq. 6 to the letter, beside the general equation."""
    rng = np.random.default_rng(3)
    query = make_vectors(rng, [0, 1, 1, -1], 3, 4)
    documents = [make_vectors(rng, lists, 3, 4) for lists in ([0, 1], [1, 1, 0, -1], [2], [])]
    for profile in (ScoringProfile(), ScoringProfile(floor=False)):
        for document in documents:
            tok = 0.0
            for i, key in enumerate(query.keys):
                products = [
                    float(query.vectors[i].astype(float) @ document.vectors[j].astype(float))
                    for j, other in enumerate(document.keys)
                    if key is not None and other == key
                ]
                if products:
                    tok += max(*products, 0.0) if profile.floor else max(products)
            assert query.sentence is not None
            assert document.sentence is not None
            full = tok + float(query.sentence.astype(float) @ document.sentence.astype(float))
            collection = oracle.CountedRows(documents)
            tokens = profile.answering("tokens")
            assert oracle.score(query, document, profile, collection) == pytest.approx(full, abs=1e-9)
            assert oracle.score(query, document, tokens, collection) == pytest.approx(tok, abs=1e-9)


@SCORERS
@pytest.mark.parametrize(("n_t", "n_c"), [(32, 0), (8, 6), (17, 384)])
def test_equal_documents_tie_exactly(scorer: Scorer | None, n_t: int, n_c: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        query, other, document = (make_vectors(rng, [0, 2, 3, 0], n_t, n_c) for _ in range(3))
        collection = [document, other, document, document, other, *[document] * (seed + 2)]
        for profile in (ScoringProfile(), WEIGHED):
            config = ModelConfig(n_t=n_t, n_c=n_c, profile=profile)
            scores = dict(ranked(Case(query, collection, config, k=100), scorer))
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


def only(query: PreparedQuery, tokens: list[int]) -> PreparedQuery:
    """A query of which some tokens are left."""
    return replace(
        query,
        keys=tuple(query.keys[token] for token in tokens),
        bases=query.bases[tokens],
        vectors=query.vectors[tokens],
        places=query.places[tokens],
    )


def sums_instead_of_max(query: PreparedQuery, segment: Segment) -> Scores:
    scores = score_with_numpy(only(query, []), segment)
    for key, _, vector in query:
        postings = segment.list_of(key)
        products = mention_products(postings.vectors, vector) if query.n_t else np.zeros(0, np.float32)
        np.add.at(scores, np.repeat(postings.rows, postings.counts), to_grid(np.maximum(products, 0.0)))
    return scores


def forgets_the_floor(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, floor=False), segment)


def floors_everything(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, floor=True), segment)


def collapses_repeated_tokens(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(only(query, [query.keys.index(key) for key in sorted(set(query.keys))]), segment)


def confuses_two_lists(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(
        replace(query, keys=tuple("w0" if key == "w2" else key for key in query.keys)), segment
    )


def forgets_the_sentence(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, sentence=None), segment)


WRONG = [
    sums_instead_of_max,
    forgets_the_floor,
    floors_everything,
    collapses_repeated_tokens,
    confuses_two_lists,
    forgets_the_sentence,
]


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_scorer_is_caught(wrong: Scorer) -> None:
    counterexample = find(cases(whole_numbers=True), lambda case: not agrees(case, wrong), settings=LOOKING)
    assert agrees(counterexample, score_with_numpy)
    with pytest.raises(NoSuchExample):  # the same search finds nothing against a right one
        find(
            cases(whole_numbers=True),
            lambda case: not agrees(case, score_with_numpy),
            settings=settings(LOOKING, max_examples=100),
        )


def forgets_the_length(query: PreparedQuery, segment: Segment) -> Scores:
    saturation = query.saturation
    if saturation is not None:
        query = replace(query, saturation=saturation._replace(c1=0.0))
    return score_with_numpy(query, segment)


def forgets_the_factor(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, saturation=None), segment)


def forgets_the_base(query: PreparedQuery, segment: Segment) -> Scores:
    return score_with_numpy(replace(query, bases=np.zeros_like(query.bases)), segment)


@pytest.mark.parametrize("wrong", [forgets_the_length, forgets_the_factor, forgets_the_base])
def test_a_scorer_that_weighs_wrongly_is_caught(wrong: Scorer) -> None:
    weighed = cases(whole_numbers=False, weighed=True)
    counterexample = find(weighed, lambda case: not agrees_closely(case, wrong), settings=LOOKING)
    assert agrees_closely(counterexample, score_with_numpy)


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
    expected = oracle.rank(query_vectors, vectors, 10, encoder.config.profile)
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
    [query] = searcher.prepare([encoded])
    row = stored_row(searcher, searcher.collection.ordinal_of("d0"), query, DOCUMENTS[0])
    stored = row.scored.vectors
    assert row.span == (0, len(TEXTS[0]))
    assert stored.keys == encoded.keys
    assert stored.spans.tolist() == encoded.spans.tolist()
    np.testing.assert_allclose(stored.vectors, encoded.vectors, atol=1e-5)


def test_mistakes_are_named(searcher: Searcher) -> None:
    with pytest.raises(DuplicateId, match="document 1 and document 3"):
        Searcher.build(searcher.encoder, [DOCUMENTS[0], DOCUMENTS[1], DOCUMENTS[0]])
    with pytest.raises(InputError, match="'nowhere'"):
        searcher.collection.ordinal_of("nowhere")
