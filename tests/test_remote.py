"""An index on a server through `coil.connect` is the index: what it stores, answers and refuses."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import coil
from coil.errors import CoilError, InputError, RemoteProblem, UnknownId
from coil.hits.spelling import Suggestion
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.remote import messages
from coil.remote.client import AsyncRemoteIndex, RemoteIndex
from coil.remote.messages import error_of
from coil.service.limits import ServiceLimits, ServiceOptions
from coil.texts.values import Document, clean
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("remote")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with create(folder / "there.coil", encoder=HashEncoder()) as index:
        index.add([{"id": f"d{n}", "text": f"river bank {n}", "year": n} for n in range(20)])
    with running([folder / "there.coil"], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        yield server


@pytest.fixture(scope="module")
def here(folder: Path) -> Iterator[Index]:
    with create(folder / "here.coil", encoder=HashEncoder()) as index:
        index.add([{"id": f"d{n}", "text": f"river bank {n}", "year": n} for n in range(20)])
        yield index


@pytest.fixture(scope="module")
def there(server: Running) -> Iterator[RemoteIndex]:
    with coil.connect(server.url, token=TOKEN) as index:
        yield index


# ---- what is stored

_NAMES = st.one_of(
    st.sampled_from(["_id", "id", "doc_id", "docno", "pid", "title", "text", "contents", "body", "fields"]),
    st.text(max_size=8),
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=3),
    max_leaves=5,
)
_TEXTS = st.text(max_size=20) | st.sampled_from(["", "Kingfisher", "Kingfisher\na bird"])
_FIELDS = st.dictionaries(_NAMES, _VALUES | _TEXTS, max_size=5)
_DOCUMENTS = st.builds(Document, st.text(min_size=1, max_size=5), _TEXTS, _FIELDS) | st.builds(
    lambda doc_id, text, others: {**others, "id": doc_id, **text},
    st.text(min_size=1, max_size=5) | st.integers(),
    st.dictionaries(st.sampled_from(["title", "text", "contents", "body"]), _TEXTS, min_size=1),
    _FIELDS,
)


def _outcome(do: Callable[[], object]) -> object:
    """What came of it, or the kind of error."""
    try:
        return do()
    except InputError:
        return InputError  # a server does not tell which of them


def _stored(index: Index) -> dict[str, Document]:
    return {document.doc_id: document for document in index}


@pytest.mark.parametrize(
    "document",
    [
        Document("g", "body text", {"_id": "d1"}),
        {"id": "b", "title": "Kingfisher"},
        {"id": "b", "title": "Kingfisher", "text": "Kingfisher"},
        Document("c", "a bird at the river", {"title": "Kingfisher"}),
        Document("c", "Kingfisher\na bird", {"title": "Kingfisher"}),
        Document("g5", "body", {"contents": "other"}),
        Document("g6", "", {"contents": "other"}),
        Document("g7", "body", {"id": "d1", "text": "other", "body": 5, "fields": {"a": None}}),
    ],
)
def test_the_client_stores_what_the_library_stores(
    server: Running, here: Index, there: RemoteIndex, document: Any
) -> None:
    assert here.update([document]) == there.update([document])
    assert _stored(server.service.served["there"].index) == _stored(here)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents=st.lists(_DOCUMENTS, max_size=4))
def test_the_client_stores_any_document_as_the_library_does(
    server: Running, here: Index, there: RemoteIndex, documents: list[Any]
) -> None:
    for document in documents:  # one at a time: a bad one leaves those before it, or a server's request, out
        assert _outcome(lambda: here.update([document])) == _outcome(lambda: there.update([document]))  # noqa: B023
    assert _stored(server.service.served["there"].index) == _stored(here)


def test_the_async_client_stores_the_same(server: Running) -> None:
    document = Document("async", "a bird at the river", {"title": "Kingfisher", "_id": "d1"})

    async def run() -> Document:
        async with coil.connect_async(server.url, token=TOKEN) as index:
            await index.update([document])
            return await index.document("async")

    assert asyncio.run(run()) == document


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "a", "text": "b"}', "unknown key 'id'"),
        ('{"doc_id": "a", "text": "b", "year": 5}', "unknown key 'year'"),
        ('{"doc_id": "a"}', "the key text is missing"),
        ('{"doc_id": "", "text": "b"}', "the id is empty"),
        ('{"doc_id": 5, "text": "b"}', "id is a int"),
        ('{"doc_id": "a", "text": "b", "fields": []}', "fields is a list"),
    ],
)
def test_an_exact_line_has_exactly_its_keys(server: Running, line: str, message: str) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    address = "/v1/indexes/there/documents"
    got = server.client.post(address, params={"exact": "true"}, content=line, headers=headers)
    assert got.status_code == 422
    assert message in got.json()["detail"]


# ---- errors


def test_only_an_unknown_document_is_an_unknown_id(server: Running, folder: Path) -> None:
    with create(folder / "documents.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "document", "text": "river"}])
    with running([folder / "documents.coil"], ServiceOptions(token=TOKEN), HashEncoder()) as other:
        remote = coil.connect(other.url)
        assert "document" in remote
        assert "nothing" not in remote
        served = other.service.served
        served["elsewhere"] = served.pop("documents")  # type: ignore[attr-defined]
        with remote, pytest.raises(RemoteProblem, match="there is no index 'documents'"):
            remote.has("document")
    told = json.dumps({"status": 404, "code": "unknown_address", "detail": "no document here"}).encode()
    assert not isinstance(error_of(404, told), UnknownId)
    for code in ([], {}, None, 1):  # of another kind of server
        told = json.dumps({"code": code, "detail": "no", "remedy": "yes"}).encode()
        assert error_of(404, told).reason == "the server answered with status 404"


def test_every_code_of_an_error_is_documented() -> None:
    root = Path(__file__).parents[1]
    source = "".join(path.read_text() for path in (root / "coil/service").glob("*.py"))
    codes = set(re.findall(r'(?:Problem|__init__)\(\s*\d+,\s*"(\w+)"', source))
    assert len(codes) > 20
    table = (root / "docs/service.md").read_text().partition("## Errors")[2].partition("##")[0]
    assert codes - set(re.findall(r"`(\w+)`", table)) == set()


# ---- connections


def test_connections_are_given_up_before_the_server_closes_them(server: Running) -> None:
    with coil.connect(server.url) as index:
        pool = index._link.client._transport._pool  # type: ignore[attr-defined]
        assert pool._keepalive_expiry <= server.service.options.limits.idle_seconds / 2


# ---- what can be asked


@pytest.mark.parametrize(
    "how",
    [
        {"k": np.int64(3), "offset": np.uint8(1)},
        {"k": np.int32(0)},
        {"k": 3, "min_score": np.float32(0.25), "min_share": np.float64(0.1)},
        {"plain": np.True_, "fold_duplicates": np.False_},
        {"filter": "year >= 3", "sort": "-year", "by": "bm25"},
        {"min_score": float("nan")},
        {"min_score": float("-inf")},
        {"min_share": float("inf")},
        {"k": True},
        {"k": 2.0},
        {"offset": -1},
        {"offset": 10**7},
        {"sort": "a b"},
        {"filter": 5},
        {"filter": 'name = "\ud800"'},
        {"filter": "\ud800"},
        {"by": "other"},
        {"by": object()},
    ],
)
def test_the_client_answers_and_refuses_as_the_library(
    folder: Path, server: Running, there: RemoteIndex, how: dict[str, Any]
) -> None:
    local = server.service.served["there"].index

    def outcome(search: Callable[[], Any]) -> Any:
        try:
            return search()
        except CoilError as error:
            return type(error), str(error)

    expected = outcome(lambda: local.search("river bank", **how))
    assert outcome(lambda: there.search("river bank", **how)) == expected
    many = {name: value for name, value in how.items() if name in ("k", "filter", "by", "plain")}
    expected = outcome(lambda: local.search_many(["river bank"] * 2, **many))
    assert outcome(lambda: there.search_many(["river bank"] * 2, **many)) == expected


def test_a_field_that_no_document_has_is_named_from_afar(server: Running, there: RemoteIndex) -> None:
    for search in (there.search, lambda query, filter: there.search_many([query], filter=filter)[0]):
        with pytest.warns(UserWarning, match="no document has the field 'yaer'") as told:
            assert search("river", filter="yaer = 2020").unknown_fields == ("yaer",)
        assert Path(told[0].filename) == Path(__file__)
    plain = server.client.get(
        "/v1/indexes/there/search", params={"q": "river", "filter": "id = 'nowhere'"}
    ).json()
    assert (plain["hits"], plain.get("unknown_fields")) == ([], None)


@pytest.mark.parametrize("query", ["river\ud800 bank", "\udcff", "", "\0"])
def test_any_query_can_be_asked(server: Running, there: RemoteIndex, query: str) -> None:
    local = server.service.served["there"].index
    assert there.search(query) == local.search(query)
    assert there.search(query).query == query
    assert there.search_many([query, "river"]) == local.search_many([query, "river"])
    assert there.explain(query, "d1") == replace(local.explain(query, "d1"), query=clean(query))


@pytest.mark.parametrize("doc_id", ["\ud800", "j" * 70_000, "é" * 9_000, "?&#", "a/../b", "", "x" * 16_384])
def test_any_id_can_be_asked_for(server: Running, there: RemoteIndex, doc_id: str) -> None:
    assert not there.has(doc_id)
    assert doc_id not in there
    with pytest.raises(UnknownId, match="no document has the id"):
        there.document(doc_id)
    with pytest.raises(UnknownId, match="no document has the id"):
        there.explain("river", doc_id)
    assert there.delete([doc_id, "nothing"]) == 0


def test_the_longest_id_can_be_asked_for(server: Running, there: RemoteIndex) -> None:
    longest = "é" * 8_192
    there.update([{"id": longest, "text": "river"}])
    assert longest in there
    assert there.delete([longest]) == 1


@pytest.mark.parametrize("token", ["a\nb", "a b", "", " a", "a\ud800", 5, b"a"])
def test_a_token_that_cannot_be_sent_is_refused(server: Running, token: Any) -> None:
    with pytest.raises(InputError, match="the token is"):
        coil.connect(server.url, token=token)


def test_a_token_may_have_any_letters(folder: Path) -> None:
    create(folder / "letters.coil", encoder=HashEncoder()).close()
    options = ServiceOptions(token="schlüssel-鍵")
    with (
        running([folder / "letters.coil"], options, HashEncoder()) as server,
        coil.connect(server.url, token="schlüssel-鍵") as index,
    ):
        assert index.add([{"id": "a", "text": "river"}]) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://[x]:1",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:0",
        "http://127.0.0.1:port",
        "http://127.0.0.1/v1/indexes/r/search?q=x",
        "http://127.0.0.1/v1/indexes/r/search",
        "http://127.0.0.1/?q=x",
        "http://127.0.0.1/#top",
        "http://127.0.0.1/v1/indexes/",
        "http://127.0.0.1\n/",
        "http://a b/",
        "http://" + "a" * 70_000,
        5,
        None,
    ],
)
def test_what_is_not_an_address_is_refused(url: Any) -> None:
    with pytest.raises(InputError, match="the address"):
        coil.connect(url)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "5", None, 1e300])
def test_a_timeout_is_a_number_of_seconds(server: Running, timeout: Any) -> None:
    with pytest.raises(InputError, match="timeout is"):
        coil.connect(server.url, timeout=timeout)


# ---- the rest of an index


def test_both_clients_have_the_methods_of_an_index() -> None:
    missing = {name for name in vars(RemoteIndex) if not name.startswith("_")} - set(vars(AsyncRemoteIndex))
    assert missing == {"close"}


@pytest.mark.parametrize("query", ["rivr bnak", "-don't tags:2020", "+the", "", "rivr\ud800"])
def test_suggestions_are_those_of_the_library(server: Running, there: RemoteIndex, query: str) -> None:
    expected = server.service.served["there"].index.suggest(query)
    assert there.suggest(query) == expected

    async def run() -> list[Suggestion]:
        async with coil.connect_async(server.url) as index:
            return await index.suggest(query, plain=False)

    assert asyncio.run(run()) == expected
    address = "/v1/indexes/there/suggest"
    got = server.client.get(address, params={"q": clean(query)})
    assert got.status_code == 200
    assert len(got.json()["suggestions"]) == len(expected)
    assert got.json() == server.client.post(address, json={"query": clean(query)}).json()
    assert there.suggest("rivr") != []


def test_many_ids_and_long_queries_are_sent_in_parts(server: Running, there: RemoteIndex) -> None:
    local = server.service.served["there"].index
    there.update({"id": f"many{n}", "text": "river"} for n in range(300))
    ids = [f"{'no' if n % 200 else 'many'}{n // 200}{'x' * 40 * bool(n % 200)}" for n in range(60_000)]
    assert there.delete(ids + ids[::-1]) == 300
    assert not there.has("many7")
    queries = [f"river {n} " + "\U0001f98a" * 1_900 for n in range(150)]  # more than 1 MiB
    assert there.search_many(queries, k=1, by="bm25") == local.search_many(queries, k=1, by="bm25")
    assert there.delete([]) == 0
    assert there.search_many([]) == []


def test_a_server_with_lower_limits_gets_smaller_requests(tmp_path: Path) -> None:
    create(tmp_path / "small.coil", encoder=HashEncoder()).close()
    limits = ServiceLimits(upload_bytes=2000, batch_queries=3, body_bytes=400)
    options = ServiceOptions(token=TOKEN, limits=limits)
    documents = [{"id": f"d{n}", "text": f"river {n} " + "bank " * (n % 7)} for n in range(100)]
    long = {"id": "long", "text": "river " * 1000}
    with running([tmp_path / "small.coil"], options, HashEncoder()) as server:
        with coil.connect(server.url, token=TOKEN) as index:
            assert index.update(documents) == 100
            assert len(index) == 100
            queries = [f"river {n}" for n in range(20)]
            expected = [index.search(query, k=3) for query in queries]
            assert index.search_many(queries, k=3) == expected
            with pytest.raises(RemoteProblem, match="exceeds the limit of 2,000 bytes"):
                index.update([long])
            with pytest.raises(RemoteProblem, match="; the first 100 documents were added"):
                index.update([*documents, long])
            with pytest.raises(RemoteProblem, match="; 20 documents were deleted before"):
                index.delete([*(f"d{n}" for n in range(20)), "i" * 500])
            index.update(documents)
            with pytest.raises(InputError, match="k=5,000 exceeds the limit"):
                index.search_many(queries, k=5000)

        async def ask() -> None:
            async with coil.connect_async(server.url, token=TOKEN) as there:
                assert await there.update(documents) == 100
                assert await there.search_many(queries, k=3) == expected
                with pytest.raises(RemoteProblem, match="; the first 100 documents were added"):
                    await there.update([*documents, long])
                with pytest.raises(RemoteProblem, match="; 1 document was deleted before"):
                    await there.delete(["d99", "i" * 500])
                assert await there.delete([f"d{n}" for n in range(10, 100)]) == 89

        asyncio.run(ask())
        with coil.connect(server.url, token=TOKEN) as index:
            assert index.delete([f"d{n}" for n in range(100)]) == 10
            assert len(index) == 0


def test_documents_are_counted_and_told_as_by_the_library(
    here: Index, there: RemoteIndex, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = [("a", "river"), ("a", "bank"), ("b", ""), ("c", ""), ("c", "money"), ("d", "river"), ("d", " ")]
    documents = [{"id": doc_id, "text": text} for doc_id, text in given]
    for size in (messages.UPLOAD_BYTES, 10):  # in one request, and in one each
        monkeypatch.setattr(messages, "UPLOAD_BYTES", size)
        caplog.clear()
        assert here.update(documents) == there.update(documents) == 4
        mine, other = caplog.messages
        assert mine == other == "2 documents are empty and were not indexed: 'b', 'd'"
        told: list[list[str]] = []
        here.update(documents, told.append)
        there.update(documents, told.append)
        assert told == [["b", "d"]] * 2
    record = [{"key": "named", "words": "river"}]
    assert there.update(record, id_column="key", text_column="words") == 1
    assert there["named"] == Document("named", "river")
    with pytest.raises(InputError, match="no column 'other'"):
        there.update(record, id_column="key", text_column=["words", "other"])
