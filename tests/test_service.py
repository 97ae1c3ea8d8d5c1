"""The service over HTTP: every address answers what the library answers."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
import pytest

from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.service.limits import ServiceOptions
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import PROFILE, WORDS

ONE = "/v1/indexes/notes"
WRITE = {"Authorization": f"Bearer {TOKEN}"}


def build(folder: Path, n: int = 40, seed: int = 1, encoder: Encoder | None = None) -> Path:
    rng = random.Random(seed)
    with create(folder, encoder=encoder or HashEncoder()) as index:
        index.add(
            Document(f"d/{i}", " ".join(rng.choices(WORDS, k=12)), {"year": 2000 + i}) for i in range(n)
        )
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One that only reads."""
    folder = tmp_path_factory.mktemp("served")
    with running([build(folder / "notes.coil"), build(folder / "papers", 5)], encoder=HashEncoder()) as found:
        yield found


@pytest.fixture(scope="module")
def library(server: Running) -> Index:
    return open_index(server.service.served["notes"].index.folder, encoder=HashEncoder())


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One whose model weighs no words, and matches wordpieces."""
    encoder = HashEncoder(profile=PROFILE)
    folder = build(tmp_path_factory.mktemp("paper") / "notes.coil", encoder=encoder)
    with running([folder], encoder=encoder) as found:
        yield found


@pytest.fixture(scope="module")
def weighed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One whose model weighs words and tells what each sentence adds."""
    folder, encoder = tmp_path_factory.mktemp("weighed") / "notes.coil", SummingEncoder()
    build(folder, encoder=encoder)
    with open_index(folder, encoder=encoder) as index:
        text = "The river bank is steep. Nobody\nasked why. Money is in the bank!"
        index.add([Document("sentences", text, {"year": 2000})])
    with running([folder], encoder=encoder) as found:
        yield found


@pytest.fixture
def writable(tmp_path: Path) -> Iterator[Running]:
    with running([build(tmp_path / "notes.coil")], ServiceOptions(token=TOKEN), HashEncoder()) as found:
        yield found


def same_hits(answer: dict, index: Index, query: str, **how: Any) -> None:
    names = ("rank", "doc_id", "score", "share", "text", "fields", "chunk", "context")
    expected = [{name: getattr(hit, name) for name in names} for hit in index.search(query, **how)]
    assert answer["query"] == query
    assert answer["by"] == how.get("by", "coil")
    assert [{**hit, "chunk": tuple(hit["chunk"])} for hit in answer["hits"]] == expected


def test_names_and_facts(server: Running) -> None:
    found = server.client.get("/v1/indexes").json()["indexes"]
    assert found == [
        {"name": "notes", "documents": 40, "default": True, "writable": False},
        {"name": "papers", "documents": 5, "default": False, "writable": False},
    ]
    facts = server.client.get(ONE).json()
    assert facts["documents"] == 40
    assert facts["model"]["name"] == "bundled"
    assert facts["precision"] == "int8"
    assert "folder" not in facts


def test_search_equals_the_library(server: Running, library: Index) -> None:
    got = server.client.get(f"{ONE}/search", params={"q": "river bank", "k": 7})
    assert got.headers["content-type"] == "application/json"
    same_hits(got.json(), library, "river bank", k=7)
    asked = {"query": "money loan", "k": 5, "filter": "year >= 2010", "by": "tokens"}
    got = server.client.post(f"{ONE}/search", json=asked)
    same_hits(got.json(), library, "money loan", k=5, filter="year >= 2010", by="tokens")
    stats = got.json()["stats"]
    assert stats["mentions_scored"] > 0
    assert stats["filter_ms"] > 0
    parts = stats["filter_ms"] + stats["encode_ms"] + stats["score_ms"] + stats["fetch_ms"]
    assert stats["total_ms"] == pytest.approx(parts)
    without = server.client.get(f"{ONE}/search", params={"q": "river", "stats": False}).json()
    assert "stats" not in without
    assert server.client.get(f"{ONE}/search", params={"q": " "}).json()["hits"] == []
    other = server.client.get("/v1/indexes/papers/search", params={"q": "river", "k": 100}).json()
    assert len(other["hits"]) == 5


