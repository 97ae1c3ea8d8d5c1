"""The deadline of a search is kept while queries are encoded and while hits are fetched."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence

import pytest

from coil.errors import SearchTimeout
from coil.hits.answering import ENCODE_SLICE, FETCH_SLICE
from coil.hits.collection import MemoryCollection
from coil.hits.searcher import Searcher
from coil.texts.values import Document
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder


class SlowEncoder(HashEncoder):
    """Takes time for each query."""

    seconds = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.encoded = 0

    def encode_queries(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        for vectors in super().encode_queries(texts):
            time.sleep(self.seconds)
            self.encoded += 1
            yield vectors


class SlowCollection(MemoryCollection):
    """Takes time for each document that is fetched."""

    seconds = 0.0
    fetched = 0

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        time.sleep(self.seconds * len(ordinals))
        self.fetched += len(ordinals)
        return super().fetch(ordinals, texts)

    def blocks(self, ordinals: Sequence[int]) -> list[Sequence[int]]:
        """As from a disk."""
        return [ordinals[begin : begin + 64] for begin in range(0, len(ordinals), 64)]


@pytest.fixture
def searcher() -> Searcher:
    encoder = SlowEncoder()
    documents = [Document(str(n), "river bank") for n in range(4 * FETCH_SLICE)]
    return Searcher(encoder, SlowCollection.build(encoder, documents))


def test_encoding_stops_between_slices(searcher: Searcher) -> None:
    encoder = searcher.encoder
    assert isinstance(encoder, SlowEncoder)
    encoder.seconds = 0.002
    queries = ["river"] * (6 * ENCODE_SLICE)
    with pytest.raises(SearchTimeout):
        searcher.answer_many(queries, deadline=time.monotonic() + 0.002 * ENCODE_SLICE)
    assert encoder.encoded <= 3 * ENCODE_SLICE


def test_fetching_stops_between_slices(searcher: Searcher) -> None:
    collection = searcher.collection
    assert isinstance(collection, SlowCollection)
    searcher.answer_many(["river"], k=1)
    collection.seconds, collection.fetched = 2 / FETCH_SLICE, 0  # a slice takes two seconds
    with pytest.raises(SearchTimeout):
        searcher.answer_many(["river"], k=4 * FETCH_SLICE, deadline=time.monotonic() + 1)
    assert collection.fetched == FETCH_SLICE
    collection.seconds = 0.0005
    with pytest.raises(SearchTimeout):
        searcher.answer_many(["river"], k=FETCH_SLICE, deadline=time.monotonic() + 0.8, texts=True)
    assert collection.fetched < 3 * FETCH_SLICE


def test_slices_change_nothing(searcher: Searcher) -> None:
    queries = [f"river bank {'money ' * (n % 5)}" for n in range(2 * ENCODE_SLICE + 1)]
    k = 2 * FETCH_SLICE + 1
    later = searcher.answer_many(queries, k, deadline=time.monotonic() + 1000)
    assert [answer.hits for answer in later] == searcher.search_many(queries, k)
    assert len(later[0].hits) == k
