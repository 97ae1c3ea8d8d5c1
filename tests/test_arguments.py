"""Arguments of the wrong type: one named error wherever a question comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coil
from coil.errors import BadLine, IndexLocked, InputError, OptionMismatch
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.storage.memory import show_size
from coil.texts.corpora import read_documents
from tests.hash_encoder import HashEncoder

Ask = Callable[[Index, Any], object]
HUGE = -(10**4300)
DOCUMENTS = [{"id": "a", "text": "river bank"}, {"id": "b", "text": "money bank loan"}]


def _short(value: object) -> str:
    """A name for a test: pytest's own would write the number out."""
    return type(value).__name__


def _nested() -> list[Any]:
    """A list with more levels than Python writes."""
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    return value


WITH_QUERY: dict[str, Ask] = {
    "search": lambda index, query: index.search(query),
    "search_many": lambda index, query: index.search_many([query]),
    "search by bm25": lambda index, query: index.search(query, by="bm25"),
    "rerank": lambda index, query: index.rerank(query, ["a"]),
    "rerank_many": lambda index, query: index.rerank_many([query], [["a"]]),
    "explain": lambda index, query: index.explain(query, "a"),
    "Searcher.search": lambda index, query: index.searcher.search(query),
    "coil.explain": lambda index, query: coil.explain(index.encoder, query, coil.Document("a", "river")),
}
WITH_K: dict[str, Ask] = {
    "search": lambda index, k: index.search("bank", k),
    "search_many": lambda index, k: index.search_many(["bank"], k)[0],
    "search by bm25": lambda index, k: index.search("bank", k, by="bm25"),
    "Searcher.search": lambda index, k: index.searcher.search("bank", k),
}
WITH_FILTER: dict[str, Ask] = {
    "search": lambda index, filter: index.search("bank", filter=filter),
    "search_many": lambda index, filter: index.search_many(["bank"], filter=filter),
    "search by bm25": lambda index, filter: index.search("bank", filter=filter, by="bm25"),
}
WITH_ID: dict[str, Ask] = {
    "explain": lambda index, doc_id: index.explain("bank", doc_id),
    "document": lambda index, doc_id: index.document(doc_id),
    "rerank": lambda index, doc_id: index.rerank("bank", [doc_id]),
    "delete": lambda index, doc_id: index.delete([doc_id]),
}
WITH_LIST: dict[str, Ask] = {
    "search_many": lambda index, given: index.search_many(given),
    "rerank": lambda index, given: index.rerank("bank", given),
    "rerank_many": lambda index, given: index.rerank_many(["bank"], given),
    "delete": lambda index, given: index.delete(given),
}
WITH_NUMBER: dict[str, Ask] = {
    "min_score": lambda index, number: index.search("bank", min_score=number),
    "min_share": lambda index, number: index.search("bank", min_share=number),
    "timeout": lambda index, number: index.answer_many(["bank"], timeout=number)[0].hits,
}
WITH_COUNT: dict[str, Ask] = {
    "most_text": lambda index, count: index.answer_many(["bank"], texts=True, most_text=count)[0].hits,
    "most_each": lambda index, count: index.answer_many(["bank"], texts=True, most_each=count)[0].hits,
    "longest": lambda index, count: index.inspect(count).longest_lists,
}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with create(tmp_path_factory.mktemp("made") / "a.coil", encoder=HashEncoder()) as made:
        made.add(DOCUMENTS)
        yield made


@pytest.mark.parametrize("query", [None, 5, b"bank", ["bank"], True])
@pytest.mark.parametrize("name", WITH_QUERY)
def test_a_query_is_a_text(index: Index, name: str, query: object) -> None:
    with pytest.raises(InputError, match=r"a query is .*; expected a string") as told:
        WITH_QUERY[name](index, query)
    assert told.value.remedy


@pytest.mark.parametrize(
    "k", [None, True, False, np.True_, 2.0, "3", [1], -1, np.int64(-1), HUGE], ids=_short
)
@pytest.mark.parametrize("name", WITH_K)
def test_k_is_a_whole_number(index: Index, name: str, k: object) -> None:
    with pytest.raises(InputError, match=r"k is .*; expected a whole number"):
        WITH_K[name](index, k)


