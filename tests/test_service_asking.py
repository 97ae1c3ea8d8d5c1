"""Operators, pages, sorting, duplicates and suggestions over HTTP are those of the library."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import coil
from coil.errors import SearchTimeout
from coil.indexes.opening import create
from coil.service.answers import suggest_one
from coil.service.limits import ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.serving import Running, running
from tests.test_service import ONE, expect_problem


@pytest.fixture
def server(tmp_path: Path) -> Any:
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        texts = ["the river bank", "money in the bank", "river, bank", "The  river bank", "money river"]
        index.add(
            [
                {"id": str(number), "text": text, "year": 2000 - number, "kind": "note"}
                for number, text in enumerate(texts)
            ]
        )
    with running([tmp_path / "notes.coil"], ServiceOptions(), HashEncoder()) as server:
        yield server


QUERIES = [
    '"river bank"',
    "river -money",
    'river +bank -"the river"',
    "kind:note river",
    "-money",
    "river:bank",
]


@pytest.mark.parametrize("how", [{}, {"offset": 1, "k": 1}, {"sort": "year"}, {"fold_duplicates": True}])
def test_answers_are_those_of_the_library(server: Running, how: dict[str, Any]) -> None:
    index = server.service.served["notes"].index
    for query in QUERIES:
        plain = {"plain": True} if query == "-money" else {}
        expected = [
            (hit.rank, hit.doc_id, hit.score, list(hit.duplicates))
            for hit in index.search(query, **how, **plain)
        ]
        assert expected or how.get("offset")
        for got in (
            server.client.get(f"{ONE}/search", params={"q": query, "matches": True, **how, **plain}),
            server.client.post(f"{ONE}/search", json={"query": query, **how, **plain}),
        ):
            assert got.status_code == 200, got.text
            found = got.json()
            assert expected == [
                (hit["rank"], hit["doc_id"], hit["score"], hit.get("duplicates", [])) for hit in found["hits"]
            ]
            for hit in found["hits"]:
                for match in hit.get("matches", []):
                    assert query[slice(*match["query_span"])] == match["query_token"]
    asked = {"queries": [query for query in QUERIES if query != "-money"], **how}
    answers = server.client.post(f"{ONE}/search_batch", json=asked).json()["answers"]
    for query, answer in zip(asked["queries"], answers, strict=True):
        assert [hit["doc_id"] for hit in answer["hits"]] == [h.doc_id for h in index.search(query, **how)]


def test_an_explanation_has_no_operators(server: Running) -> None:
    params = {"q": 'river "the bank" -money', "doc_id": "0"}
    got = server.client.get(f"{ONE}/explain", params=params).json()
    index = server.service.served["notes"].index
    assert got["score"] == index.explain("river  the bank", "0").score
    assert "money" not in {token["text"] for token in got["unmatched"]}


def test_large_whole_numbers_are_kept_and_sorted_exactly(tmp_path: Path) -> None:
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "0", "text": "river", "n": 2**63 + 1}])
    options = ServiceOptions(token="secret")
    with (
        running([tmp_path / "notes.coil"], options, HashEncoder()) as server,
        coil.connect(server.url, token="secret") as remote,
    ):
        remote.add([{"id": str(n), "text": "river", "n": 2**63 + n} for n in (2, 4)])
        hits = remote.search("river", sort="-n")
        assert [(hit.doc_id, hit.fields["n"] - 2**63) for hit in hits] == [("4", 4), ("2", 2), ("0", 1)]


def test_an_answer_says_whether_all_hits_were_sorted(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(**how: Any) -> Any:
        got = server.client.get(f"{ONE}/search", params={"q": "river", **how}).json()
        with coil.connect(server.url) as remote:
            assert remote.search("river", **how).sorted_best == got.get("sorted_best")
        return got.get("sorted_best")

    assert told(sort="year") is None
    monkeypatch.setattr("coil.hits.paging.SORTED", 4)
    assert told(sort="year") == 4
    assert told() is None
    assert told(sort="year", filter="year > 1997") is None


def test_suggestions(server: Running) -> None:
    got = server.client.get(f"{ONE}/search", params={"q": "rivr -bank", "suggest": True}).json()
    assert got["suggestions"] == [{"word": "rivr", "span": [0, 4], "suggestion": "river"}]
    assert "suggestions" not in server.client.get(f"{ONE}/search", params={"q": "rivr"}).json()
    for query, plain in (("rivr -bank", False), ("kind:rivr", False), ("kind:rivr bnak", True)):
        answer = server.client.get(f"{ONE}/suggest", params={"q": query, "plain": plain}).json()
        with server.service.served["notes"].reading() as index:
            expected = [asdict(found) for found in index.suggest(query, plain)]
        assert [{**of, "span": tuple(of["span"])} for of in answer["suggestions"]] == expected != []


def test_suggestions_end_at_the_time_limit(server: Running) -> None:
    """For each name before a colon, all documents are read; a query has hundreds of names."""
    with server.service.served["notes"].reading() as index, pytest.raises(SearchTimeout):
        suggest_one(index, "bank:river", plain=False, seconds=-1.0)


@pytest.mark.parametrize(
    ("params", "status", "message"),
    [
        ({"q": "-money"}, 422, "only excludes words"),
        ({"q": "river +the"}, 422, "only stop words"),
        ({"q": "river", "sort": "pages"}, 422, "no document has the field 'pages'"),
        ({"q": "river", "sort": "a b"}, 422, "not the name of a field"),
        ({"q": "river", "offset": -1}, 422, "offset"),
        ({"q": "river", "offset": 100_000}, 422, "offset + k exceeds the limit of 100,000"),
        ({"q": "+river " * 51}, 422, "exceeds the limit of 50 conditions"),
    ],
)
def test_what_is_refused(server: Running, params: dict[str, Any], status: int, message: str) -> None:
    got = server.client.get(f"{ONE}/search", params=params)
    expect_problem(got)
    assert got.status_code == status
    assert message in got.json()["detail"]