def test_matches_sum_to_the_score(server: Running) -> None:
    query = "the river bank of money"
    answer = server.client.get(f"{ONE}/search", params={"q": query, "k": 5, "matches": True}).json()
    assert [token["text"] for token in answer["query_tokens"]] == query.split()
    assert {token["status"] for token in answer["query_tokens"]} <= {"listed", "without_list"}
    for hit in answer["hits"]:
        total = sum(match["contribution"] for match in hit["matches"]) + hit["sentence"]
        assert total == pytest.approx(hit["score"], abs=1e-4)
        assert hit["share"] == pytest.approx(hit["score"] / answer["own_score"])
        for match in hit["matches"]:
            start, end = match["document_span"]
            assert hit["text"][start:end] == match["document_token"]
            start, end = match["query_span"]
            assert query[start:end] == match["query_token"]
            assert all(other["similarity"] <= match["similarity"] for other in match["runner_ups"])
        named = len(hit["matches"]) + len(hit["unmatched"]) + len(hit["without_list"])
        assert named == len(answer["query_tokens"])
    bare = server.client.get(f"{ONE}/search", params={"q": query}).json()
    assert bare["own_score"] == answer["own_score"]
    assert [hit["share"] for hit in bare["hits"][:5]] == [hit["share"] for hit in answer["hits"]]
    assert all("matches" not in hit for hit in bare["hits"])
    tok = server.client.get(f"{ONE}/search", params={"q": query, "matches": True, "by": "tokens"}).json()
    assert all(hit["sentence"] is None for hit in tok["hits"])


def test_the_querys_own_text_as_a_document_has_a_share_of_one(writable: Running) -> None:
    line = json.dumps({"id": "same", "text": "river bank money"})
    assert writable.client.post(f"{ONE}/documents", content=line, headers=WRITE).status_code == 200
    params = {"q": "river bank money", "k": 100, "matches": True}
    answer = writable.client.get(f"{ONE}/search", params=params).json()
    hit = next(hit for hit in answer["hits"] if hit["doc_id"] == "same")
    assert hit["share"] == pytest.approx(1.0, abs=0.02)  # stored in eight bits


def test_batch_in_order(server: Running, library: Index) -> None:
    queries = ["river bank", "", "money", "river bank"]
    got = server.client.post(f"{ONE}/search_batch", json={"queries": queries, "k": 3}).json()
    for query, answer in zip(queries, got["answers"], strict=True):
        same_hits(answer, library, query, k=3)


@pytest.mark.parametrize("by", get_args(By))
@pytest.mark.parametrize("name", ["paper", "weighed"])
def test_one_index_answers_as_five_systems(request: pytest.FixtureRequest, name: str, by: By) -> None:
    served: Running = request.getfixturevalue(name)
    index = served.service.served["notes"].index
    query, how = "steep river bank of money", {"k": 4, "filter": "year < 2030", "by": by}
    got = served.client.get(f"{ONE}/search", params={"q": query, **how}).json()
    same_hits(got, index, query, **how)
    assert len(got["hits"]) == 4
    assert served.client.post(f"{ONE}/search", json={"query": query, **how}).json()["hits"] == got["hits"]
    [answer] = served.client.post(f"{ONE}/search_batch", json={"queries": [query], **how}).json()["answers"]
    assert (answer["hits"], answer["by"]) == (got["hits"], by)
    for hit in got["hits"]:
        asked = {"q": query, "doc_id": hit["doc_id"], "by": by}
        told = served.client.get(f"{ONE}/explain", params=asked).json()
        assert told["by"] == by
        assert told["score"] == pytest.approx(hit["score"], abs=1e-4)
        assert told["own_score"] == got["own_score"]


