"""Anserini's JSON vectors of an index with n_t = 1: sums of products are COIL's token scores."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.adapters import anserini
from coil.adapters.anserini import (
    LARGEST_SCALE,
    ImpactVector,
    quantise,
    query_weights,
    read_vectors,
    write_queries,
    write_vectors,
)
from coil.cli.main import run
from coil.errors import BadLine, OptionMismatch, OutputError
from coil.indexes.opening import create
from coil.lists.rows import encode_rows
from coil.scores import oracle
from coil.texts.values import Document, Query
from coil.tokens.contexts import USUAL_CONTEXT
from coil.tokens.profile import ScoringProfile
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from tests.hash_encoder import HashEncoder
from tests.tiny import PROFILE, WEIGHED, make_model

WORDS = "river bank money loan the - zyx".split()


def encoder_of(profile: ScoringProfile = PROFILE, n_t: int = 1, n_c: int = 0) -> HashEncoder:
    return HashEncoder(n_t, n_c, profile)


def product(query: dict[str, int], document: dict[str, int], scale: int) -> float:
    """What Anserini computes, in COIL's unit."""
    return sum(weight * document.get(term, 0) for term, weight in query.items()) / scale**2


def check_scores(texts: list[str], query: str, scale: int, precision: Any) -> None:
    """Write an index, read the file, and compare every product with the oracle, within the error stated."""
    encoder = encoder_of(n_c=2)
    documents = [Document(f"d{number}", text) for number, text in enumerate(texts)]
    with tempfile.TemporaryDirectory() as folder:
        with create(Path(folder) / "a.coil", encoder=encoder, precision=precision) as index:
            index.add(documents)
            assert write_vectors(index, Path(folder) / "v.jsonl", scale) >= len(texts)
            assert write_queries(index, [Query("q", query)], Path(folder) / "q.tsv", scale) <= 1
        found = {of.text_id: of.weights for of in read_vectors(Path(folder) / "v.jsonl")}
        lines = (Path(folder) / "q.tsv").read_text().splitlines()
    asked: dict[str, int] = {}
    for term in lines[0].split("\t")[1].split() if lines else []:
        asked[term] = asked.get(term, 0) + 1
    [vectors] = encoder.encode_queries([query])
    off = 0.5 / scale
    for document, rows in encode_rows(encoder, documents, "chunk", USUAL_CONTEXT):
        for number, (_, row) in enumerate(rows):
            name = document.doc_id if len(rows) == 1 else f"{document.doc_id}#{number}"
            expected = oracle.token_score(vectors, row, PROFILE, oracle.CountedRows([row]))
            largest = float(abs(row.vectors).max())
            bound = sum(off * (weight + largest + off) for weight in query_weights(vectors).values())
            assert product(asked, found[name], scale) == pytest.approx(expected, abs=bound + 1e-3)


@settings(max_examples=30, deadline=None)
@given(
    texts=st.lists(
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join), min_size=1, max_size=5
    ),
    query=st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join),
    scale=st.sampled_from([10, 100, 1000]),
    precision=st.sampled_from(["fp32", "fp16"]),
)
def test_products_are_token_scores(texts: list[str], query: str, scale: int, precision: Any) -> None:
    check_scores(texts, query, scale, precision)


def test_chunks_have_lines_of_their_own(tmp_path: Path) -> None:
    long = "river bank " * 60
    check_scores([long, "money loan"], "bank money", 1000, "fp32")
    with create(tmp_path / "a.coil", encoder=encoder_of()) as index:
        index.add([{"id": "a", "text": long}, {"id": "b#c", "text": "river"}])
        with pytest.raises(OutputError, match="the id 'b#c' contains #"):
            write_vectors(index, tmp_path / "v.jsonl")
        index.delete(["b#c"])
        write_vectors(index, tmp_path / "v.jsonl", contents=False)
    rows = list(read_vectors(tmp_path / "v.jsonl"))
    assert [row.text_id for row in rows] == [f"a#{number}" for number in range(len(rows))]
    assert {row.contents for row in rows} == {""}
    assert not list(tmp_path.glob(".*unfinished"))


