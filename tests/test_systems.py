"""The systems that are compared, each held against something it shares no code with."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coil as library
from coil.errors import CoilError, OptionMismatch
from coil.systems.bm25s import Bm25s
from coil.systems.coil import Coil, CoilFull, CoilTok, Dense, OwnBm25
from coil.systems.hybrid import Hybrid
from coil.systems.registry import SYSTEMS, make_system, options_of, system_class
from coil.systems.system import Answered, Fuser, Reranker, Retriever, StoredReranker, Trainable, TrainingData
from coil.texts.values import Document, Query
from coil.vectors.config import ModelConfig
from tests.training_data import TINY

pytest.importorskip("bm25s")

DOCUMENTS = [
    Document("c", "river bank steep river"),
    Document("a", "bank loan money"),
    Document("b", "loan money bank"),  # the same words as a
    Document("d", "kitchen cabinet wood"),
    Document("e", "river water"),
]
QUERIES = [Query("1", "river bank"), Query("2", "bank loan"), Query("3", "unheard"), Query("4", "")]


# ---- the registry


def test_every_system_can_be_made_and_says_what_its_options_do():
    for kind in SYSTEMS:
        system = make_system(kind, {})
        assert system.name == next(f.default for f in fields(system_class(kind)) if f.name == "name") or kind
        assert isinstance(system, Retriever | Reranker | Fuser)
        assert (system_class(kind).__doc__ or "").strip()
        for name, field in options_of(kind).items():
            assert field.metadata.get("help"), (kind, name)


def test_options_are_read_from_texts_and_values():
    made = make_system("bm25s", {"k1": "1.2", "b": 1, "stemmer": "none"}, name="mine")
    assert made == Bm25s(name="mine", k1=1.2, b=1.0, stemmer="none")
    assert make_system("coil", {"n_t": "8", "by": "tokens"}, model="m") == Coil(
        name="coil", model="m", n_t=8, by="tokens"
    )


@pytest.mark.parametrize(
    ("kind", "options", "model", "reason"),
    [
        ("bm26", {}, None, "there is no system 'bm26'"),
        ("bm25s", {"k2": 1}, None, "no option 'k2'"),
        ("bm25s", {"k1": "one"}, None, "k1 is 'one'; expected float"),
        ("bm25s", {"stemmer": "german"}, None, "must be one of english, none"),
        ("bm25s", {}, "folder", "does not use a model"),
        ("bm25s", {"b": 2.0}, None, "b from 0 to 1"),
        ("coil", {"n_t": 1.5}, None, "expected int"),
        ("hybrid", {"weight": 1.5}, None, "from 0 to 1"),
        ("hybrid", {"depth": 0}, None, "depth must be 1 or more"),
    ],
)
def test_wrong_options(kind, options, model, reason):
    with pytest.raises(OptionMismatch, match=reason):
        make_system(kind, options, model)


# ---- BM25 by bm25s


def lucene(query: str, text: str, k1: float, b: float) -> float:
    """BM25 as Lucene has it, written down once more."""
    texts = [document.text.split() for document in DOCUMENTS]
    mean = sum(map(len, texts)) / len(texts)
    words, score = text.split(), 0.0
    for word in query.split():
        df = sum(word in other for other in texts)
        tf = words.count(word)
        if tf:
            idf = math.log(1 + (len(texts) - df + 0.5) / (df + 0.5))
            score += idf * tf / (tf + k1 * (1 - b + b * len(words) / mean))
    return score


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.5, 0.75), (0.0, 0.0), (2.0, 1.0)])
def test_bm25s_equals_the_formula(tmp_path, k1, b):
    system = Bm25s(k1=k1, b=b, stemmer="none", stopwords="none")
    system.index(iter(DOCUMENTS), tmp_path)
    for query, answer in zip(QUERIES, system.search(QUERIES, 10, tmp_path), strict=True):
        expected = [(lucene(query.text, d.text, k1, b), d.doc_id) for d in DOCUMENTS]
        expected = sorted((pair for pair in expected if pair[0] > 0), key=lambda pair: -pair[0])
        assert answer.query_id == query.query_id
        assert answer.doc_ids == [doc_id for _, doc_id in expected]  # sorting is stable: a before b
        assert answer.scores == pytest.approx([score for score, _ in expected], rel=1e-5)
        assert set(answer.parts_ms) == {"encode", "search"}


def test_bm25s_settles_ties_by_document_order_at_any_depth(tmp_path):
    system = Bm25s()
    system.index(DOCUMENTS, tmp_path)
    deep, shallow = (next(system.search([QUERIES[1]], k, tmp_path)) for k in (10, 1))
    assert deep.doc_ids[:2] == ["a", "b"]
    assert deep.scores[0] == deep.scores[1]
    assert shallow.doc_ids == ["a"]


# ---- COIL


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coil")
    Coil().index(DOCUMENTS, folder)
    return folder


@pytest.mark.parametrize("by", ["coil", "tokens", "bm25", "dense", "hybrid"])
def test_coil_answers_as_the_index_does(indexed, by):
    with library.open(indexed) as index:
        expected = [index.search(query.text, k=3, by=by, plain=True) for query in QUERIES]
    for answer, hits in zip(Coil(by=by).search(QUERIES, 3, indexed), expected, strict=True):
        assert answer.doc_ids == [hit.doc_id for hit in hits]
        assert answer.scores == [hit.score for hit in hits]
        assert set(answer.parts_ms) == {"encode", "search", "fetch"}


def test_coil_reranks_with_the_scores_of_a_search(indexed):
    everything = {q.query_id: [d.doc_id for d in DOCUMENTS] for q in QUERIES[:2]}
    found = {a.query_id: a for a in Coil().search(QUERIES[:2], 10, indexed)}
    for answer in Coil().rerank_stored(QUERIES[:2], everything, indexed):
        searched = dict(zip(found[answer.query_id].doc_ids, found[answer.query_id].scores, strict=True))
        assert sorted(answer.doc_ids) == sorted(everything[answer.query_id])
        assert all(
            score == searched.get(doc_id, score)
            for doc_id, score in zip(answer.doc_ids, answer.scores, strict=True)
        )
        assert answer.scores == sorted(answer.scores, reverse=True)


def test_operators_in_a_query_are_words(indexed):
    asked = [Query("1", '-river "bank"')]
    [answer] = Coil().search(asked, 10, indexed)
    assert "c" in answer.doc_ids


def test_an_interrupted_index_is_continued(tmp_path, full, monkeypatch):
    monkeypatch.setattr("coil.systems.coil.COMMIT_EVERY", 100)
    documents = [Document(str(n), f"river bank {n}") for n in range(1500)]
    system = Coil(model=str(full))

    def interrupted():
        yield from documents[:1400]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        system.index(interrupted(), tmp_path)
    with library.open(tmp_path) as index:
        assert index.is_unfinished
        assert 0 < len(index) < len(documents)
    system.index(documents, tmp_path)
    with library.open(tmp_path) as index:
        assert not index.is_unfinished
        assert [document.doc_id for document in index] == [document.doc_id for document in documents]


def test_which_systems_can_do_what():
    for cls in (Coil, OwnBm25, CoilFull, CoilTok, Dense):
        assert isinstance(cls(), Retriever)
        assert isinstance(cls(), StoredReranker)
        assert isinstance(cls(), Trainable)
    assert isinstance(Hybrid(), Fuser)
    assert not isinstance(Hybrid(), Retriever)
    assert not isinstance(Bm25s(), Trainable)


# ---- training


@pytest.mark.parametrize(
    ("system", "n_t", "n_c", "list_key", "weight"),
    [
        (Coil(n_t=4, n_c=6), 4, 6, "word", "bm25"),
        (CoilFull(n_t=4, n_c=6), 4, 6, "wordpiece", "one"),
        (CoilTok(n_t=4), 4, 0, "wordpiece", "one"),
        (Dense(n_c=6), 0, 6, "wordpiece", "one"),
    ],
)
def test_training_makes_a_model_that_searches(tmp_path, base, pairs, system, n_t, n_c, list_key, weight):
    recipe = replace(TINY, keep=1.0, token_only=0.5)  # which not every shape can have
    model, index = tmp_path / "model", tmp_path / "index"
    model.mkdir()
    said: list[str] = []
    system.fit(TrainingData(pairs, str(base), recipe=recipe, device="cpu"), model, said.append)
    config = ModelConfig.load(model)
    assert (config.n_t, config.n_c) == (n_t, n_c)
    assert (config.profile.list_key, config.profile.weight) == (list_key, weight)
    assert "exporting to ONNX" in said
    trained = replace(system, model=str(model), weights="fp32")
    index.mkdir()
    trained.index(DOCUMENTS, index)
    answers = list(trained.search(QUERIES[:2], 10, index))
    assert all(answer.doc_ids for answer in answers)
    by_torch = replace(trained, weights="torch")
    (tmp_path / "second").mkdir()
    by_torch.index(DOCUMENTS, tmp_path / "second")
    by_torch = list(by_torch.search(QUERIES[:2], 10, tmp_path / "second"))
    assert [answer.doc_ids for answer in by_torch] == [answer.doc_ids for answer in answers]


def test_the_shared_recipe_keeps_what_is_not_shape():
    shared = replace(TINY, lr=0.5, steps=77, pooling="mean", query_length=20)
    for system in (Coil(), CoilFull(), CoilTok(), Dense()):
        recipe = system.recipe(shared)
        assert (recipe.lr, recipe.steps, recipe.pooling, recipe.query_length) == (0.5, 77, "mean", 20)


# ---- hybrid


def answered(scores: dict[str, float], **parts: float) -> Answered:
    return Answered("q", list(scores), list(scores.values()), parts or {"search": 1.0})


PLACES = {"a": 0, "b": 1, "c": 2, "d": 3}.__getitem__


def test_reciprocal_rank_fusion():
    first, second = answered({"a": 9.0, "b": 5.0}), answered({"b": 0.3, "c": 0.2})
    found = Hybrid(fusion="rrf", c=60).fuse([first, second], 10, PLACES)
    assert found.doc_ids == ["b", "a", "c"]
    assert found.scores == pytest.approx([0.5 / 62 + 0.5 / 61, 0.5 / 61, 0.5 / 62])
    tied = Hybrid(fusion="rrf").fuse([answered({"d": 2.0}), answered({"a": 1.0})], 10, PLACES)
    assert tied.doc_ids == ["a", "d"]  # the same score: the order of the collection
    assert Hybrid(fusion="rrf").fuse([answered({"d": 2.0}), answered({"a": 1.0})], 1, PLACES).doc_ids == ["a"]


def test_linear_fusion():
    first, second = answered({"a": 10.0, "b": 6.0, "c": 2.0}), answered({"c": 0.9, "d": 0.4})
    found = Hybrid(fusion="linear", weight=0.25).fuse([first, second], 10, PLACES)
    values = dict(zip(found.doc_ids, found.scores, strict=True))
    # a: 1 and missing from the second list, whose lowest is 0; d: missing from the first
    assert values == pytest.approx({"a": 0.75, "b": 0.375, "c": 0.25, "d": 0.0})


def test_z_score_fusion():
    found = Hybrid(fusion="zscore").fuse(
        [answered({"a": 3.0, "b": 1.0}), answered({"a": 7.0, "b": 5.0})], 9, PLACES
    )
    assert dict(zip(found.doc_ids, found.scores, strict=True)) == pytest.approx({"a": 1.0, "b": -1.0})


@pytest.mark.parametrize("fusion", ["zscore", "linear", "rrf"])
def test_fusion_of_lists_that_say_little(fusion):
    hybrid = Hybrid(fusion=fusion)
    assert hybrid.fuse([answered({}), answered({})], 5, PLACES).doc_ids == []
    assert hybrid.fuse([answered({}), answered({"b": 1.0, "a": 0.5})], 5, PLACES).doc_ids == ["b", "a"]
    second = answered({"b": 1.0, "a": 0.9, "c": 0.8})
    one, none = (hybrid.fuse([answered(first), second], 5, PLACES) for first in ({"c": 4.0}, {}))
    values, before = (dict(zip(found.doc_ids, found.scores, strict=True)) for found in (one, none))
    assert values["c"] > before["c"]  # a list of one document speaks for it
    assert (values["a"], values["b"]) == (before["a"], before["b"])


def test_fusion_counts_only_the_first_documents_and_all_the_time():
    first = answered({"a": 3.0, "b": 2.0, "c": 1.0}, encode=1.0, search=2.0)
    second = answered({"b": 3.0, "d": 2.0}, encode=10.0, search=20.0, fetch=5.0)
    found = Hybrid(fusion="rrf", depth=1).fuse([first, second], 10, PLACES)
    assert found.doc_ids == ["a", "b"]
    assert {part: found.parts_ms[part] for part in ("encode", "search", "fetch")} == {
        "encode": 11.0,
        "search": 22.0,
        "fetch": 5.0,
    }
    assert found.parts_ms["fuse"] > 0


scores = st.dictionaries(st.sampled_from("abcd"), st.sampled_from([-1.0, 0.0, 0.5, 2.0]), max_size=4)


@settings(max_examples=200, deadline=None)
@given(scores, scores, st.sampled_from(["zscore", "linear", "rrf"]), st.sampled_from([0.0, 0.3, 1.0]))
def test_any_fusion_is_sorted_and_complete(first, second, fusion, weight):
    lists = [
        answered(dict(sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))))
        for found in (first, second)
    ]
    found = Hybrid(fusion=fusion, weight=weight).fuse(lists, 10, PLACES)
    assert sorted(found.doc_ids) == sorted({*first, *second})
    keys = [(-score, PLACES(doc_id)) for doc_id, score in zip(found.doc_ids, found.scores, strict=True)]
    assert keys == sorted(keys)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(CoilError, match="neither a folder nor an installed package"):
        Coil(model=str(tmp_path / "nowhere")).index(DOCUMENTS, tmp_path)
