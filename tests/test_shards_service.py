"""The service over a sharded index answers what it answers over one, and says which state that was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from coil.indexes.opening import create
from coil.remote.client import connect
from coil.service.limits import ServiceOptions
from coil.shards.opening import create_shards
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, running
from tests.tiny import random_texts

DOCS = [
    {"id": f"d{n}", "text": text, "year": n % 9}
    for n, text in enumerate(random_texts(60, longest=40, seed=2))
]
ASKED = [
    "search?q=river+bank&k=5", "search?q=river+bank&k=50&matches=true", "search?q=%2Bwater+-money&by=bm25",
    "search?q=bank&sort=-year&offset=3&k=4", "search?q=bank&filter=year+%3E+4&fold_duplicates=true",
    "search?q=rivr&suggest=true", "explain?q=river+bank&doc_id=d3&versus=d4", "suggest?q=rivr",
    "documents/d7", "search?q=x&sort=nowhere", "search?q=x&filter=a+b", "documents/nobody",
]  # fmt: skip
OF_SHARDS = ("versions", "partial", "missing")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[httpx.Client]:
    create(tmp_path / "one.coil", encoder=HashEncoder()).close()
    create_shards(find_place(tmp_path / "many.shards"), 3, encoder=HashEncoder())
    options = ServiceOptions(token=TOKEN)
    with running([tmp_path / "one.coil", tmp_path / "many.shards"], options, HashEncoder()) as server:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        with httpx.Client(base_url=server.url, timeout=60, headers=headers) as opened:
            body = "\n".join(map(json.dumps, DOCS))
            for name in ("one", "many"):
                added = opened.post(f"/v1/indexes/{name}/documents", content=body)
                assert added.json() == {"added": 60, "empty": [], "documents": 60}
            yield opened


def without_costs(value: Any) -> Any:
    """An answer without times and counts, and without what only shards say."""
    if isinstance(value, dict):
        left_out = ("stats", "request_id", *OF_SHARDS)
        return {key: without_costs(of) for key, of in value.items() if key not in left_out}
    return [without_costs(of) for of in value] if isinstance(value, list) else value


def test_answers_are_those_of_one_index(client: httpx.Client) -> None:
    for asked in ASKED:
        one, many = (client.get(f"/v1/indexes/{name}/{asked}") for name in ("one", "many"))
        assert one.status_code == many.status_code, asked
        assert without_costs(many.json()) == without_costs(one.json()), asked
    body = {"queries": ["river", "bank", "+money", "zebra"] * 5, "k": 3}
    one, many = (client.post(f"/v1/indexes/{name}/search_batch", json=body) for name in ("one", "many"))
    assert without_costs(many.json()) == without_costs(one.json())
    assert client.get("/ready").status_code == 200
    assert [of["name"] for of in client.get("/v1/indexes").json()["indexes"]] == ["one", "many"]


def test_the_answer_tells_its_state(client: httpx.Client) -> None:
    before = client.get("/v1/indexes/many/search?q=river").json()
    assert before["partial"] is False
    assert before["missing"] == []
    assert client.delete("/v1/indexes/many/documents/d3").json()["deleted"] == 1
    after = client.get("/v1/indexes/many/search?q=river").json()
    assert sum(after["versions"]) == sum(before["versions"]) + 1
    assert not set(OF_SHARDS) & client.get("/v1/indexes/one/search?q=river").json().keys()


def test_changes(client: httpx.Client) -> None:
    with connect(str(client.base_url), "many", TOKEN) as many:
        assert len(many) == 60
        assert (
            many.add([{"id": "new", "text": "zebra crossing"}, {"id": "d1", "text": ""}], lambda _: None) == 1
        )
        assert [hit.doc_id for hit in many.search("zebra", by="bm25")] == ["new"]
        assert "d1" not in many
        assert many.delete(["new", "nobody"]) == 1
        assert many.explain("river", "d2").doc_id == "d2"
        assert len(many) == 59
    assert client.delete("/v1/indexes/many/documents/nobody").status_code == 404
    facts = client.get("/v1/indexes/many").json()
    assert facts["documents"] == 59
    assert facts["segments"] >= 3
