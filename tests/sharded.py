"""One index and shards of the same documents, and everything that both can be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import strategies as st

from coil.errors import CoilError
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.indexes.questions import check_paging
from coil.shards.index import ShardedIndex
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder

BY = ("coil", "tokens", "bm25", "dense", "hybrid")
WORDS = "river bank money water open search index token".split()
QUERIES = (
    "river bank", "money money loan", "the a of", "search index token", "rivr bnak", "", "zebra",
    "+river water", 'bank -money', '"river bank"', "lang:en water", "lang:xx river", "+the river",
)  # fmt: skip
FILTERS = (None, None, "year > 3", 'lang = "en" and year < 8', "year >", "nothing = 1")
SORTS = (None, None, "year", "-year", "lang", "nowhere")


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document: few ids and words, so that updates and ties are frequent; some empty, a few long."""
    words = draw(st.lists(st.sampled_from(WORDS), min_size=0, max_size=6))
    text = " ".join(words * (30 if draw(st.integers(0, 15)) == 0 else 1))
    fields: dict[str, Any] = {"year": draw(st.integers(0, 9)), "lang": draw(st.sampled_from(["en", "de"]))}
    return {"id": f"d{draw(st.integers(0, 24))}", "text": text, **fields}


changes = st.lists(
    st.one_of(
        st.tuples(st.just("update"), st.lists(documents(), max_size=12)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 24).map("d{}".format), max_size=6)),
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip
# Fields are known for as long as a document has them, also a deleted one that is still in a file.
FIRST = [
    {"id": "z1", "text": "river bank open", "year": 5, "lang": "en"},
    {"id": "z2", "text": "water", "year": 1, "lang": "de"},
]
questions = st.fixed_dictionaries(
    {
        "query": st.sampled_from(QUERIES),
        "k": st.sampled_from([0, 1, 2, 3, 10, 1000]),
        "by": st.sampled_from(BY),
        "filter": st.sampled_from(FILTERS),
        "sort": st.sampled_from(SORTS),
        "offset": st.sampled_from([0, 0, 1, 4]),
        "fold_duplicates": st.booleans(),
        "min_score": st.sampled_from([None, None, 0.5, 2.0]),
        "min_share": st.sampled_from([None, None, 0.3]),
        "plain": st.booleans(),
    }
)


@contextmanager
def both(count: int, precision: Any = "int8", **profile: Any) -> Iterator[tuple[Index, ShardedIndex]]:
    """An index, and one of so many shards; nothing is in either."""
    encoder = HashEncoder(**profile)
    with TemporaryDirectory() as folder:
        path = Path(folder)
        create_shards(find_place(path / "many"), count, precision=precision, encoder=encoder)
        with (
            create(path / "one.coil", precision=precision, encoder=encoder) as one,
            open_sharded(find_place(path / "many"), encoder) as many,
        ):
            yield one, many


def apply(index: Index | ShardedIndex, steps: Sequence[tuple[str, Any]]) -> list[Any]:
    """Change an index; what it tells of each change."""
    told: list[Any] = []
    for what, value in steps:
        if what == "update":
            empty: list[str] = []
            added = index.update(value, left_out=empty.extend)
            told.append((added, sorted(empty), len(index)))
        else:
            missing: list[str] = []
            told.append((index.delete(value, missing.extend), sorted(missing), len(index)))
    return told


def answer(index: Index | ShardedIndex, question: dict[str, Any]) -> Any:
    """Everything that an answer says, to the last bit; or the error."""
    how = dict(question)
    query, paging = how.pop("query"), (how.pop("offset"), how.pop("sort"), how.pop("fold_duplicates"))

    def ask() -> Any:
        with index.pinned() as reader:
            [found] = reader.answer_many([query], **how, texts=True, paging=check_paging(*paging))
        hits = [
            (h.rank, h.doc_id, h.score, h.share, h.chunk, h.duplicates, h.text, h.fields, h.context)
            for h in found.hits
        ]
        of_query = found.own_score, found.stats.exact_in, found.stats.query_dropped, found.unknown_fields
        return hits, of_query, found.sorted_best

    return told(ask)


def told(ask: Callable[[], Any]) -> Any:
    """What comes back, or the error that is raised."""
    try:
        return ask()
    except CoilError as error:
        return type(error), error.reason, error.remedy


def expect_same(one: Index, many: ShardedIndex, asked: Sequence[dict[str, Any]]) -> None:
    """Both give the same answers, explanations and suggestions."""
    for question in asked:
        assert answer(many, question) == answer(one, question), question
        query, by = question["query"], question["by"]
        for doc_id in ("z1", "d0", "d3", "nobody"):
            explained = [told(partial(index.explain, query, doc_id, by)) for index in (many, one)]
            assert explained[0] == explained[1]
        assert told(partial(many.suggest, query)) == told(partial(one.suggest, query))
    batch = [question["query"] for question in asked if not question["filter"]]
    assert told(partial(many.search_many, batch)) == told(partial(one.search_many, batch))