@pytest.mark.parametrize("by", get_args(By))
def test_matches_carry_what_a_contribution_is_made_of(weighed: Running, by: By) -> None:
    query = "steep river bank of money money"
    asked = {"q": query, "k": 5, "matches": True, "by": by}
    answer = weighed.client.get(f"{ONE}/search", params=asked).json()
    rows = weighed.client.get(ONE).json()["rows"]
    statuses = {token["text"]: token["status"] for token in answer["query_tokens"]}
    compared = {"river": "listed", "of": "without_list"}
    expected = compared if by != "dense" else dict.fromkeys(compared, "not_compared")
    assert {word: statuses[word] for word in compared} == expected
    for hit in answer["hits"]:
        parts = [match["contribution"] for match in hit["matches"]] + [hit["sentence"] or 0.0]
        assert sum(parts) == pytest.approx(hit["score"], abs=1e-4)
        assert (hit["sentence"] is None) == (by in ("tokens", "bm25"))
        assert (by == "dense") == (hit["matches"] == [])
        assert "sentence_parts" not in hit  # its text would have to be encoded for them
        for match in hit["matches"]:
            product = match["rarity"] * match["factor"] * match["fit"]
            assert match["contribution"] == pytest.approx(product)
            assert match["count"] == 1 + len(match["runner_ups"])
            assert 0 < match["rows_with"] <= rows
            assert all(other["fit"] <= match["fit"] for other in match["runner_ups"])
            assert (match["fit"] == 1.0) == (by in ("bm25", "hybrid"))


def test_explanations_say_which_sentences_speak(weighed: Running) -> None:
    asked = {"q": "steep river bank", "doc_id": "sentences"}
    told = weighed.client.get(f"{ONE}/explain", params=asked).json()
    text = weighed.client.get(f"{ONE}/documents/sentences").json()["text"]
    spoken = [part for part in told["sentence_parts"] if part["span"] is not None]
    written = [" ".join(text[slice(*part["span"])].split()) for part in spoken]
    assert written == [part["text"] for part in spoken]
    assert len(spoken) == 3
    total = sum(part["contribution"] for part in told["sentence_parts"])
    assert total == pytest.approx(told["sentence"])
    bm25 = weighed.client.get(f"{ONE}/explain", params={**asked, "by": "bm25"}).json()
    assert (bm25["sentence"], bm25["sentence_parts"]) == (None, [])
    assert told["rows"] == bm25["rows"] == weighed.client.get(ONE).json()["rows"]


def test_hits_below_a_score_or_share_are_left_out(server: Running, library: Index) -> None:
    everything = library.search("river bank", k=40)
    fifth = everything[4]
    assert fifth.share is not None
    for least in ({"min_score": fifth.score}, {"min_share": fifth.share}):
        answer = server.client.get(f"{ONE}/search", params={"q": "river bank", "k": 40, **least}).json()
        assert [hit["doc_id"] for hit in answer["hits"]] == [hit.doc_id for hit in everything[:5]]
        body = {"queries": ["river bank"], "k": 40, **least}
        [same] = server.client.post(f"{ONE}/search_batch", json=body).json()["answers"]
        assert same["hits"] == answer["hits"]
    none = server.client.post(f"{ONE}/search", json={"query": "river", "min_share": 100}).json()
    assert none["hits"] == []


def test_explain_and_versus(server: Running, library: Index) -> None:
    expected = json.loads(json.dumps(library.explain("river bank", "d/3").to_json()))
    asked = {"q": "river bank", "doc_id": "d/3"}
    body = {"query": "river bank", "doc_id": "d/3"}
    assert server.client.get(f"{ONE}/explain", params=asked).json() == expected
    assert server.client.post(f"{ONE}/explain", json=body).json() == expected
    both = server.client.post(f"{ONE}/explain", json={**body, "versus": "d/4"}).json()
    assert both["first"] == expected
    assert both["second"]["doc_id"] == "d/4"
    tok = server.client.get(f"{ONE}/explain", params={**asked, "by": "tokens"}).json()
    assert tok["sentence"] is None
    missing = server.client.get(f"{ONE}/explain", params={**asked, "doc_id": "nobody"})
    assert (missing.status_code, missing.json()["detail"]) == (404, "no document has the id 'nobody'")