def test_a_wrong_product_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail: without the terms for negative weights, scores are too low."""
    monkeypatch.setattr(
        anserini,
        "quantise",
        lambda weights, scale: quantise({t: w for t, w in weights.items() if t[0] != "-"}, scale),
    )
    with pytest.raises((AssertionError, OutputError)):
        check_scores(["river bank", "bank money loan"], "river bank money loan the", 1000, "fp32")


def test_what_is_read_back_must_be_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "v.jsonl").write_text("what was there before\n")
    with create(tmp_path / "a.coil", encoder=encoder_of()) as index:
        index.add([{"id": "a", "text": "river"}])
        monkeypatch.setattr(anserini, "quantise", lambda weights, scale: dict.fromkeys(weights, 1))
        with pytest.raises(OutputError, match="line 1 differs from what was written"):
            write_vectors(index, tmp_path / "v.jsonl", LARGEST_SCALE)
    assert (tmp_path / "v.jsonl").read_text() == "what was there before\n"


def test_the_command_exports_texts_and_queries(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "model", ModelConfig(1, 0, "cls", "none", PROFILE))
    export_model(model, ["fp32"])
    corpus, queries = tmp_path / "corpus.tsv", tmp_path / "queries.tsv"
    corpus.write_text("1\tthe bank of the river\n2\tmoney and loan\n")
    queries.write_text("q1\triver money\nq2\t!\n")
    index, out = str(tmp_path / "a.coil"), tmp_path / "vectors.jsonl"
    assert run(["index", str(corpus), "--model", str(model), "--out", index]) == 0
    capsys.readouterr()
    command = ["export-vectors", index, "--out", str(out), "--scale", "1000"]
    assert run([*command, "--queries", str(queries)]) == 2
    command += ["--queries", str(queries), "--queries-out", str(tmp_path / "q.tsv")]
    assert run(command) == 0
    assert "2 texts in" in capsys.readouterr().out
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["id"], line["contents"]) for line in lines] == [
        ("1", "the bank of the river"), ("2", "money and loan"),
    ]  # fmt: skip
    assert all(type(weight) is int and weight > 0 for line in lines for weight in line["vector"].values())
    assert {term.removeprefix("-") for term in lines[1]["vector"]} <= {"money", "and", "loan"}
    asked = dict(line.split("\t") for line in (tmp_path / "q.tsv").read_text().splitlines())
    assert set(asked["q1"].replace("-", "").split()) <= {"river", "money"}


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (encoder_of(n_t=4), "the token vectors are 4 wide"),
        (encoder_of(WEIGHED), "weight bm25, alpha 1"),
        (encoder_of(replace(PROFILE, floor=False)), "floor False"),
    ],
)
def test_other_models_are_refused(tmp_path: Path, encoder: HashEncoder, message: str) -> None:
    with create(tmp_path / "a.coil", encoder=encoder) as index:
        index.add([{"id": "a", "text": "river"}])
        with pytest.raises(OptionMismatch, match=message):
            write_vectors(index, tmp_path / "v.jsonl")
    assert not (tmp_path / "v.jsonl").exists()


@pytest.mark.parametrize("scale", [0, -1, 1.5, LARGEST_SCALE + 1, True])
def test_scales_that_cannot_be(tmp_path: Path, scale: Any) -> None:
    with (
        create(tmp_path / "a.coil", encoder=encoder_of()) as index,
        pytest.raises(OptionMismatch, match="scale"),
    ):
        write_vectors(index, tmp_path / "v.jsonl", scale)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a", "contents": "plain text"}', "there is no vector, only contents, id"),
        (
            '{"id": "a", "contents": "", "vector": [0.1, 0.2]}',
            "the vector is a list; expected weights by term",
        ),
        ('{"id": "a", "contents": "", "vector": {"bank": 0.5}}', "the term 'bank' has the weight '0.5'"),
        ('{"id": "a", "contents": "", "vector": {"bank": -3}}', "has the weight '-3'"),
        ('{"id": "a", "contents": "", "vector": {"bank": true}}', "has the weight 'true'"),
        ('{"id": 5, "contents": "", "vector": {}}', "the id is '5'; expected a string"),
        ('{"docid": "a", "contents": "", "vector": {}}', "the id is missing"),
        ('{"id": "a", "vector": {}}', "the contents are missing"),
        ("[1, 2]", "expected a JSON object"),
        ("not json", "invalid JSON"),
    ],
)
def test_files_with_another_schema_are_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "v.jsonl"
    path.write_text('{"id": "ok", "contents": "", "vector": {"bank": 3}}\n' + line + "\n")
    read = read_vectors(path)
    assert next(read) == ImpactVector("ok", "", {"bank": 3})
    with pytest.raises(BadLine, match=r"v\.jsonl, line 2: .*" + message) as caught:
        next(read)
    assert caught.value.remedy
