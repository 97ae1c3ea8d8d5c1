"""Shards answer what one index of all documents answers: ids, order, scores, explanations, errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.scores import oracle
from coil.scores.statistics import Totals
from coil.shards import exchange, searcher
from coil.shards import shard as shard_module
from coil.shards.collection import WholeStatistics
from coil.shards.index import ShardedIndex
from coil.shards.routing import Routing
from tests.hash_encoder import HashEncoder
from tests.sharded import FIRST, WORDS, apply, both, changes, expect_same, questions
from tests.tiny import PROFILE, random_texts


@pytest.fixture(autouse=True)
def prune_always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thresholds of early shards are worth passing on only in large ones; here they always are."""
    monkeypatch.setattr(shard_module, "WORTH_PRUNING", 0)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 5),
    steps=changes,
    asked=st.lists(questions, min_size=1, max_size=6),
    precision=st.sampled_from(["int8", "fp32", "int8+fp16"]),
)
def test_shards_answer_as_one_index(
    count: int, steps: list[Any], asked: list[dict[str, Any]], precision: str
) -> None:
    with both(count, precision) as (one, many):
        assert apply(many, [("update", FIRST), *steps]) == apply(one, [("update", FIRST), *steps])
        expect_same(one, many, asked)
        facts, expected = many.inspect(), one.inspect()
        for name in ("documents", "rows", "mentions", "lists", "longest_lists", "truncated_documents"):
            assert getattr(facts, name) == getattr(expected, name)


@settings(max_examples=10, deadline=None)
@given(count=st.integers(1, 4), steps=changes, asked=st.lists(questions, min_size=1, max_size=4))
def test_shards_with_lists_of_word_pieces(count: int, steps: list[Any], asked: list[dict[str, Any]]) -> None:
    with both(count, profile=PROFILE) as (one, many):
        assert apply(many, [("update", FIRST), *steps]) == apply(one, [("update", FIRST), *steps])
        expect_same(one, many, asked)


@settings(max_examples=15, deadline=None)
@given(
    count=st.integers(1, 5),
    texts=st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(" ".join), max_size=20),
    query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
    by=st.sampled_from(["coil", "tokens", "bm25", "dense", "hybrid"]),
)
def test_shards_score_by_the_equation(count: int, texts: list[str], query: str, by: Any) -> None:
    encoder = HashEncoder()
    with both(count, "fp32") as (_, many):
        many.add({"id": str(number), "text": text} for number, text in enumerate(texts))
        hits = many.search(query, k=100, by=by)
        [asked] = encoder.encode_queries([query])
        profile = encoder.config.profile.answering(by)
        expected = oracle.rank(asked, list(encoder.encode_documents(texts)), 100, profile)
    assert {hit.doc_id for hit in hits} == {str(ordinal) for ordinal, _ in expected}
    scores = {str(ordinal): score for ordinal, score in expected}
    for hit in hits:
        assert hit.score == pytest.approx(scores[hit.doc_id], rel=1e-4, abs=1e-5)
    assert [hit.doc_id for hit in hits] == [
        hit.doc_id for hit in sorted(hits, key=lambda hit: (-hit.score, int(hit.doc_id)))
    ]


def test_shards_sort_as_many_hits_as_one_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.hits.paging.SORTED", 5)
    with both(3) as (one, many):
        for index in (one, many):
            index.add([{"id": f"d{n}", "text": f"river {'bank ' * n}", "year": -n} for n in range(9)])
        asked = [{**ALL, "query": "river", "sort": "year", "filter": of} for of in (None, "year > -5")]
        expect_same(one, many, asked)
        assert [many.search("river", sort="year", filter=of).sorted_best for of in (None, "year > -5")] == [
            5,
            None,
        ]


def test_names_of_fields_are_not_remembered_without_limit() -> None:
    with both(3) as (_, many):
        many.add([{"id": "a", "text": "river", "year": 2020, "y" * 500: 1}])
        with many.pinned() as reader:
            for name in ("x" * 300, "y" * 500, "year", "month"):
                assert reader._has_field(name) == (name[0] == "y")
            assert reader._fields == {"year": True, "month": False}


# ---- the comparison can fail

ALL = {
    "by": "coil", "filter": None, "sort": None, "offset": 0, "fold_duplicates": False, "min_score": None,
    "min_share": None, "plain": True, "k": 10,
}  # fmt: skip