def test_documents_come_and_go(writable: Running) -> None:
    client = writable.client
    assert client.get(f"{ONE}/documents/d/3").json()["doc_id"] == "d/3"
    lines = [
        {"id": "new/ä b", "text": "mountain airport", "tag": "x"},
        {"id": "d/3", "text": "replaced text"},
    ]
    body = "\n\n".join(json.dumps(line) for line in lines).encode()
    got = client.post(f"{ONE}/documents", content=body, headers=WRITE)
    assert got.json() == {"added": 2, "empty": [], "documents": 41}
    hits = client.get(f"{ONE}/search", params={"q": "mountain airport", "k": 50, "by": "tokens"}).json()
    assert "new/ä b" in [hit["doc_id"] for hit in hits["hits"]]  # found at once
    assert client.get(f"{ONE}/documents/d/3").json()["text"] == "replaced text"
    assert client.get(f"{ONE}/documents/new%2F%C3%A4%20b").json()["fields"] == {"tag": "x"}
    assert client.request("DELETE", f"{ONE}/documents/new/ä b", headers=WRITE).json()["deleted"] == 1
    assert client.get(f"{ONE}/documents/new/ä b").status_code == 404
    assert client.request("DELETE", f"{ONE}/documents/new/ä b", headers=WRITE).status_code == 404
    asked = {"doc_ids": ["nobody", "d/1", "d/2", "d/1", "nobody", "no\ud800body"]}
    body = json.dumps(asked).encode()
    json_body = {**WRITE, "Content-Type": "application/json"}
    got = client.request("DELETE", f"{ONE}/documents", content=body, headers=json_body).json()
    assert got == {"deleted": 2, "missing": ["nobody", "no\ufffdbody"], "documents": 38}
    got = client.request("DELETE", f"{ONE}/documents", json={"doc_ids": ["d/4"]}, headers=WRITE).json()
    assert got == {"deleted": 1, "missing": [], "documents": 37}
    assert client.get("/v1/indexes").json()["indexes"][0]["documents"] == 37


def test_documents_without_text_are_named_in_the_answer(writable: Running) -> None:
    lines = [{"id": "a", "text": " "}, {"id": "b", "text": "river"}, {"id": "d/3", "title": "", "text": None}]
    body = "\n".join(json.dumps(line) for line in lines).encode()
    got = writable.client.post(f"{ONE}/documents", content=body, headers=WRITE)
    assert got.json() == {"added": 1, "empty": ["a", "d/3"], "documents": 40}
    assert writable.client.get(f"{ONE}/documents/d/3").status_code == 404
    found = writable.client.get("/openapi.json").json()["components"]["schemas"]["AddedOut"]
    assert "empty" in found["required"]


def test_a_bad_line_writes_nothing(writable: Running) -> None:
    for bad, said in (("{", "invalid JSON"), ("[1]", "expected a JSON object"), ('{"id": "x"}', "no text")):
        body = '{"id": "good", "text": "river"}\n' + bad
        got = writable.client.post(f"{ONE}/documents", content=body, headers=WRITE)
        assert got.status_code == 422
        assert got.json()["detail"].startswith("the body, line 2")
        assert said in got.json()["detail"]
    body = '{"id": "good", "text": "river"}\n{"id": "x", "text": "café"}'.encode("latin-1")
    got = writable.client.post(f"{ONE}/documents", content=body, headers=WRITE)
    assert (got.status_code, got.json()["detail"]) == (422, "the body, line 2: not UTF-8")
    assert writable.client.get(f"{ONE}/documents/good").status_code == 404
    got = writable.client.post(f"{ONE}/documents", content=b"\xef\xbb\xbf\n", headers=WRITE)
    assert got.json() == {"added": 0, "empty": [], "documents": 40}


