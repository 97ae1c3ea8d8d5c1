"""The index: equal to one built afresh after any change; scores, long and empty documents, bad input."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import coil
from coil.errors import (
    DuplicateId,
    InputError,
    OptionMismatch,
    SearchTimeout,
)
from coil.indexes.opening import create, open_index
from coil.scores import oracle
from coil.storage import facts
from coil.texts.values import Document
from coil.tokens.chunks import chunk_spans
from coil.tokens.profile import By
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.onnx_encoder import OnnxEncoder
from tests.hash_encoder import QUERIES, HashEncoder, answers
from tests.tiny import WORDS, make_tokenizer, random_texts

# ---- any sequence of changes


class Changes(RuleBasedStateMachine):
    """Adds, updates, deletes and compacts, and compares with an index built afresh."""

    ids = st.sampled_from([f"d{i}" for i in range(12)])
    texts = st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join)

    @initialize(
        n_c=st.sampled_from([0, 3]),
        precision=st.sampled_from(["int8", "fp16", "fp32"]),
        once=st.integers(0, 10**9),
    )
    def start(self, n_c: int, precision: str, once: int) -> None:
        import tempfile

        self.folder = tempfile.TemporaryDirectory()
        self.encoder = HashEncoder(n_c=n_c)
        self.precision: Any = precision
        self.index = create(Path(self.folder.name) / "a.coil", precision=self.precision, encoder=self.encoder)
        self.model: dict[str, str] = {}

    @rule(ids=st.lists(ids, min_size=1, max_size=4), data=st.data())
    def update(self, ids: list[str], data: st.DataObject) -> None:
        documents = [Document(doc_id, data.draw(self.texts)) for doc_id in ids]
        self.index.update(documents)
        for document in documents:
            self.model.pop(document.doc_id, None)
            if document.text:  # without text it is left out, and what was there is gone
                self.model[document.doc_id] = document.text

    @rule(text=texts)
    def add_a_long_one(self, text: str) -> None:
        self.update_one("long", " ".join([text, *(["water flow"] * 60), text]))

    def update_one(self, doc_id: str, text: str) -> None:
        self.index.update([Document(doc_id, text)])
        self.model.pop(doc_id, None)
        self.model[doc_id] = text

    @rule(ids=st.lists(ids, max_size=3))
    def delete(self, ids: list[str]) -> None:
        expected = len({doc_id for doc_id in ids if doc_id in self.model})
        assert self.index.delete(ids) == expected
        for doc_id in ids:
            self.model.pop(doc_id, None)

    @rule()
    def compact(self) -> None:
        self.index.compact()
        assert self.index.inspect().deleted_rows == 0

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def add_twice_is_refused(self, data: st.DataObject) -> None:
        doc_id = data.draw(st.sampled_from(sorted(self.model)))
        with pytest.raises(DuplicateId, match="the index"):
            self.index.add([Document("fresh", "river"), Document(doc_id, "bank")])

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = open_index(Path(self.folder.name) / "a.coil", encoder=self.encoder)

    @invariant()
    def equals_an_index_built_afresh(self) -> None:
        if not hasattr(self, "index"):
            return
        import tempfile

        assert len(self.index) == len(self.model)
        with tempfile.TemporaryDirectory() as folder:
            afresh = create(Path(folder) / "b.coil", precision=self.precision, encoder=self.encoder)
            afresh.add([Document(doc_id, text) for doc_id, text in self.model.items()])
            assert answers(self.index) == answers(afresh)
            afresh.close()
        self.index.verify()

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            self.folder.cleanup()


Changes.TestCase.settings = settings(
    max_examples=25, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_changes = Changes.TestCase


def test_many_single_adds_do_not_make_many_segments(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    texts = random_texts(200, longest=6)
    for number, text in enumerate(texts, start=1):
        index.add([{"id": number - 1, "text": text}])
        # As a counter to base eight: so many as the digits of the number add up to.
        assert index.inspect().segments == sum(int(digit) for digit in f"{number:o}")
    assert index.inspect().documents == 200
    afresh = create(tmp_path / "b.coil", encoder=HashEncoder())
    afresh.add({"id": number, "text": text} for number, text in enumerate(texts))
    assert answers(index) == answers(afresh)
    assert index.compact() == 1
    assert answers(index) == answers(afresh)
    with index._holder.held() as snapshot:
        [entry] = snapshot.manifest.segments
    names = sorted(path.name for path in (tmp_path / "a.coil" / "segments").iterdir())
    assert names == [f"{entry.name}.documents", f"{entry.name}.lists"]


# ---- scores


@pytest.mark.parametrize("precision", ["int8", "fp16", "fp32"])
@pytest.mark.parametrize("n_c", [0, 3])
def test_scores_are_the_oracles_within_the_stated_error(tmp_path: Path, precision: Any, n_c: int) -> None:
    encoder = HashEncoder(n_c=n_c)
    texts = random_texts(60, longest=20, seed=3)
    index = create(tmp_path / "a.coil", precision=precision, encoder=encoder)
    index.add({"id": i, "text": text} for i, text in enumerate(texts))
    facts = index.inspect()
    assert (
        (facts.token_error, facts.sentence_error) == (0.0, 0.0)
        if precision == "fp32"
        else facts.token_error > 0
    )
    vectors = list(encoder.encode_documents(texts))
    for query in QUERIES:
        [q] = encoder.encode_queries([query])
        profile, collection = encoder.config.profile, oracle.CountedRows(vectors)
        rarest = profile.beta * np.log1p(len(texts) + 0.5)  # no weight is larger
        bound = 1e-4 + rarest * facts.token_error * float(np.linalg.norm(q.vectors, axis=1).sum())
        if q.sentence is not None:
            bound += profile.gamma_of(len(q)) * facts.sentence_error * float(np.linalg.norm(q.sentence))
        exact = {str(i): oracle.score(q, d, profile, collection) for i, d in enumerate(vectors)}
        for hit in index.search(query, k=100):
            assert abs(hit.score - exact[hit.doc_id]) <= bound


def test_int8_takes_three_bytes_more_than_the_vector(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder(n_t=32))
    index.add({"id": i, "text": text} for i, text in enumerate(random_texts(1000)))
    facts = index.inspect()
    a_row = 20 * facts.rows / facts.mentions  # much, because the rows of these texts are short
    assert facts.bytes_a_mention <= 35.0 + a_row  # dictionary and bounds included
    rows = facts.rows * (3 + 2 + 1)  # sentence vectors with their scales, and the length of the tail
    assert facts.bytes_lists == pytest.approx(facts.mentions * facts.bytes_a_mention + rows, abs=64)


# ---- long documents


def test_chunks_cover_the_text_and_fit() -> None:
    tokenizer = Tokenizer(make_tokenizer(), "tiny")
    text = " ".join(random_texts(40, seed=1))
    spans = chunk_spans(tokenizer, text, 32)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    for (_, end), (start, _) in pairwise(spans):
        assert start < end  # they overlap
    assert all(tokens.dropped == 0 for tokens in tokenizer.cut([text[a:b] for a, b in spans], 32))
    assert chunk_spans(tokenizer, "", 32) == [(0, 0)]
    assert chunk_spans(tokenizer, "x" * 500, 32)[-1][1] == 500


def test_a_hit_says_which_chunk_matched_and_is_explained_there(tmp_path: Path) -> None:
    encoder = HashEncoder()
    text = " ".join([*(["water flow"] * 80), "cabinet government", *(["water flow"] * 80)])
    index = create(tmp_path / "a.coil", encoder=encoder)
    index.add([{"id": "long", "text": text}])
    hit = index.search("cabinet government", by="tokens")[0]
    start, end = hit.chunk
    assert "cabinet government" in text[start:end]
    assert end - start < len(text)
    explanation = index.explain("cabinet government", "long")
    assert [text[slice(*match.document_span)] for match in explanation.matches] in (
        ["cabinet", "government"], ["government"], ["cabinet"], []
    )  # fmt: skip
    full = index.search("cabinet government")[0]
    assert explanation.score == pytest.approx(full.score, abs=1e-4)
    cut = create(tmp_path / "b.coil", encoder=encoder, long="truncate")
    cut.add([{"id": "long", "text": text}])
    assert cut.search("cabinet government", by="tokens") == []
    assert cut.inspect().truncated_documents == 1


# ---- the real model


def test_the_quickstart(tmp_path: Path) -> None:
    index = coil.create(tmp_path / "notes.coil")
    index.add([{"id": "a", "text": "The bank of the river was steep."}])
    hits = index.search("bank of a river", k=10)
    assert [hit.doc_id for hit in hits] == ["a"]
    explanation = index.explain("bank of a river", "a")
    assert sum(m.contribution for m in explanation.matches) + (explanation.sentence or 0) == pytest.approx(
        hits[0].score, abs=1e-4
    )
    assert json.loads(json.dumps(explanation.to_json()))["doc_id"] == "a"
    index.delete(["a"])
    index.compact()
    assert coil.open(tmp_path / "notes.coil").search_many(["bank", "river"], k=1000) == [[], []]


def test_real_vectors_do_not_depend_on_how_documents_came_in(full: Path, tmp_path: Path) -> None:
    encoder = OnnxEncoder(full, threads=1)
    texts = random_texts(40, seed=5)
    together = create(tmp_path / "a.coil", encoder=encoder)
    together.add({"id": i, "text": text} for i, text in enumerate(texts))
    one_by_one = create(tmp_path / "b.coil", encoder=encoder)
    for i, text in enumerate(texts):
        one_by_one.add([{"id": i, "text": text}])
    assert answers(together) == answers(one_by_one)


def test_ids_are_kept_apart_letter_by_letter(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    ids = ["a", "A", "é", "e\u0301", "x" * 10_000, " a", "a ", "\u202ea", "'; DROP TABLE documents; --"]
    index.add([{"id": i, "text": "river"} for i in ids])
    assert sorted(hit.doc_id for hit in index.search("river", k=100)) == sorted(ids)
    with pytest.raises(InputError, match="a list of ids"):
        index.delete("abc")  # type: ignore[arg-type]


@pytest.mark.parametrize("long", ["x" * 16_384, "é" * 8_192, "\ud800" * 5_461])
def test_ids_have_a_limit_in_bytes(tmp_path: Path, long: str) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": long, "text": "river"}])
        assert len(index) == 1
        for given in ({"id": long + "xx", "text": "river"}, Document(long + "xx", "river")):
            with pytest.raises(InputError, match="bytes, which exceeds the limit of 16,384") as caught:
                index.update([given])
            assert len(str(caught.value)) < 300


def test_hits_without_texts_are_the_same_hits(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(n), "text": f"river bank {n}", "year": n} for n in range(30)])
        for by in get_args(By):
            [[whole], [lazy]] = (
                index.answer_many(["river"], 20, by=by, texts=texts) for texts in (True, False)
            )
            assert len(whole.hits) > 10
            assert lazy.hits == whole.hits
            assert [hit.text for hit in lazy.hits] == [hit.text for hit in whole.hits]
            assert [hit.fields for hit in lazy.hits] == [{"year": int(hit.doc_id)} for hit in whole.hits]


def test_a_closed_index_says_so(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add([{"id": "a", "text": "river bank"}])
    index.close()
    with pytest.raises(InputError, match="closed"):
        index.search("river")


@pytest.mark.parametrize("options", [{"precision": "int4"}, {"long": "x"}])
def test_options_that_do_not_exist_are_refused(tmp_path: Path, options: Any) -> None:
    with pytest.raises(OptionMismatch):
        create(tmp_path / "a.coil", encoder=HashEncoder(), **options)
    assert not (tmp_path / "a.coil").exists()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["text"], "document 1 is a str; expected a dict"),
        ([("a", "b")], "document 1 is a tuple; expected a dict"),
        ("text", "got a value of type str; expected a list of documents"),
        (Path("corpus.jsonl"), "; expected a list of documents"),
        ({"id": "a", "text": "b"}, "got a single document; expected a list of documents"),
        (Document("a", "b"), "got a single document; expected a list of documents"),
        (None, "got None; expected a list of documents"),
        (7, "got a value of type int; expected a list of documents"),
    ],
)
def test_documents_that_are_none_are_refused(tmp_path: Path, given: Any, reason: str) -> None:
    with pytest.raises(InputError, match=reason) as caught:
        create(tmp_path / "a.coil", encoder=HashEncoder()).add(given)
    assert caught.value.remedy.startswith("pass a list of documents")


@pytest.mark.parametrize("asked", [{"query": None}, {"query": "a", "k": -1}, {"query": "a", "filter": 3}])
def test_questions_that_are_none_are_refused(tmp_path: Path, asked: Any) -> None:
    with pytest.raises(InputError):
        create(tmp_path / "a.coil", encoder=HashEncoder()).search(**asked)


# ---- documents without text

BLANK = ["", " \n\t", "\u00a0\u200b\ufeff", "\x07"]


def test_documents_without_text_are_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    documents = [Document("river", "river bank"), *(Document(f"e{i}", text) for i, text in enumerate(BLANK))]
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    assert index.add(documents) == 1
    assert caplog.messages == ["4 documents are empty and were not indexed: 'e0', 'e1', 'e2', ..."]
    assert len(index) == 1
    assert not index.has("e0")
    assert [hit.doc_id for hit in index.search("the a of", k=10)] == ["river"]  # nobody else has a sentence
    left_out: list[str] = []
    assert index.update([Document("river", ""), Document("new", "money")], left_out.extend) == 1
    assert left_out == ["river"]
    assert not index.has("river"), "what it said before is no longer true"
    assert index.update([Document("new", " ")]) == 0  # nothing but a removal
    assert len(index) == 0
    assert index.search("money") == []
    index.verify()
    # The last one of an id counts, whether it has text or not.
    index.update([Document("x", "river"), Document("x", ""), Document("x", "money"), Document("y", "loan")])
    index.update([Document("y", "bank"), Document("y", "")])
    assert [(hit.doc_id, hit.text) for hit in index.search("money")] == [("x", "money")]
    # An empty one does not stand in the way of another, but one with text does.
    assert index.add([Document("z", ""), Document("z", "loan")]) == 1
    with pytest.raises(DuplicateId, match="document 2 and document 3"):
        index.add([Document("w", ""), Document("w", "loan"), Document("w", "")])
    assert index.add([Document("z", ""), Document("v", "")], on_duplicate="skip") == 0
    assert index.has("z")
    assert caplog.messages[-1] == "1 document is empty and was not indexed: 'v'"
    index.close()


def test_facts_are_those_of_the_documents_that_are_there(tmp_path: Path) -> None:
    texts = [*random_texts(30, seed=9), "water flow " * 60]
    documents = [Document(f"d{i}", text) for i, text in enumerate(texts)]
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([*documents, Document("other", "airport"), Document("d0x", "river river")])
        index.update([documents[3]])
        gone = ["other", "d0x", *(f"d{i}" for i in range(5, 15))]
        index.delete(gone)
        found = index.inspect()
    with create(tmp_path / "b.coil", encoder=HashEncoder()) as fresh:
        fresh.add([document for document in documents if document.doc_id not in gone])
        expected = fresh.inspect()
    assert found.deleted_rows > 10
    assert expected.deleted_rows == 0
    for name in ("documents", "rows", "mentions", "lists", "longest_lists", "truncated_documents"):
        assert getattr(found, name) == getattr(expected, name), name


def test_facts_are_counted_once_for_each_state_and_within_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([Document(f"d{i}", text) for i, text in enumerate(random_texts(30, seed=9))])
        with pytest.raises(SearchTimeout, match="counting what the index holds"):
            index.inspect(timeout=0.0)
        counted = []
        real = facts.count_living
        monkeypatch.setattr(facts, "count_living", lambda live: counted.append(live) or real(live))
        assert index.inspect(timeout=60) == index.inspect(timeout=0.0) == index.inspect()
        assert len(counted) == 1
        index.add([Document("more", "quite another word")])
        assert index.inspect().documents == 31
        assert [len(index.inspect(longest=n).longest_lists) for n in (3, 5)] == [3, 5]
