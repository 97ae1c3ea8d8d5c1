"""Whole words: an open vocabulary in lists, statistics and searches, and what odd texts make of it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, get_args

import pytest

from coil.hits.hit import BLOCK
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import WORDS, By, ScoringProfile
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.model_files import bundled_model
from tests.hash_encoder import HashEncoder

SYSTEMS: tuple[By, ...] = get_args(By)


@pytest.fixture(scope="module")
def keys() -> ListKeys:
    """By the bundled model's tokenizer, which is BERT's."""
    return ListKeys(WORDS, Tokenizer.from_file(bundled_model() / "tokenizer.json"))


def keys_of(keys: ListKeys, text: str, length: int = 512) -> list[str | None]:
    [keyed] = keys.of_texts([text], length)
    return list(keyed.keys)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("kubernetes", ["kubernet"]),
        ("Running runs RUN", ["run", "run", "run"]),
        ("libxml2 E0277 PIPESTATUS", ["libxml2", "e0277", "pipestatus"]),
        ("naïve café", ["naiv", "cafe"]),
        ("Python 3.11.2", ["python", "3", None, "11", None, "2"]),
        ("the of, and!", [None, None, None, None, None]),
        ("npm semver", ["npm", "semver"]),
        ("東京 สวัสดี", ["東", "京", "สวสด"]),
        ("🙂 🚀", ["🙂", "🚀"]),
        ("ϐϐϐ ϑϑϑ", ["ϐϐϐ", "ϑϑϑ"]),  # in no vocabulary, and not the same
        ("[SEP] [UNK]", [None, "sep", None, None, "unk", None]),
    ],
)
def test_a_word_has_one_list_and_it_is_its_own(keys: ListKeys, text: str, expected: list[str | None]) -> None:
    assert keys_of(keys, text) == expected


def test_the_spans_are_those_of_whole_words(keys: ListKeys) -> None:
    text = "A Kubernetes cluster; naïveté!"
    [keyed] = keys.of_texts([text], 512)
    assert [text[a:b] for a, b in keyed.spans.tolist()] == [
        "A", "Kubernetes", "cluster", ";", "naïveté", "!",
    ]  # fmt: skip


def test_a_word_that_is_cut_off_is_still_the_whole_word(keys: ListKeys) -> None:
    text = "kubernetes kubernetes"
    for length in range(3, 12):
        assert set(keys_of(keys, text, length)) <= {"kubernet"}


def test_wordpieces_keep_the_papers_lists() -> None:
    tokenizer = Tokenizer.from_file(bundled_model() / "tokenizer.json")
    pieces = ListKeys(ScoringProfile(), tokenizer)
    found = keys_of(pieces, "kubernetes, the")
    assert found[:4] == ["ku", "##ber", "##net", "##es"]
    assert found[-2:] == [",", "the"]


# ---- in an index


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return create(tmp_path / "a.coil", encoder=HashEncoder(n_t=4, n_c=70))


def test_a_rare_word_finds_its_document(index: Index) -> None:
    words = [f"needle{i}x" for i in range(40)]
    index.add({"id": str(i), "text": f"the river bank {word} money {i}"} for i, word in enumerate(words))
    for i, word in enumerate(words):
        assert [hit.doc_id for hit in index.search(word, by="bm25")] == [str(i)]
        # Random vectors may take a match down to 0; then there is no hit, but never another one.
        assert {hit.doc_id for hit in index.search(word, by="tokens")} <= {str(i)}


@pytest.mark.parametrize("by", SYSTEMS)
def test_queries_that_ask_for_little(index: Index, by: Any) -> None:
    index.add({"id": str(i), "text": f"river bank {i}"} for i in range(30))
    for query in ("asdkjhasd", "the of and", "🙂🙂🙂", "!!!", "\u0301", "x" * 10_000):
        hits = index.search(query, k=5, by=by)
        if by in ("tokens", "bm25"):
            assert hits == []
        for hit in hits:
            assert hit.score == hit.score  # a number
    assert index.search("", by=by) == index.search("  \n", by=by) == []
    long = index.answer_many([" ".join(["river"] * 10_000)], k=5, by=by)[0]
    assert len(long.hits) == 5
    assert long.stats.query_dropped > 0
    everything = index.search("river", k=10**9, by=by)
    assert len(everything) == 30 if by != "tokens" else 20 < len(everything) <= 30
    assert [hit.rank for hit in everything] == list(range(1, len(everything) + 1))


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32", "int8+fp16"])
def test_a_document_with_a_great_many_mentions_of_one_word(tmp_path: Path, precision: Any) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder(), precision=precision)
    index.add([{"id": "many", "text": "river " * 60_000}, {"id": "one", "text": "river bank"}])
    for by in SYSTEMS:
        assert {hit.doc_id for hit in index.search("river bank", by=by)} == {"many", "one"}
    assert index.search("bank", by="bm25")[0].doc_id == "one"
    explained = index.explain("river", "many")
    assert explained.matches[0].count > 30
    index.verify()


def test_deletions_in_every_block_leave_the_statistics_of_a_fresh_build(tmp_path: Path) -> None:
    texts = {str(i): f"river bank money {'loan ' * (i % 4)} w{i % 17}" for i in range(400)}
    changed = create(tmp_path / "changed.coil", encoder=HashEncoder())
    changed.add({"id": i, "text": text} for i, text in texts.items())
    changed.delete([i for i in texts if int(i) % 3 == 0])
    fresh = create(tmp_path / "fresh.coil", encoder=HashEncoder())
    fresh.add({"id": i, "text": text} for i, text in texts.items() if int(i) % 3)
    for _ in range(2):
        for query in ("river loan", "w3 w4", "money"):
            for by in SYSTEMS:
                ours, theirs = (
                    [(hit.doc_id, hit.score) for hit in index.search(query, 500, by=by)]
                    for index in (changed, fresh)
                )
                assert ours == theirs
        changed.compact()


def test_a_filter_does_not_change_a_score(index: Index) -> None:
    index.add({"id": str(i), "text": f"river bank {i % 3}", "year": 2000 + i} for i in range(20))
    for by in SYSTEMS:
        everything = {hit.doc_id: hit.score for hit in index.search("river 1", 100, by=by)}
        some = {hit.doc_id: hit.score for hit in index.search("river 1", 100, "year > 2010", by=by)}
        assert some == {doc_id: score for doc_id, score in everything.items() if int(doc_id) > 10}


def test_the_dictionary_grows_and_shrinks(index: Index) -> None:
    index.add({"id": str(i), "text": f"river unique{i}"} for i in range(50))
    assert index.inspect().lists == 51
    index.delete([str(i) for i in range(1, 50)])
    assert index.inspect().lists == 2
    index.compact()
    [live] = index.searcher.collection.segments
    assert list(live.segment.dictionary) == ["river", "unique0"]


# ---- hits


def test_texts_are_read_when_they_are_asked_for(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    index.add({"id": str(i), "text": f"river bank {i}", "year": i} for i in range(3 * BLOCK))
    read: list[int] = []
    collection = index.searcher.collection
    fetch = collection.fetch

    def counted(ordinals: Any, texts: bool = True) -> Any:
        if texts:
            read.append(len(ordinals))
        return fetch(ordinals, texts)

    monkeypatch.setattr(collection, "fetch", counted)
    hits = index.search("river", k=3 * BLOCK)
    assert not read
    assert hits[0].text.startswith("river bank")
    assert hits[1].fields == {"year": int(hits[1].doc_id)}
    assert read == [BLOCK]
    assert [hit.text for hit in hits] == [f"river bank {hit.doc_id}" for hit in hits]
    assert sum(read) == 3 * BLOCK


def test_a_hit_outlives_the_index_and_its_changes(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add({"id": str(i), "text": f"river bank {i}"} for i in range(5))
        [hit, *_] = index.search("river")
        index.delete([hit.doc_id])
        index.compact()
    assert hit.text == f"river bank {hit.doc_id}"
    copied = pickle.loads(pickle.dumps(hit))
    assert (copied, copied.text, copied.fields) == (hit, hit.text, hit.fields)
    with open_index(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        assert not index.has(hit.doc_id)


def test_least_scores_and_shares(index: Index) -> None:
    index.add({"id": str(i), "text": f"river {'bank ' * (i % 5)} money {i}"} for i in range(40))
    for by in SYSTEMS:
        everything = index.search("river bank bank", 100, by=by)
        middle = everything[len(everything) // 2].score
        kept = index.search("river bank bank", 100, by=by, min_score=middle)
        assert kept == [hit for hit in everything if hit.score >= middle]
        share = everything[3].share
        assert share is not None
        assert index.search("river bank bank", 100, by=by, min_share=share) == [
            hit for hit in everything if hit.share is not None and hit.share >= share
        ]
    itself = index.search("river money 7", by="bm25")[0]
    assert itself.share is not None
    assert 0.8 < itself.share <= 1.0 + 1e-6