@pytest.mark.parametrize("k", [1, np.int64(1), np.uint8(1), np.array(1)])
@pytest.mark.parametrize("name", WITH_K)
def test_k_may_be_a_whole_number_of_numpy(index: Index, name: str, k: object) -> None:
    [_] = WITH_K[name](index, k)  # type: ignore[misc]


NO_NUMBERS = ["x", "1", b"1", [1], True, np.True_, 1j, float("nan"), np.array([1.0, 2.0]), 10**400, HUGE]


@pytest.mark.parametrize("number", NO_NUMBERS, ids=_short)
@pytest.mark.parametrize("name", WITH_NUMBER)
def test_a_number_is_a_number(index: Index, name: str, number: object) -> None:
    with pytest.raises(InputError, match=rf"{name} is .*; expected a number") as told:
        WITH_NUMBER[name](index, number)
    assert told.value.remedy


@pytest.mark.parametrize("number", [0, 0.0, np.float32(0), np.int64(0), np.array(0.0), Fraction(0)])
@pytest.mark.parametrize("name", ["min_score", "min_share"])
def test_a_number_may_be_one_of_numpy(index: Index, name: str, number: object) -> None:
    assert WITH_NUMBER[name](index, number) == [hit for hit in index.search("bank") if hit.score >= 0]


@pytest.mark.parametrize(
    "count", ["x", b"1", [1], True, 1.0, np.float32(1), -1, np.array([1, 2]), HUGE], ids=_short
)
@pytest.mark.parametrize("name", WITH_COUNT)
def test_a_count_is_a_whole_number(index: Index, name: str, count: object) -> None:
    with pytest.raises(InputError, match=rf"{name} is .*; expected a whole number") as told:
        WITH_COUNT[name](index, count)
    assert told.value.remedy


@pytest.mark.parametrize("name", WITH_COUNT)
def test_a_count_may_be_one_of_numpy(index: Index, name: str) -> None:
    assert WITH_COUNT[name](index, np.int64(100)) == WITH_COUNT[name](index, 100)


@pytest.mark.parametrize(
    "by", [None, 5, b"coil", ["coil"], np.array(["coil"]), np.array([1.0, 2.0]), HUGE], ids=_short
)
def test_by_is_the_name_of_a_system(index: Index, by: Any) -> None:
    for ask in (index.search, partial(index.explain, doc_id="a"), partial(index.rerank, doc_ids=["a"])):
        with pytest.raises(OptionMismatch, match=r"by is .*; it must be one of coil"):
            ask("bank", by=by)


def test_the_limit_of_a_score_is_told(index: Index) -> None:
    assert index.search("bank", min_score=-1e9) == index.search("bank")
    for number in (1e300, float("inf"), -1e10):
        with pytest.raises(InputError, match=r"expected a number between -1e\+09 and 1e\+09"):
            index.search("bank", min_score=number)


@pytest.mark.parametrize("share", [float("inf"), -float("inf"), 1e308])
def test_the_limit_of_a_share_is_told(index: Index, share: float) -> None:
    assert index.search("bank", min_share=100) == []  # a hit may be above 1
    with pytest.raises(InputError, match=r"min_share is .*; expected a number between -1e\+09 and 1e\+09"):
        index.search("bank", min_share=share)


@pytest.mark.parametrize(
    "device", ["x", "", "cuda:x", "CUDA", "cuda:-1", 5, True, b"cpu", ["cpu"], HUGE], ids=_short
)
def test_an_unknown_device_is_refused_at_once(index: Index, device: Any) -> None:
    with pytest.raises(InputError, match=r"the device is .*; expected cpu, cuda") as told:
        coil.open(index.folder, device=device)
    assert told.value.remedy
    for known in (None, "cpu", "cuda", "cuda:1"):
        coil.open(index.folder, device=known).close()


@pytest.mark.parametrize("name", ["memory", "threads"])
def test_a_number_too_long_to_be_written_is_refused(index: Index, name: str) -> None:
    with pytest.raises(InputError, match=f"{name} is a value of type int; expected a whole number"):
        coil.open(index.folder, **{name: HUGE})