def test_health_ready_metrics_docs(server: Running) -> None:
    client = server.client
    assert client.get("/health").json() == {"status": "alive"}
    assert client.get("/ready").json() == {"status": "ready"}
    client.get(f"{ONE}/search", params={"q": "river"})
    client.get(f"{ONE}/search", params={"q": "river", "filter": "("})
    text = client.get("/metrics").text
    for line in (
        'coil_search_seconds_bucket{index="notes",le="0.001",part="encode"}',
        'coil_search_seconds_count{index="notes",part="score"}',
        'coil_search_seconds_count{index="notes",part="fetch"}',
        'coil_search_seconds_count{index="notes",part="total"}',
        'coil_queries_total{index="notes"}',
        'coil_mentions_scored_total{index="notes"}',
        'coil_mentions_skipped_total{index="notes"}',
        "coil_queue_length 0.0",
        "coil_requests_in_flight 1.0",
        "coil_writes_waiting 0.0",
        'coil_errors_total{kind="bad_input"} 1.0',
        'route="/v1/indexes/{name}/search"',
    ):
        assert line in text, line
    page = client.get("/docs")
    paths = client.get("/openapi.json").json()["paths"]
    assert all(f"{m.upper()} {path}" in page.text for path, methods in paths.items() for m in methods)
    assert "http://" not in page.text
    assert "https://" not in page.text


def test_the_page_is_served_with_its_types_and_can_be_kept(server: Running) -> None:
    front = server.client.get("/")
    assert front.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'self'" in front.headers["content-security-policy"]
    again = server.client.get("/", headers={"If-None-Match": front.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    script = server.client.get("/page/page.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert server.client.get("/page/nothing.js").status_code == 404


def test_problems_are_told_alike(server: Running) -> None:
    for method, path, status in (
        ("GET", "/nowhere", 404),
        ("GET", "/v1/indexes/nobody", 404),
        ("PUT", "/v1/indexes", 405),
        ("GET", f"{ONE}/search", 422),
        ("GET", f"{ONE}/search?q=a&k=x", 422),
        ("GET", f"{ONE}/search?q=a&k=0", 422),
        ("GET", f"{ONE}/search?q=a&filter=year+%3E", 422),
        ("GET", f"{ONE}/documents/nobody", 404),
    ):
        got = server.client.request(method, path)
        assert got.status_code == status, path
        expect_problem(got)
    for body in (b"{", b"[]", b'{"query": 1}', b'{"query": "a", "wish": 1}', b"[" * 100_000, b"1" * 5000):
        got = server.client.post(f"{ONE}/search", content=body, headers={"Content-Type": "application/json"})
        assert 400 <= got.status_code < 500
        expect_problem(got)


def expect_problem(got: httpx.Response) -> None:
    assert got.headers["content-type"] == "application/problem+json"
    value = got.json()
    assert value["status"] == got.status_code
    assert value["request_id"] == got.headers["x-request-id"]
    assert value["title"]
    assert value["detail"]


def test_request_ids_are_taken_over_or_made(server: Running) -> None:
    got = server.client.get("/health", headers={"X-Request-Id": "mine-1"})
    assert got.headers["x-request-id"] == "mine-1"
    odd = server.client.get("/health", headers={"X-Request-Id": "a b\tc"})
    assert odd.headers["x-request-id"] not in ("", "a b\tc")


def test_a_document_is_found_by_an_id_that_is_no_path(tmp_path: Path) -> None:
    ids = [".", "..", "a/../b", "b", "ä &=?#"]
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.add(Document(doc_id, f"river {number}") for number, doc_id in enumerate(ids))
    with running([tmp_path / "notes.coil"], encoder=HashEncoder()) as server:
        for number, doc_id in enumerate(ids):
            got = server.client.get(f"{ONE}/documents", params={"doc_id": doc_id})
            assert got.json() == {"doc_id": doc_id, "text": f"river {number}", "fields": {}}
        missing = server.client.get(f"{ONE}/documents", params={"doc_id": "c"})
        assert (missing.status_code, missing.json()["detail"]) == (404, "no document has the id 'c'")
        without = server.client.get(f"{ONE}/documents")
        assert (without.status_code, without.json()["detail"]) == (422, "the parameter doc_id is missing")
