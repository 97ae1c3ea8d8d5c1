"""Reranking gives every candidate the score that a search gives it, to the last bit, on both ways."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from coil.cli.main import run
from coil.errors import DuplicateId, InputError
from coil.hits import reranker
from coil.hits.reranker import rerank
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.texts.runs import read_run
from coil.texts.values import Document
from coil.tokens.profile import By, ScoringProfile
from tests.hash_encoder import HashEncoder
from tests.tiny import PROFILE, WEIGHED, WORDS

Output = pytest.CaptureFixture[str]
Found = list[tuple[str, float]]

# ---- the property


@dataclass(frozen=True)
class Case:
    """Documents, queries with candidates, and what decides how they are stored and read."""

    texts: list[str]
    queries: list[str]
    candidates: list[list[int]]
    n_c: int
    precision: Any
    long: Any
    by: By
    profile: ScoringProfile
    copy_cost: float  # 0: candidates are always cut out of their segments, inf: never
    block_rows: int
    replaced: bool  # whether the first document of the index takes another's place


@st.composite
def cases(draw: st.DrawFn) -> Case:
    words = st.lists(st.sampled_from(WORDS[:12]), max_size=6).map(" ".join)
    filled = words.filter(bool)  # an index leaves empty documents out
    long_text = st.tuples(words, words).map(lambda two: " ".join([two[0], *["water flow"] * 40, two[1]]))
    texts = draw(st.lists(st.one_of(filled, filled, long_text), min_size=1, max_size=8))
    queries = draw(st.lists(words, min_size=1, max_size=3))
    everyone = list(range(len(texts)))
    some = st.permutations(everyone).flatmap(
        lambda order: st.integers(0, len(order)).map(lambda n: order[:n])
    )
    n_c = draw(st.sampled_from([0, 3]))
    return Case(
        texts=texts,
        queries=queries,
        candidates=[draw(some) for _ in queries],
        n_c=n_c,
        precision=draw(st.sampled_from(["int8", "fp16", "fp32"])),
        long=draw(st.sampled_from(["chunk", "truncate"])),
        by=draw(st.sampled_from(["coil", "tokens", "bm25", "dense", "hybrid"] if n_c else ["coil", "bm25"])),
        profile=draw(st.sampled_from([PROFILE, WEIGHED])),
        copy_cost=draw(st.sampled_from([0.0, 4.0, float("inf")])),
        block_rows=draw(st.sampled_from([1, 3, 1000])),
        replaced=draw(st.booleans()),
    )


def built(case: Case, folder: str) -> Index:
    """The index of the case, in several segments, with deleted rows in between where it says so."""
    encoder = HashEncoder(n_c=case.n_c, profile=case.profile)
    index = create(Path(folder) / "a.coil", precision=case.precision, long=case.long, encoder=encoder)
    if case.replaced:
        index.add([Document("d0", "steep river bank"), Document("gone", case.texts[0])])
        index.delete(["d0", "gone"])
    documents = [Document(f"d{i}", text) for i, text in enumerate(case.texts)]
    index.add(documents[:3])
    index.add(documents[3:])
    return index


def searched(case: Case, index: Index) -> list[Found]:
    """What a search over all documents says about the candidates; a document it leaves out scores 0."""
    expected = []
    for query, chosen in zip(case.queries, case.candidates, strict=True):
        hits = {hit.doc_id: hit.score for hit in index.search(query, 1000, by=case.by)}
        scored = [(f"d{i}", hits.get(f"d{i}", 0.0)) for i in sorted(chosen)]
        expected.append(sorted(scored, key=lambda pair: -pair[1]))
    return expected


def from_index(case: Case, index: Index) -> list[Found]:
    ids = [[f"d{i}" for i in chosen] for chosen in case.candidates]
    with patch.object(reranker, "COPY_COST", case.copy_cost):
        found = index.rerank_many(case.queries, ids, case.by)
    for hits in found:
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        for hit in hits:
            assert hit.text == case.texts[int(hit.doc_id[1:])]
    return [[(hit.doc_id, hit.score) for hit in hits] for hits in found]


def from_corpus(case: Case, index: Index, **changes: Any) -> list[Found]:
    documents = (Document(f"d{i}", text) for i, text in enumerate(case.texts))
    ids = {f"q{n}": [f"d{i}" for i in chosen] for n, chosen in enumerate(case.candidates)}
    texts = {f"q{n}": query for n, query in enumerate(case.queries)}
    options = {
        "precision": case.precision,
        "long": case.long,
        "by": case.by,
        "block_rows": case.block_rows,
    }
    with patch.object(reranker, "COPY_COST", case.copy_cost):
        found = rerank(
            HashEncoder(n_c=case.n_c, profile=case.profile), texts, ids, documents, **{**options, **changes}
        )
    assert found.missing == ()
    return list(found.rows.values())


Way = Callable[[Case, Index], list[Found]]


def agrees(case: Case, way: Way) -> bool:
    with tempfile.TemporaryDirectory() as folder, built(case, folder) as index:
        return way(case, index) == searched(case, index)


@pytest.mark.parametrize("way", [from_index, from_corpus])
@given(case=cases())
@settings(max_examples=40, deadline=None)
def test_candidates_get_the_scores_of_a_search(way: Way, case: Case) -> None:
    with tempfile.TemporaryDirectory() as folder, built(case, folder) as index:
        assert way(case, index) == searched(case, index)


@given(case=cases())
@settings(max_examples=30, deadline=None)
def test_reranking_everything_is_searching(case: Case) -> None:
    everything = [f"d{i}" for i in reversed(range(len(case.texts)))]
    with tempfile.TemporaryDirectory() as folder, built(case, folder) as index:
        for query in case.queries:
            with patch.object(reranker, "COPY_COST", case.copy_cost):
                reranked = index.rerank(query, everything, case.by)
            hits = index.search(query, 1000, by=case.by)
            shown = [(hit.doc_id, hit.score, hit.chunk) for hit in hits]
            ours = [(hit.doc_id, hit.score, hit.chunk) for hit in reranked]
            if len(hits) == len(everything):
                assert ours == shown
            else:  # a search has no hits that score 0
                assert [one for one in ours if one[1] != 0.0] == shown
                assert len(ours) == len(everything)


# ---- the comparison itself must be able to fail


def stores_otherwise(case: Case, index: Index) -> list[Found]:
    return from_corpus(case, index, precision="fp16" if case.precision == "int8" else "int8")


def cuts_off(case: Case, index: Index) -> list[Found]:
    return from_corpus(case, index, long="truncate" if case.long == "chunk" else "chunk")


def drops_zeros(case: Case, index: Index) -> list[Found]:
    return [[pair for pair in found if pair[1]] for found in from_index(case, index)]


def settles_ties_by_the_run(case: Case, index: Index) -> list[Found]:
    return [
        sorted(found, key=lambda pair: (-pair[1], chosen.index(int(pair[0][1:]))))
        for found, chosen in zip(from_index(case, index), case.candidates, strict=True)
    ]


def loses_chunks(case: Case, index: Index) -> list[Found]:
    def first_only(segments: Any, alive: Any) -> Any:
        firsts = [np.diff(segment.row_documents, prepend=-1) != 0 for segment in segments]
        return whole(segments, [a & f for a, f in zip(alive, firsts, strict=True)])

    whole = reranker.merge_segments
    with patch.object(reranker, "merge_segments", first_only):
        return from_index(case, index)


@pytest.mark.parametrize(
    "wrong", [stores_otherwise, cuts_off, drops_zeros, settles_ties_by_the_run, loses_chunks]
)
def test_a_wrong_reranker_is_caught(wrong: Way) -> None:
    options = settings(
        max_examples=400,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )
    found = find(cases(), lambda case: not agrees(case, wrong), settings=options)
    assert agrees(found, from_index)
    assert agrees(found, from_corpus)
    with pytest.raises(NoSuchExample):
        find(cases(), lambda case: not agrees(case, from_index), settings=settings(options, max_examples=8))


# ---- the ways in Python


@pytest.fixture
def small(tmp_path: Path) -> Index:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add([Document("a", "river bank"), Document("b", "money"), Document("c", "steep river")])
    return index


def test_mistakes_in_python_are_named(small: Index) -> None:
    with pytest.raises(InputError, match="no document has the id 'nobody'"):
        small.rerank("river", ["a", "nobody"])
    with pytest.raises(InputError, match="duplicate candidate 'a' for one query"):
        small.rerank("river", ["a", "b", "a"])
    with pytest.raises(InputError, match="got one id; expected a list of ids"):
        small.rerank("river", "a")
    with pytest.raises(InputError, match="got 2 queries but candidates for 1"):
        small.rerank_many(["river", "bank"], [["a"]])
    with pytest.raises(InputError, match="'q' has candidates but no text"):
        rerank(HashEncoder(), {}, {"q": ["a"]}, [])
    twice = [Document("a", "river"), Document("x", "steep"), Document("a", "bank")]
    with pytest.raises(DuplicateId, match="document 1 and document 3"):
        rerank(HashEncoder(), {"q": "river"}, {"q": ["a"]}, twice)
    assert rerank(HashEncoder(), {"q": "river"}, {"q": ["x"]}, twice).rows["q"][0][0] == "x", (
        "only candidates"
    )


def test_nothing_to_rerank(small: Index) -> None:
    assert small.rerank("river", []) == []
    assert small.rerank_many([], []) == []
    assert [(hit.doc_id, hit.score) for hit in small.rerank("  ", ["c", "a"])] == [("a", 0.0), ("c", 0.0)]
    assert rerank(HashEncoder(), {}, {}, []).rows == {}


def test_only_candidates_are_encoded_and_each_once() -> None:
    class Counting(HashEncoder):
        def encode_documents(self, texts: Any) -> Any:
            return super().encode_documents(seen.append(text) or text for text in texts)

    seen: list[str] = []
    heard: list[int] = []
    scored: list[int] = []
    documents = [Document(f"d{i}", WORDS[i % 20]) for i in range(200)]
    candidates = {f"q{n}": [f"d{i}" for i in range(n, 40 + n)] for n in range(5)}
    found = rerank(
        Counting(), dict.fromkeys(candidates, "river bank"), candidates, documents,
        block_rows=7, encoded=heard.append, scored=scored.append,
    )  # fmt: skip
    assert len(seen) == sum(heard) == 44
    assert sum(scored) == 200
    assert found.missing == ()


@pytest.mark.parametrize("by", ["coil", "bm25", "dense", "hybrid"])
def test_candidates_without_text_are_skipped_and_count_for_nothing(by: By) -> None:
    """As in an index: such a document would have a sentence vector, and statistics would count it."""
    documents = [Document("a", "river bank"), Document("b", "bank")]
    empty = [Document("none", ""), Document("space", " \n"), Document("invisible", "\u200b\ufeff")]
    asked = {"q": "river bank"}, {"q": ["none", "a", "space", "b", "invisible"]}
    found = rerank(HashEncoder(), *asked, [empty[0], *documents, *empty[1:]], by=by)
    assert found.rows == rerank(HashEncoder(), *asked, documents, by=by).rows
    assert [doc_id for doc_id, _ in found.rows["q"]] == ["a", "b"]
    assert found.missing == ("none", "space", "invisible")


# ---- the verb


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rerank")
    lines = [
        ("river", "The bank of the river was steep, and kingfishers nested in it."),
        ("money", "The bank raised its interest rates."),
        ("otter", "Otters live in holes beside a stream."),
        ("long", "Filler words come first. " * 150 + "The steep bank of the river comes last."),
        ("other", "Nobody asked for this."),
    ]
    (folder / "corpus.tsv").write_text("".join(f"{doc_id}\t{text}\n" for doc_id, text in lines))
    (folder / "queries.tsv").write_text("q1\tsteep river bank\nq2\tinterest\nunused\tnothing\n")
    ranked = {"q1": ["otter", "money", "long", "river"], "q2": ["river", "gone", "money"]}
    (folder / "in.trec").write_text(
        "".join(
            f"{q} Q0 {doc_id} {r} {-r} bm25\n" for q, ids in ranked.items() for r, doc_id in enumerate(ids, 1)
        )
    )
    assert run(["index", str(folder / "corpus.tsv"), "--out", str(folder / "a.coil")]) == 0
    return folder


def test_both_ways_of_the_verb_write_the_same_run(files: Path, tmp_path: Path, capsys: Output) -> None:
    common = ["--queries", str(files / "queries.tsv"), "--run", str(files / "in.trec")]
    for more in ([], ["--by", "tokens"], ["--by", "bm25"], ["--by", "hybrid"], ["-k", "2"]):
        outs = []
        for name, given_ in (("corpus", "corpus.tsv"), ("index", "a.coil")):
            out = tmp_path / f"{name}.trec"
            assert run(["rerank", f"--{name}", str(files / given_), *common, "--out", str(out), *more]) == 0
            outs.append(out.read_text())
            told = capsys.readouterr()
            assert told.out == ""
            assert "1 candidate is not in" in told.err
            assert "'gone'" in told.err
            assert f"{3 if '-k' in more else 6} candidates for 2 queries" in told.err
        assert outs[0] == outs[1]
        reranked = read_run(tmp_path / "index.trec")
        if "-k" in more:
            assert {q: list(found) for q, found in reranked.items()} == {
                "q1": ["money", "otter"],
                "q2": ["river"],
            }
            continue
        assert list(reranked["q1"])[:2] == ["river", "long"]
        assert list(reranked["q2"]) == ["money", "river"]
        with open_index(files / "a.coil") as index:
            by: Any = more[-1] if more else "coil"
            hits = index.search("steep river bank", by=by)
        assert reranked["q1"] == {**dict.fromkeys(reranked["q1"], 0.0)} | {
            hit.doc_id: hit.score for hit in hits if hit.doc_id in reranked["q1"]
        }
        assert (reranked["q1"]["otter"] == 0.0) == (by in ("tokens", "bm25"))


def test_the_columns_of_a_table_are_named_as_for_an_index(files: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    lines = [line.split("\t") for line in (files / "corpus.tsv").read_text().splitlines()]
    table.write_text("url,topic,words,text\n" + "".join(f'{i},A title,"{t}",not this\n' for i, t in lines))
    columns = ["--id-column", "url", "--text-column", "words", "--title-column", "topic"]
    assert run(["index", str(table), "--out", str(tmp_path / "t.coil"), *columns]) == 0
    common = ["--queries", str(files / "queries.tsv"), "--run", str(files / "in.trec")]
    outs = [tmp_path / name for name in ("index.trec", "corpus.trec", "untitled.trec")]
    assert run(["rerank", "--index", str(tmp_path / "t.coil"), *common, "--out", str(outs[0])]) == 0
    assert run(["rerank", "--corpus", str(table), *common, "--out", str(outs[1]), *columns]) == 0
    assert run(["rerank", "--corpus", str(table), *common, "--out", str(outs[2]), *columns[:4]]) == 0
    assert outs[0].read_text() == outs[1].read_text() != outs[2].read_text()


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        ([], 2, "Pass --corpus CORPUS or --index INDEX."),
        (["--corpus", "{f}/corpus.tsv", "--index", "{f}/a.coil"], 2, "Pass --corpus CORPUS or --index"),
        (["--index", "{f}/a.coil", "--precision", "int8"], 2, "--precision requires --corpus"),
        (["--index", "{f}/a.coil", "--long", "chunk"], 2, "--long requires --corpus"),
        (["--index", "{f}/a.coil", "--id-column", "url"], 2, "--id-column requires --corpus"),
        (["--index", "{f}/a.coil", "--text-column", "a"], 2, "--text-column requires --corpus"),
        (["--index", "{f}/a.coil", "--title-column", "t"], 2, "--title-column requires --corpus"),
        (["--corpus", "{f}/corpus.tsv", "--id-column", "url"], 1, "has no column 'url'"),
        (["--index", "{f}/a.coil", "--model", "m"], 1, "'m' is neither a folder nor"),
        (["--corpus", "{f}/none.tsv"], 1, "none.tsv"),
        (["--index", "{f}/none.coil"], 1, "there is no index"),
        (["--corpus", "{f}/corpus.tsv", "--run", "{f}/none.trec"], 1, "none.trec"),
        (["--corpus", "{f}/corpus.tsv", "--run", "{t}/empty"], 1, "contains no candidates"),
        (["--corpus", "{f}/corpus.tsv", "--run", "{t}/unasked"], 1, "1 query is in"),
        (["--corpus", "{f}/corpus.tsv", "--run", "{t}/foreign"], 1, "contains none of the 2 candidates"),
        (["--index", "{f}/a.coil", "--run", "{t}/foreign"], 1, "contains none of the 2 candidates"),
        (["--corpus", "{f}/corpus.tsv", "--run", "{t}/twice"], 1, "duplicate document 'river' for query"),
        (["--corpus", "{f}/corpus.tsv", "--corpus", "{f}/corpus.tsv"], 1, "corpus.tsv, line 1 and "),
        (["--corpus", "{f}/corpus.tsv", "--out", "{t}/no/where"], 1, "cannot be written"),
    ],
)
def test_mistakes_are_told_in_one_line(
    files: Path, tmp_path: Path, capsys: Output, arguments: list[str], status: int, told: str
) -> None:
    (tmp_path / "empty").write_text("")
    (tmp_path / "unasked").write_text("q1 Q0 river 1 1 x\nq9 Q0 river 1 1 x\n")
    (tmp_path / "foreign").write_text("q1 Q0 A 1 1 x\nq1 Q0 B 2 0 x\n")
    (tmp_path / "twice").write_text("q1 Q0 river 1 1 x\nq1 Q0 river 2 0 x\n")
    out = tmp_path / "out.trec"
    usual = ["--queries", "{f}/queries.tsv", "--run", "{f}/in.trec", "--out", str(out)]
    assert run(["rerank", *(a.format(f=files, t=tmp_path) for a in [*usual, *arguments])]) == status
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert not out.exists()
