"""What a searcher and its shards send each other: how often, how much, and when."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coil.errors import InputError, StateGone
from coil.shards import shard as shard_module
from coil.shards.calls import Arguments, LocalCalls
from coil.shards.collection import Vector
from coil.shards.index import ShardedIndex
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.sharded import BY, both
from tests.tiny import random_texts

QUERIES = [text for text in random_texts(64, longest=6, seed=3) if text]


class Counting(LocalCalls):
    """Shards that note what they are asked and what they answer, as it would be sent."""

    def __init__(self, calls: LocalCalls) -> None:
        super().__init__(calls.shards)
        self.waves = [list(range(self.count))]  # as few shards on a cluster are asked
        self.asked: list[str] = []
        self.sent: list[bytes] = []
        self.answered: list[bytes] = []

    def ask(
        self, numbers: Sequence[int], method: str, arguments: Arguments, meanwhile: Any = None
    ) -> dict[int, Any]:
        self.asked += [method] * len(numbers)
        self.sent += [pickle.dumps(arguments(number), 5) for number in numbers]
        found = super().ask(numbers, method, arguments)
        self.answered += [pickle.dumps(one, 5) for one in found.values()]
        return found

    def forget(self) -> None:
        self.asked, self.sent, self.answered = [], [], []


@pytest.fixture
def counted() -> Iterator[tuple[Any, ShardedIndex, Counting]]:
    with both(3) as (one, many):
        docs = [{"id": f"d{n}", "text": text} for n, text in enumerate(random_texts(300, longest=30)) if text]
        one.add(docs), many.add(docs)
        calls = many._whole.calls
        assert isinstance(calls, LocalCalls)
        counting = Counting(calls)
        vars(many._whole)["calls"] = counting
        yield one, many, counting


@pytest.mark.parametrize("by", BY)
def test_a_batch_is_one_question_to_each_shard(counted: tuple[Any, ShardedIndex, Counting], by: Any) -> None:
    one, many, calls = counted
    found = many.search_many(QUERIES, 10, by=by)
    assert set(calls.asked) <= {"totals", "rank"}
    calls.forget()
    again = many.search_many(QUERIES, 10, by=by)
    assert calls.asked == ["rank"] * 3  # the statistics are known: nothing else is asked
    assert again == found == one.search_many(QUERIES, 10, by=by)


def test_texts_are_read_when_they_are_looked_at_and_many_at_once(
    counted: tuple[Any, ShardedIndex, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many, calls = counted
    expected = [[(hit.text, hit.fields) for hit in hits] for hits in one.search_many(QUERIES, 10)]
    found = many.search_many(QUERIES, 10)
    calls.forget()
    assert [[(hit.text, hit.fields) for hit in hits] for hits in found] == expected
    assert calls.asked == ["look_up"] * 3
    monkeypatch.setattr(shard_module, "COME_ALONG", 4000)
    found = many.search_many(QUERIES, 10)
    calls.forget()
    assert [[(hit.text, hit.fields) for hit in hits] for hits in found] == expected
    size = sum(len(text) for text in {text for of in expected for text, _ in of})
    assert set(calls.asked) <= {"look_up", "fetch"}
    assert len(calls.asked) < size / 1000 < len(QUERIES)


def test_a_single_query_with_texts_is_one_question(counted: tuple[Any, ShardedIndex, Counting]) -> None:
    one, many, calls = counted
    many.search_many(QUERIES, 10)
    calls.forget()
    with many.pinned() as reader:
        [answer] = reader.answer_many(QUERIES[:1], 10, texts=True)
    hits = many.search(QUERIES[0])
    expected = [(hit.doc_id, hit.text, hit.fields) for hit in one.search(QUERIES[0])]
    assert [(hit.doc_id, hit.text, hit.fields) for hit in hits] == expected
    assert [(hit.doc_id, hit.text, hit.fields) for hit in answer.hits] == expected
    assert calls.asked == ["rank"] * 6


def test_words_are_counted_while_a_query_is_encoded(
    counted: tuple[Any, ShardedIndex, Counting], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many, calls = counted
    counted_before: list[bool] = []
    ended = threading.Event()
    right = Counting.ask

    def ask(self: Counting, numbers: Sequence[int], method: str, *how: Any) -> Any:
        found = right(self, numbers, method, *how)
        if method == "totals":
            ended.set()
        return found

    def encode(self: HashEncoder, texts: Iterable[str]) -> Iterator[TokenVectors]:
        counted_before.append(ended.wait(20))  # another thread asks; with one thread, this would be in vain
        return self._encode(texts, self.config.profile.query_length)

    expected = one.search(QUERIES[0])
    calls.is_apart = True
    monkeypatch.setattr(Counting, "ask", ask)
    monkeypatch.setattr(HashEncoder, "encode_queries", encode)
    assert many.search(QUERIES[0]) == expected
    assert counted_before == [True]
    assert calls.asked == ["totals"] * 3 + ["rank"] * 3


def test_answers_with_texts_take_two_questions(counted: tuple[Any, ShardedIndex, Counting]) -> None:
    _, many, calls = counted
    with many.pinned() as reader:
        reader.answer_many(QUERIES, 10, texts=True)
    calls.forget()
    with many.pinned() as reader:
        reader.answer_many(QUERIES, 10, texts=True)
    assert calls.asked == ["rank"] * 3 + ["look_up"] * 3


def test_more_hits_than_ids_come_along(counted: tuple[Any, ShardedIndex, Counting]) -> None:
    one, many, calls = counted
    many.search_many(QUERIES, 10)
    calls.forget()
    assert many.search_many(QUERIES, 200) == one.search_many(QUERIES, 200)
    assert calls.asked == ["rank"] * 3 + ["look_up"] * 3


def test_messages_are_small(counted: tuple[Any, ShardedIndex, Counting]) -> None:
    _, many, calls = counted
    config = HashEncoder().config
    many.search_many(QUERIES, 10)
    calls.forget()
    found = many.search_many(QUERIES, 10)
    encoded = list(HashEncoder().encode_queries(QUERIES))
    tokens = sum(len(of) for of in encoded)
    numbers = 4 * (tokens * (config.n_t + 1) + len(QUERIES) * (config.n_c + 1))  # as float32
    words = sum(len(key or "") + 4 for of in encoded for key in of.keys)
    assert all(len(sent) < numbers + words + 1500 for sent in calls.sent)
    hits = 10 * len(QUERIES)
    assert sum(len(of) for of in found) > hits / 2
    # 40 bytes of numbers and an id for each hit, and as many again for the counts of each query
    assert all(len(answer) < hits * (40 + 8) + 60 * len(QUERIES) + 1500 for answer in calls.answered)


def test_versions_are_asked_for_before_queries_are_encoded_and_waited_for_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    happened: list[str] = []

    class Changes:
        def __init__(self, versions: Vector) -> None:
            self._versions = versions

        def find_versions(self) -> Callable[[], Vector]:
            happened.append("asked")

            def wait() -> Vector:
                happened.append("waited")
                return self._versions

            return wait

    def encode(self: HashEncoder, texts: Iterable[str]) -> Iterator[TokenVectors]:
        happened.append("encoded")
        return self._encode(texts, 32)

    with both(2) as (_, many):
        many.add([{"id": "a", "text": "river bank"}])
        monkeypatch.setattr(many, "_changes", Changes(many._changes.find_versions()()))
        monkeypatch.setattr(HashEncoder, "encode_queries", encode)
        with ShardedIndex.pinned(many) as reader:  # as an index on a cluster is read
            assert [hit.doc_id for hit in reader.search("river bank")] == ["a"]
    assert happened == ["asked", "encoded", "waited"]


# ---- texts that are looked at later


def test_hits_keep_their_texts_whatever_happens_to_the_index() -> None:
    with both(2) as (_, many):
        many.add([{"id": f"d{n}", "text": f"river bank {n}"} for n in range(8)])
        hits, others = many.search("river", k=8), many.search("bank", k=8)
        many.update([{"id": f"d{n}", "text": f"money {n}"} for n in range(8)])
        for n in range(8):
            many.delete([f"d{n}"])
    opened = [shard._open for shard in many._whole.calls.shards]  # type: ignore[attr-defined]
    assert sorted(hit.text for hit in hits) == [f"river bank {n}" for n in range(8)]
    assert [sum(found() is not None for found in of.values()) for of in opened] == [1, 1]
    del others
    gc.collect()
    assert [sum(found() is not None for found in of.values()) for of in opened] == [0, 0]


def test_a_shard_that_has_moved_on_still_gives_documents_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with both(1) as (_, many):
        many.add([{"id": f"d{n}", "text": f"river bank {n}"} for n in range(8)])
        vars(many._whole)["hold"] = lambda _: None  # as shards in other processes are read
        with ShardedIndex.pinned(many) as reader:
            hits = reader.search("river", k=8)
        monkeypatch.setattr(shard_module, "KEPT_SECONDS", 0.0)
        for n in range(4):
            many.delete([f"d{n}"])
        shard = many._whole.calls.shards[0]  # type: ignore[attr-defined]
        version = reader.versions[0]
        assert version is not None
        with pytest.raises(StateGone):
            shard.count_documents(version)
        assert sorted(hit.text for hit in hits) == [f"river bank {n}" for n in range(8)]
        with pytest.raises(StateGone, match="search again"):
            shard.fetch(version, [1 << 40])


# ---- as a single index does


@pytest.mark.parametrize("k", [2**31, 2**62, 2**63, 10**30])
def test_k_may_be_any_number(k: int) -> None:
    with both(2) as (one, many):
        for index in (one, many):
            index.update([{"id": f"d{n}", "text": f"river bank {n}"} for n in range(8)])
        for how in ({}, {"offset": 3}, {"fold_duplicates": True}, {"min_score": 0.1}):
            assert many.search("river", k=k, **how) == one.search("river", k=k, **how)


@pytest.mark.parametrize("doc_id", [1, None, b"d1", ["d1"]])
def test_what_is_no_string_is_no_id(doc_id: Any) -> None:
    with both(2) as (one, many):
        for index in (one, many):
            index.update([{"id": "1", "text": "river"}])
            assert not index.has(doc_id)
            assert doc_id not in index
            with index.pinned() as still:
                assert still.size_of(doc_id) is None


def test_a_sharded_index_is_pickled_by_its_path(full: Path, tmp_path: Path) -> None:
    create_shards(find_place(tmp_path / "many"), 2, model=full)
    with open_sharded(find_place(tmp_path / "many")) as many:
        many.add([{"id": f"d{n}", "text": f"river bank {n}"} for n in range(4)])
        for again in (pickle.loads(pickle.dumps(many)), copy.deepcopy(many)):
            with again:
                assert again.search("river") == many.search("river")
        with many.pinned() as still:
            for do in (pickle.dumps, copy.deepcopy):
                with pytest.raises(InputError, match="a pinned index cannot be pickled"):
                    do(still)


@pytest.mark.parametrize("name", ["left_out", "go_on", "committed", "encoded"])
def test_a_callback_is_checked_before_anything_is_written(name: str) -> None:
    documents = [{"id": "a", "text": "river"}, {"id": "b", "text": ""}]
    with both(2) as (one, many):
        for index in (one, many) if name in ("left_out", "go_on") else (one,):
            with pytest.raises(InputError, match=f"{name} is a value of type int; expected a function"):
                index.update(documents, **{name: 1}) if index is many else index.add(documents, **{name: 1})
            with pytest.raises(InputError, match="missing is a value of type int; expected a function"):
                index.delete(["a"], missing=1)  # type: ignore[arg-type]
            assert len(index) == 0
