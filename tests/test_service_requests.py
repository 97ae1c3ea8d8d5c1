"""How a request may look: names, methods and kinds of content, and what is said about those that do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coil.service.limits import ServiceOptions
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.test_service import ONE, build


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = build(tmp_path_factory.mktemp("served") / "notes.coil")
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as found:
        yield found


def test_a_query_has_one_name_in_addresses_and_one_in_bodies(server: Running) -> None:
    document = server.client.get("/openapi.json").json()
    for path in ("search", "bm25", "explain"):
        operation = document["paths"]["/v1/indexes/{name}/" + path]["get"]
        names = {parameter["name"] for parameter in operation["parameters"]}
        assert "q" in names, path
        assert "query" not in names, path
    for shape in ("SearchRequest", "ExplainRequest", "SearchOut"):
        assert "query" in document["components"]["schemas"][shape]["properties"]
    asked = {"q": "river", "doc_id": "d/1"}
    assert server.client.get(f"{ONE}/explain", params=asked).json()["query"] == "river"
