"""How a request may look: names, methods and kinds of content, and what is said about those that do not."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from coil.errors import InputError
from coil.service.limits import ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, WRITE, build, expect_problem

OPTIONS = "k, filter, by, min_score, min_share, stats, matches, offset, sort, fold_duplicates, plain, suggest"
SEARCH_PARAMETERS = f"q, {OPTIONS}"
SYSTEMS = "coil, tokens, bm25, dense, hybrid"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as found:
        yield found


def test_a_query_has_one_name_in_addresses_and_one_in_bodies(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    for path in ("search", "explain"):
        operation = document["paths"]["/v1/indexes/{name}/" + path]["get"]
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert "q" in names, path
        assert "query" not in names, path
    for shape in ("SearchRequest", "ExplainRequest", "SearchOut"):
        assert "query" in document["components"]["schemas"][shape]["properties"]
    asked = {"q": "river", "doc_id": "d/1"}
    assert server.client.get(f"{ONE}/explain", params=asked).json()["query"] == "river"


@pytest.mark.parametrize(
    ("method", "path", "unknown", "known"),
    [
        ("GET", "search?q=river&kk=5", "'kk'", SEARCH_PARAMETERS),
        ("GET", "search?query=river", "'query'", SEARCH_PARAMETERS),
        ("GET", "search?q=river&tok_only=true&K=1&K=2", "s 'tok_only', 'K'", SEARCH_PARAMETERS),
        ("GET", "explain?q=river&doc_id=d/1&vs=d/2", "'vs'", "q, doc_id, versus, by, plain"),
        ("GET", "documents/d/1?fields=year", "'fields'", ""),
        ("POST", "search?k=5", "'k'", ""),
        ("DELETE", "documents/d/1?dry_run=true", "'dry_run'", ""),
    ],
)
def test_an_unknown_parameter_is_refused(
    server: Running, method: str, path: str, unknown: str, known: str
) -> None:
    body = {"json": {"query": "river"}} if method == "POST" else {}
    got = server.client.request(method, f"{ONE}/{path}", headers=WRITE, **body)
    assert got.status_code == 422, got.text
    expect_problem(got)
    assert got.json()["detail"].endswith(unknown)
    assert got.json()["remedy"] == (
        f"valid parameters: {known}" if known else "this endpoint takes no parameters"
    )
    assert server.client.get(f"{ONE}/documents/d/1").status_code == 200  # nothing was deleted


@pytest.mark.parametrize(
    ("path", "repeated"),
    [
        ("search?q=river&q=two", "q"),
        ("search?q=river&q=river", "q"),
        ("search?k=1&q=river&k=2&q=", "q, k"),
        ("explain?q=river&doc_id=d/1&doc_id=d/2", "doc_id"),
    ],
)
def test_a_parameter_that_comes_twice_is_refused(server: Running, path: str, repeated: str) -> None:
    got = server.client.get(f"{ONE}/{path}")
    assert got.status_code == 422, got.text
    expect_problem(got)
    assert got.json()["detail"] == f"repeated parameter: {repeated}"
    assert got.json()["remedy"] == f"pass {repeated} only once"


SEARCH_KEYS = f"query, {OPTIONS}"


@pytest.mark.parametrize(
    ("method", "path", "body", "detail", "remedy"),
    [
        ("POST", "search", '{"query": "a", "foo": 1}', "unknown key 'foo'", f"valid keys: {SEARCH_KEYS}"),
        (
            "POST",
            "search",
            '{"q": "a"}',
            "unknown key 'q'; the key query is missing",
            f"use query instead of q; valid keys: {SEARCH_KEYS}",
        ),
        (
            "POST",
            "explain",
            '{"query": "a", "id": "b", "x": 1}',
            "unknown keys 'id', 'x'; the key doc_id is missing",
            "use doc_id instead of id; valid keys: query, doc_id, versus, by, plain",
        ),
        ("POST", "search", "{}", "the key query is missing", "add query"),
        ("POST", "search", "", "the body is empty", f"send one JSON object with {SEARCH_KEYS}"),
        ("POST", "search", "[]", "the body is a list; expected a JSON object", "send one JSON object with"),
        ("POST", "search", "null", "the body is null; expected a JSON object", "send one JSON object with"),
        (
            "POST",
            "search",
            '{"query" "a"}',
            "the body is not JSON: expecting ':' delimiter (character 9)",
            "send one JSON object with",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "k": "x"}',
            "k is the string 'x'; expected a whole number",
            "write k as a whole number, such as 10",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "k": 1.5}',
            "k is 1.5; expected a whole number",
            "write k as a whole",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "k": 1e999}',
            "k is a number out of range; expected a",
            "write k as",
        ),
        ("POST", "search", '{"query": "a", "k": true}', "k is true; expected a whole number", "write k as"),
        ("POST", "search", '{"query": "a", "k": 0}', "k=0 is below the minimum of 1", "use 1 or more"),
        (
            "POST",
            "search",
            '{"query": {}}',
            "query is an object; expected a string",
            "write query as a string",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "stats": 1}',
            "stats is 1; expected true or false",
            "write stats as true or false",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "\\ud800": 1}',
            "a key of the body is not valid Unicode",
            "send one",
        ),
        ("POST", "search", "[" * 9_000, "the body cannot be read as JSON", "send one JSON object in UTF-8"),
        (
            "POST",
            "search",
            '{"query": "a", "by": "splade"}',
            f"by is the string 'splade'; expected one of {SYSTEMS}",
            f"use one of {SYSTEMS}",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "by": 1}',
            f"by is 1; expected one of {SYSTEMS}",
            "use one of coil",
        ),
        (
            "POST",
            "search_batch",
            '{"queries": ["a"], "by": null}',
            "by is null; expected one of",
            "use one of",
        ),
        (
            "POST",
            "explain",
            '{"query": "a", "doc_id": "d/1", "by": "BM25"}',
            "by is the string 'BM25'; expected one of",
            "use one of",
        ),
        (
            "GET",
            "search?q=a&by=colbert",
            "",
            f"by is the string 'colbert'; expected one of {SYSTEMS}",
            "use one",
        ),
        ("GET", "explain?q=a&doc_id=d/1&by=", "", "by is the string ''; expected one of", "use one of"),
        (
            "GET",
            "search?q=a&min_share=half",
            "",
            "min_share is the string 'half'; expected a number",
            "write min",
        ),
        (
            "GET",
            "search?q=a&min_score=nan",
            "",
            "min_score is the string 'nan'; expected a number",
            "write min",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "min_score": 1e999}',
            "min_score is a number out of range; expected a number",
            "write min_score as a number, such as 0.25",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "min_score": "1"}',
            "min_score is the string '1'; expected a",
            "write",
        ),
        (
            "POST",
            "search",
            '{"query": "a", "min_score": 1e300}',
            "min_score is 1e+300; expected a number",
            "omit it",
        ),
        ("POST", "search_batch", '{"queries": []}', "queries is empty", "pass at least 1"),
        (
            "POST",
            "search_batch",
            '{"queries": "a"}',
            "queries is the string 'a'; expected a list of",
            "write queries",
        ),
        (
            "POST",
            "search_batch",
            '{"queries": ["a", null]}',
            "queries[1] is null; expected a string",
            "write queries[1]",
        ),
        (
            "POST",
            "search_batch",
            '{"q": ["a"]}',
            "unknown key 'q'",
            "use queries instead of q; valid keys:",
        ),
        ("DELETE", "documents", '{"id": ["a"]}', "unknown key 'id'", "use doc_ids instead of id; valid keys"),
        ("GET", "search", "", "the parameter q is missing", "add q"),
        (
            "GET",
            "search?q=a&k=x",
            "",
            "k is the string 'x'; expected a whole number",
            "write k as a whole number",
        ),
        ("GET", f"search?q=a&k={'9' * 5000}", "", "k is a number of 5,000 digits", "use a smaller k"),
        (
            "GET",
            "search?q=a&stats=maybe",
            "",
            "stats is the string 'maybe'; expected true or false",
            "write stats",
        ),
    ],
)
def test_a_mistake_is_told_in_plain_words_with_a_remedy(
    server: Running, method: str, path: str, body: str, detail: str, remedy: str
) -> None:
    headers = {**WRITE, "Content-Type": "application/json"}
    got = server.client.request(method, f"{ONE}/{path}", content=body.encode(), headers=headers)
    assert got.status_code == (400 if "cannot be read" in detail else 422), got.text
    expect_problem(got)
    assert got.json()["detail"].startswith(detail)
    assert got.json()["remedy"].startswith(remedy)


@pytest.mark.parametrize(
    "given", [None, "text/plain", "application/x-www-form-urlencoded", "json", "text/json"]
)
def test_a_body_that_is_not_called_json_is_told_the_header(server: Running, given: str | None) -> None:
    headers = {**WRITE, **({"Content-Type": given.encode()} if given is not None else {})}
    for method, path in (
        ("POST", "search"),
        ("POST", "search_batch"),
        ("POST", "explain"),
        ("DELETE", "documents"),
    ):
        got = server.client.request(method, f"{ONE}/{path}", content=b'{"query": "river"}', headers=headers)
        assert got.status_code == 415, got.text
        expect_problem(got)
        assert "Content-Type: application/json" in got.json()["remedy"]
        assert ("has no Content-Type" if given is None else given) in got.json()["detail"]


@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
@pytest.mark.parametrize("address", ["search", "search_batch", "explain", "documents"])
def test_only_utf_8_is_read(server: Running, coding: str, address: str) -> None:
    """In other encodings, values could not be counted before they are parsed."""
    body = '{"query": "river \u2200", "k": [' + "[]," * 20_000 + "[]]}"
    headers = {**WRITE, "Content-Type": "application/json"}
    method = "DELETE" if address == "documents" else "POST"
    got = server.client.request(method, f"{ONE}/{address}", content=body.encode(coding), headers=headers)
    expect_problem(got)
    assert got.status_code == 400
    name = coding[:6].upper()
    assert got.json()["detail"] == f"the body is in {name}; expected UTF-8"


def test_a_byte_order_mark_of_utf_8_is_skipped(server: Running) -> None:
    body, headers = '{"query": "river"}'.encode("utf-8-sig"), {"Content-Type": "application/json"}
    assert server.client.post(f"{ONE}/search", content=body, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "given", ["application/json", "Application/JSON; charset=utf-8", "application/a+json"]
)
def test_what_is_called_json_is_read(server: Running, given: str) -> None:
    headers = {"Content-Type": given}
    got = server.client.post(f"{ONE}/search", content=b'{"query": "river"}', headers=headers)
    assert got.status_code == 200, got.text


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/page/page.js",
        "/health",
        "/ready",
        "/docs",
        "/openapi.json",
        "/v1/indexes",
        ONE,
        f"{ONE}/search?q=river&stats=false",
        f"{ONE}/search?q=river&kk=1",
        f"{ONE}/documents/d/1",
        f"{ONE}/documents/nobody",
        "/nowhere",
        "/page/nothing.js",
    ],
)
def test_head_answers_what_get_answers_without_the_body(server: Running, path: str) -> None:
    while server.client.get("/ready").status_code != 200:
        time.sleep(0.01)
    asked = {"X-Request-Id": "same"}
    full, bare = server.client.get(path, headers=asked), server.client.head(path, headers=asked)
    assert bare.status_code == full.status_code
    assert bare.content == b""
    assert dict(bare.headers) | {"date": ""} == dict(full.headers) | {"date": ""}
    assert int(bare.headers["content-length"]) == len(full.content)


def test_head_is_counted_as_such_and_named_where_it_is_allowed(server: Running) -> None:
    assert server.client.head("/health").status_code == 200
    assert 'method="HEAD",route="/health"' in server.client.get("/metrics").text
    assert server.client.put("/health").headers["allow"] == "GET, HEAD"
    assert server.client.head(f"{ONE}/search_batch").status_code == 405
    # The connection is still in step: an answer with a body follows.
    assert server.client.get("/health").json() == {"status": "alive"}


def test_values_that_are_refused_are_told_briefly(server: Running) -> None:
    def detail(body: str) -> str:
        sent = {"Content-Type": "application/json"}
        answer = server.client.post(f"{ONE}/search", content=body, headers=sent)
        assert answer.status_code == 422
        told: str = answer.json()["detail"]
        assert len(told) < 200
        return told

    assert detail('{"query": "x", "k": 12345}') == "k=12,345 exceeds the limit of 1,000"
    assert "9..." in detail(f'{{"query": "x", "k": {"9" * 4000}}}')
    assert "coil, tokens, bm25, dense, hybrid" in detail(r'{"query": "x", "by": "\ud800"}')
    assert "coil, tokens, bm25, dense, hybrid" in detail('{"query": "x", "by": 3}')
    with pytest.raises(InputError) as found:
        server.service.served["notes"].index.search("x", min_score=1e10)
    assert detail('{"query": "x", "min_score": 1e10}') == found.value.reason