@pytest.mark.parametrize("filter", [5, True, b"id exists", ["id exists"]])
@pytest.mark.parametrize("name", WITH_FILTER)
def test_a_filter_is_a_text(index: Index, name: str, filter: object) -> None:
    with pytest.raises(InputError, match=r"the filter is .*; expected a string"):
        WITH_FILTER[name](index, filter)


@pytest.mark.parametrize("doc_id", [None, 5, b"a", ["a"], {}])
@pytest.mark.parametrize("name", WITH_ID)
def test_an_id_is_a_text(index: Index, name: str, doc_id: object) -> None:
    with pytest.raises(InputError, match=r"an id is .*; expected a string"):
        WITH_ID[name](index, doc_id)


@pytest.mark.parametrize("given", [None, 5])
@pytest.mark.parametrize("name", WITH_LIST)
def test_a_list_is_a_list(index: Index, name: str, given: object) -> None:
    with pytest.raises(InputError, match="expected a list"):
        WITH_LIST[name](index, given)


def test_hits_are_a_list() -> None:
    with pytest.raises(InputError, match="the hits are None; expected a list"):
        coil.to_frame(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [["a.jsonl"], None, 5])
def test_a_source_is_a_path(given: object) -> None:
    with pytest.raises(InputError, match=r"a source is a value of type \w+; expected a path or a table"):
        read_documents(given)


@pytest.mark.parametrize("given", [HUGE, _nested(), np.arange(3), None, 5, "nothing"], ids=_short)
def test_a_choice_is_one_of_those_named(index: Index, tmp_path: Path, given: Any) -> None:
    with pytest.raises(OptionMismatch, match="on_duplicate is"):
        index.add([], on_duplicate=given)
    with pytest.raises(OptionMismatch, match="precision is"):
        coil.create(tmp_path / "b.coil", precision=given)


def test_the_name_of_a_field_is_not_told_at_length(index: Index) -> None:
    with pytest.raises(InputError, match="no document has the field 'aaa") as told:
        index.search("bank", sort="a" * 1_000)
    assert len(str(told.value)) < 200
    with pytest.raises(InputError, match="has 100,000 characters, which exceeds the limit of 1,000") as told:
        index.search("bank", sort="a" * 100_000)
    assert len(str(told.value)) < 200


def test_candidates_may_come_from_an_iterator(index: Index) -> None:
    assert index.rerank("bank", iter(["a", "b"])) == index.rerank("bank", ["a", "b"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "document",
    [
        {"id": "h", "text": "river", "number": -HUGE},
        {"id": "h", "text": "river", "inner": [{"number": HUGE}]},
        {"id": "h", "text": "river", -HUGE: "a"},
        {"id": -HUGE, "text": "river"},
        {"id": "h", "text": -HUGE},
        coil.Document("h", "river", {"number": -HUGE}),
    ],
    ids=_short,
)
def test_a_number_that_json_cannot_hold_is_told(tmp_path: Path, document: Any) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(BadLine, match="digits") as told:
            index.add([document])
        assert told.value.remedy
        index.add([{"id": "h", "text": "river", "number": -HUGE - 1}])
        assert index.document("h").fields == {"number": -HUGE - 1}


@pytest.mark.parametrize("value", [{1: "a", "1": "b"}, [{"g": {1: "a", "1": "b"}}], {"a\0": 1, "a\ufffd": 2}])
def test_nested_names_are_unique(index: Index, value: object) -> None:
    with pytest.raises(InputError, match="has the same name twice") as told:
        index.add([{"id": "nested", "text": "river", "f": value}])
    assert told.value.remedy == "give each field a unique name"
    assert not index.has("nested")


@pytest.mark.parametrize(("count", "words"), [(1, "1 document was"), (2, "2 documents were")])
def test_an_error_says_how_many_documents_were_added(tmp_path: Path, count: int, words: str) -> None:
    with (
        create(tmp_path / "a.coil", encoder=HashEncoder()) as made,
        pytest.raises(IndexLocked, match=f"the first {words} added"),
    ):
        made.add(DOCUMENTS[:count], committed=lambda _: made.compact())


def test_a_small_memory_limit_is_named_in_bytes() -> None:
    assert [show_size(size) for size in (1, 1000, 1 << 20, 3 << 30)] == [
        "1 byte",
        "1,000 bytes",
        "1M",
        "3072M",
    ]
