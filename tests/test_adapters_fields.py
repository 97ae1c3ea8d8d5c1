"""Fields beside the keys that adapters add, and what an assistant is told about its call."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.adapters.source import OWN_KEYS, Retrieval, Source, beside
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder

_NAMES = st.tuples(st.integers(0, 3), st.sampled_from(["rank", "text", "year", ""])).map(
    lambda of: "field." * of[0] + of[1]
)


@given(st.dictionaries(_NAMES, st.integers(), max_size=8))
def test_no_field_is_lost_beside_the_own_keys(fields: dict[str, int]) -> None:
    own = {"rank": "own rank", "text": "own text"}
    found = beside(fields, own, tuple(own))
    assert len(found) == len(fields) + len(own)
    assert {name: found[name] for name in own} == own
    for name, value in fields.items():
        if name not in own:
            assert found[name] == value
        else:
            stored_as = [key for key in found if key.removesuffix(name).replace("field.", "") == ""]
            assert value in [found[key] for key in stored_as if key not in own and key not in fields]


def test_a_field_of_an_own_name_beside_one_of_its_new_name(tmp_path: Path) -> None:
    fields = {"rank": 1, "field.rank": 2, "field.field.rank": 3, "text": "its own"}
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.update([Document("a", "hello walrus", fields)])
        [found] = Source(index).find("walrus", Retrieval())
    stored = {name: value for name, value in found.metadata.items() if name not in OWN_KEYS}
    assert stored == {
        "field.field.field.rank": 1,
        "field.rank": 2,
        "field.field.rank": 3,
        "text": "its own",
    }


def call(index: Index, tool: str, **arguments: Any) -> Any:
    """What a tool answers: its result, or the text of its error."""
    pytest.importorskip("mcp.server.mcpserver")
    from mcp import Client

    from coil.adapters.mcp import make_server

    async def run() -> Any:
        async with Client(make_server(index, writable=True)) as client:
            answer = await client.call_tool(tool, arguments)
        text = "\n".join(getattr(part, "text", "") for part in answer.content)
        return text if answer.is_error else json.loads(text)

    return asyncio.run(run())


def test_an_assistant_sees_fields_of_every_name(tmp_path: Path) -> None:
    fields = {"rank": 1, "field.rank": 2, "text": "its own", "year": 2020}
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.update([Document("a", "hello walrus", fields)])
        [hit] = call(index, "search", query="walrus")["hits"]
        assert (hit["text"], hit["rank"], hit["year"]) == ("hello walrus", 1, 2020)
        assert (hit["field.text"], hit["field.field.rank"], hit["field.rank"]) == ("its own", 1, 2)
        assert call(index, "document", doc_id="a")["fields"] == fields


# ---- fields that are nested too deeply


@pytest.fixture
def nested(tmp_path: Path) -> Index:
    """An index with fields that are nested more deeply than documents of today may be."""
    deep = "[" * 300 + "]" * 300
    place = "x" * (len(deep) - 2)
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.add(
            [
                {"id": "deep", "text": "a walrus", "tree": place, "year": 2020},
                {"id": "flat", "text": "the walrus of a walrus", "tree": ["leaf"]},
            ]
        )
    [file] = (tmp_path / "notes.coil" / "segments").glob("*.documents")
    written = file.read_bytes()
    assert written.count(f'"{place}"'.encode()) == 1
    file.write_bytes(written.replace(f'"{place}"'.encode(), deep.encode()))
    return open_index(tmp_path / "notes.coil", encoder=HashEncoder())


def test_fields_that_no_client_could_read_are_left_out_and_named(nested: Index) -> None:
    with nested as index:
        told = call(index, "search", query="walrus")
        hits = {hit["doc_id"]: hit for hit in told["hits"]}
        assert hits.keys() == {"deep", "flat"}
        assert hits["flat"]["tree"] == ["leaf"]
        assert "tree" not in hits["deep"]
        assert hits["deep"]["year"] == 2020
        note = (
            "the document 'deep' has fields with more than 100 levels, which were left out: 'tree'; "
            "to return them, replace it by one with flatter fields"
        )
        assert told["note"] == note
        told = call(index, "document", doc_id="deep")
        assert (told["text"], told["fields"], told["note"]) == ("a walrus", {"year": 2020}, note)
        assert "note" not in call(index, "document", doc_id="flat")
        mistaken = call(index, "search", query="walrus", filter="yaer > 2020")
        assert mistaken == {"hits": [], "note": "no document has the field 'yaer'"}


def test_fields_of_many_levels_are_returned(tmp_path: Path) -> None:
    tree: Any = 1
    for level in range(90):
        tree = [tree] if level % 2 else {"a": tree}
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.update([Document("a", "walrus", {"tree": tree})])
        assert call(index, "document", doc_id="a")["fields"] == {"tree": tree}
        [hit] = call(index, "search", query="walrus")["hits"]
        assert hit["tree"] == tree


# ---- arguments


def test_an_unknown_argument_is_an_error_that_names_the_known_ones(tmp_path: Path) -> None:
    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "walrus"}])
        told = call(index, "search", query="walrus", limit=3)
        known = "query, k, by, filter, plain"
        assert told == f"unknown argument 'limit' of search\n  try: the arguments are {known}"
        told = call(index, "delete", doc_ids=["a"], dry_run=True)
        assert told == "unknown argument 'dry_run' of delete\n  try: the arguments are doc_ids"
        assert "a" in index
        assert "nothing" in call(index, "nothing", x=1)  # there is no such tool
        assert call(index, "search", query="walrus", k=1)["hits"]


def test_the_schemas_allow_no_other_arguments(tmp_path: Path) -> None:
    pytest.importorskip("mcp.server.mcpserver")
    from coil.adapters.mcp import make_server

    with create(tmp_path / "notes.coil", encoder=HashEncoder()) as index:
        for tool in asyncio.run(make_server(index, writable=True).list_tools()):
            assert tool.input_schema["additionalProperties"] is False
