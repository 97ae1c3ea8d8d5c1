"""PyTerrier and MTEB run experiments with an index, and get the scores of a search."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coil
from coil.errors import InputError
from coil.indexes.index import Index
from coil.indexes.opening import create
from tests.hash_encoder import HashEncoder
from tests.serving import running
from tests.tiny import random_texts

TEXTS = {f"d{n}": text for n, text in enumerate(random_texts(30, longest=20, seed=3, shortest=3))}
QUERIES = {"q1": "river bank", "q2": "cancel a long task", "q3": "money +loan -bank", "q4": "zzz"}


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with create(tmp_path_factory.mktemp("experiments") / "docs.coil", encoder=HashEncoder()) as index:
        index.add({"docno": doc_id, "text": text} for doc_id, text in TEXTS.items())
        yield index


@pytest.fixture(scope="module")
def pt() -> Any:
    return pytest.importorskip("pyterrier")


@pytest.fixture
def topics(pt: Any) -> Any:
    import pandas as pd

    return pd.DataFrame({"qid": list(QUERIES), "query": list(QUERIES.values()), "kept": 5})


def rows(frame: Any) -> list[tuple[str, str, float, int]]:
    return list(zip(frame["qid"], frame["docno"], frame["score"], frame["rank"], strict=True))


def test_pyterrier_retrieves_what_a_search_finds(pt: Any, index: Index, topics: Any) -> None:
    from coil.adapters.pyterrier import CoilRetriever

    retriever = CoilRetriever(index, k=7)
    found = retriever(topics)
    expected = [
        (qid, hit.doc_id, hit.score, hit.rank - 1)
        for qid, query in QUERIES.items()
        for hit in index.search(query, k=7, plain=True)
    ]
    assert rows(found) == expected
    assert set(found["kept"]) == {5}
    assert rows((retriever % 2)(topics)) == [row for row in expected if row[3] < 2]
    assert "k=2" in repr((retriever % 2).compile())
    texts = CoilRetriever(index, k=1, texts=True).search("river bank")
    assert texts["text"].tolist() == [index[texts["docno"][0]].text]
    assert not pt.java.started()


def test_pyterrier_reranks_with_the_scores_of_a_search(pt: Any, index: Index, topics: Any) -> None:
    from coil.adapters.pyterrier import CoilReranker, CoilRetriever

    candidates = CoilRetriever(index, k=8, by="bm25")(topics)
    reranked = (CoilRetriever(index, k=8, by="bm25") >> CoilReranker(index))(topics)
    assert set(zip(reranked["qid"], reranked["docno"], strict=True)) == set(
        zip(candidates["qid"], candidates["docno"], strict=True)
    )
    score_of = {
        (qid, hit.doc_id): hit.score
        for qid, query in QUERIES.items()
        for hit in index.search(query, k=100, plain=True)
    }
    assert [score_of[qid, doc_id] for qid, doc_id, _, _ in rows(reranked)] == reranked["score"].tolist()
    for _, of_query in reranked.groupby("qid"):
        assert of_query["rank"].tolist() == list(range(len(of_query)))
        assert of_query["score"].is_monotonic_decreasing
    assert set(reranked["kept"]) == {5}


def test_pyterrier_experiments_accept_both(pt: Any, index: Index, topics: Any) -> None:
    import pandas as pd

    from coil.adapters.pyterrier import CoilReranker, CoilRetriever

    relevant = {qid: index.search(query, k=1, plain=True)[0].doc_id for qid, query in QUERIES.items()}
    qrels = pd.DataFrame({"qid": list(relevant), "docno": list(relevant.values()), "label": 1})
    bm25 = CoilRetriever(index, by="bm25")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*Validation.*")
        table = pt.Experiment(
            [bm25, bm25 >> CoilReranker(index), CoilRetriever(index)], topics, qrels, ["recip_rank"]
        )
    assert table["recip_rank"].iloc[2] == 1.0
    assert table["recip_rank"].iloc[0] < 1.0
    assert table["name"].tolist()[0] == repr(bm25)
    assert pt.inspect.transformer_outputs(bm25 >> CoilReranker(index), ["qid", "query"]) == [
        "qid", "query", "docno", "score", "rank",
    ]  # fmt: skip


def test_pyterrier_drops_unknown_documents_with_a_warning(pt: Any, index: Index) -> None:
    import pandas as pd

    from coil.adapters.pyterrier import CoilReranker

    asked = pd.DataFrame(
        {"qid": "q1", "query": "river bank", "docno": ["d1", "nowhere"], "score": [2.0, 1.0]}
    )
    with pytest.warns(UserWarning, match="dropped results that are not in .*: 'nowhere'"):
        assert CoilReranker(index)(asked)["docno"].tolist() == ["d1"]
    with pytest.raises(InputError, match="has none of the 1 candidates"):
        CoilReranker(index)(asked[1:])
    with (
        running([index.folder], encoder=HashEncoder()) as server,
        coil.connect(server.url) as client,
        pytest.raises(InputError, match="servers do not rerank"),
    ):
        CoilReranker(client)(asked)


def test_pyterrier_refuses_frames_of_another_kind(pt: Any, index: Index, topics: Any) -> None:
    from coil.adapters.pyterrier import CoilReranker, CoilRetriever

    with pytest.raises(pt.validate.InputValidationError):
        CoilReranker(index)(topics)
    with pytest.raises(pt.validate.InputValidationError):
        CoilRetriever(index)(topics.drop(columns=["query"]))


# ---- MTEB


def make_task(corpus: list[dict[str, str]], queries: list[dict[str, Any]], top_ranked: Any = None) -> Any:
    """A retrieval task of MTEB over these texts, without a download."""
    from datasets import Dataset
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    nothing = dict.fromkeys(
        ("date", "domains", "task_subtypes", "license", "annotations_creators", "dialect",
         "sample_creation", "bibtex_citation", "reference")
    )  # fmt: skip

    class Notes(AbsTaskRetrieval):  # type: ignore[misc]
        metadata = TaskMetadata(
            name="Notes",
            description="A few texts.",
            dataset={"path": "none", "revision": "1"},
            type="Retrieval",
            category="t2t",
            modalities=["text"],
            eval_splits=["test"],
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
            **nothing,
        )

        def load_data(self, num_proc: int | None = None, **kwargs: Any) -> None:
            split = {
                "corpus": Dataset.from_list(corpus),
                "queries": Dataset.from_list(queries),
                "relevant_docs": {query["id"]: {query["relevant"]: 1} for query in queries},
                "top_ranked": top_ranked,
            }
            self.dataset = {"default": {"test": split}}
            self.data_loaded = True

    return Notes()


def test_mteb_evaluates_a_local_task(tmp_path: Path) -> None:
    mteb = pytest.importorskip("mteb")
    from coil.adapters.mteb import CoilSearch

    encoder = HashEncoder()
    model = CoilSearch(encoder=encoder)
    assert isinstance(model, mteb.SearchProtocol)
    with create(tmp_path / "same.coil", encoder=HashEncoder()) as same:
        same.add({"id": doc_id, "text": text, "title": ""} for doc_id, text in TEXTS.items())
        ranks = {"q1": 0, "q2": 1, "q3": 4}  # where the relevant document is
        found = {qid: same.search(QUERIES[qid], k=10, plain=True) for qid in ranks}
        queries = [
            {"id": qid, "text": QUERIES[qid], "relevant": found[qid][place].doc_id}
            for qid, place in ranks.items()
        ]
    corpus = [{"id": doc_id, "title": "", "text": text} for doc_id, text in TEXTS.items()]
    results = mteb.evaluate(model, make_task(corpus, queries), cache=None, co2_tracker=False)
    [scores] = results.task_results[0].scores["test"]
    assert scores["mrr_at_10"] == pytest.approx((1 + 1 / 2 + 1 / 5) / 3, abs=1e-4)
    assert (results.model_name, results.model_revision) == ("coil-ir/default", encoder.fingerprint)

    candidates = {qid: ["d3", "d1", "d2"] for qid in ranks}
    reranked = model.search([{"id": "q1", "text": QUERIES["q1"]}], top_k=3, top_ranked=candidates)
    assert set(reranked["q1"]) == {"d1", "d2", "d3"}
    assert list(reranked["q1"].values()) == sorted(reranked["q1"].values(), reverse=True)
    model.close()
    with pytest.raises(InputError, match="call `index` before `search`"):
        model.search([], top_k=3)


def test_mteb_tasks_with_other_queries_are_refused() -> None:
    pytest.importorskip("mteb")
    from coil.adapters.mteb import CoilSearch

    model = CoilSearch(encoder=HashEncoder())
    model.index([{"id": "a", "text": "river"}, {"id": "b", "text": ""}])
    with pytest.raises(InputError, match="the query 'q' is a list; expected a string"):
        model.search([{"id": "q", "text": ["hello", "river?"]}], top_k=3)
    asked = [{"id": "q", "text": "river", "instruction": "bank"}]
    assert list(model.search(asked, top_k=3)["q"]) == ["a"]
    assert model.search(asked, top_k=3, top_ranked={"q": ["b", "a"]})["q"]["b"] == 0.0
    model.close()