def test_statistics_of_one_shard_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def learn(self: WholeStatistics, keys: Iterable[str]) -> Totals:
        found: Totals = self._state.ask("totals", list(keys), of=[0])[0]
        return found

    with both(3) as (one, many):
        fill(one, many)
        expect_same(one, many, [{**ALL, "query": "river bank"}])
        monkeypatch.setattr(WholeStatistics, "learn", learn)
        with pytest.raises(AssertionError):
            expect_same(one, many, [{**ALL, "query": "river bank"}])


def test_ties_settled_by_shard_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_shard(queries: Any, scores: Any, ordinals: Any, shards: Any) -> Any:
        return np.lexsort((ordinals, shards, -scores, queries))  # the shard before the ordinal

    with both(3) as (one, many):
        same = [{"id": f"d{n}", "text": "river bank"} for n in range(20)]
        one.add(same), many.add(same)
        expect_same(one, many, [{**ALL, "query": "river bank"}])
        monkeypatch.setattr(exchange, "merge_order", by_shard)
        with pytest.raises(AssertionError):
            expect_same(one, many, [{**ALL, "query": "river bank"}])


def test_a_threshold_that_is_too_high_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    with both(4) as (one, many):
        fill(one, many)
        expect_same(one, many, [{**ALL, "query": "river bank"}])
        right = searcher._thresholds
        monkeypatch.setattr(
            searcher, "_thresholds", lambda best, k: tuple(one + (1 << 36) for one in right(best, k))
        )
        with pytest.raises(AssertionError):
            expect_same(one, many, [{**ALL, "query": "river bank", "k": k} for k in (1, 3, 10)])


def fill(one: Any, many: ShardedIndex) -> None:
    docs = [{"id": f"d{n}", "text": text} for n, text in enumerate(random_texts(120, longest=12))]
    one.add(docs), many.add(docs)


# ---- thresholds and shapes


def test_what_early_shards_found_saves_later_ones_work() -> None:
    ids = [f"d{n}" for n in range(1000)]
    rare = next(doc_id for doc_id in ids if Routing(4).shard_of(doc_id) == 0)
    with both(4) as (_, many):
        many.add({"id": one, "text": "mountain river" if one == rare else "river bank"} for one in ids)
        skipped = []
        for waves in ([[0], [1], [2], [3]], [[0, 1, 2, 3]]):
            many._whole.calls.waves = waves  # type: ignore[misc]
            with many.pinned() as reader:
                [found] = reader.answer_many(["mountain river"], k=1, by="bm25")
            assert [hit.doc_id for hit in found.hits] == [rare]
            skipped.append(found.stats.mentions_skipped)
    assert skipped[0] > skipped[1]


@pytest.mark.parametrize("empty", ["all", "some", "one"])
def test_empty_and_unbalanced_shards(empty: str) -> None:
    routing = Routing(4)
    wanted = {"all": [], "some": [0], "one": [0, 1, 1, 1, 1, 3]}[empty]
    docs, place = [], 0
    for number in range(60):
        if not wanted:
            break
        shard = wanted[number % len(wanted)]
        while routing.shard_of(f"n{place}") != shard:
            place += 1
        docs.append({"id": f"n{place}", "text": WORDS[number % 8] + " river bank", "year": number})
        place += 1
    with both(4) as (one, many):
        one.add(docs), many.add(docs)
        counts = [len(shard.index) for shard in many._whole.calls.shards]  # type: ignore[attr-defined]
        assert counts.count(0) == {"all": 4, "some": 3, "one": 1}[empty]
        for by in ("coil", "bm25", "dense"):
            asked = [
                {**ALL, "by": by, "query": query, "plain": False} for query in ("river", "money -water", "x")
            ]
            expect_same(one, many, asked)
        if docs:
            expect_same(one, many, [{**ALL, "query": "river bank", "sort": "-year", "offset": 3}])


def test_ordinals_are_unique_and_tell_their_shard() -> None:
    routing = Routing(3)
    ordinals = [routing.ordinal(place, place % 2) for place in range(1, 50)]
    assert ordinals == sorted(set(ordinals))
    assert [routing.holder_of(ordinal) for ordinal in ordinals] == [place % 2 for place in range(1, 50)]
    assert routing.next_place([1, 1, 1]) == 1
    assert routing.next_place([o + 1 for o in ordinals]) == 50
    assert {routing.shard_of(str(n)) for n in range(100)} == {0, 1, 2}
    assert routing.shard_of("a") == 2  # never changes: indexes on disk depend on it
