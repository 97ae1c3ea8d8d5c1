"""What Python users expect of an index: `in`, `[]`, iteration, pickling, notebooks, and one on a server."""

from __future__ import annotations

import asyncio
import json
import pickle
import re
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from html import escape
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import pytest

import coil
from coil.errors import InputError, OutputError, RemoteProblem, UnknownId
from coil.explanations.explanation import Explanation
from coil.indexes.hits import Hits
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.remote import messages
from coil.scores import native
from coil.service.limits import ServiceOptions
from coil.tokens.profile import By
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, Running, running
from tests.summing_encoder import SummingEncoder
from tests.test_service import build


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": f"d{n}", "text": f"river bank {n}", "year": n} for n in range(200)])
        index.update([{"id": "d3", "text": "<b>money</b> & river"}])
        index.delete(["d7"])
        yield index


def test_an_index_is_a_collection_of_documents(index: Index) -> None:
    assert "d1" in index
    assert "d7" not in index
    assert 5 not in index
    assert index["d1"].text == "river bank 1"
    with pytest.raises(KeyError):
        index["d7"]
    with pytest.raises(UnknownId, match="no document has the id 'd7'\n  try: ids are case-sensitive"):
        index["d7"]
    ids = [document.doc_id for document in index]
    assert ids == [f"d{n}" for n in range(200) if n not in (3, 7)] + ["d3"]
    assert len(index) == len(ids)
    found = []
    for document in index:  # what is changed meanwhile is not seen
        found.append(document.doc_id)
        if len(found) < 3:
            index.delete([f"d{100 + len(found)}"])
    assert found == ids


def test_hits_are_a_list(index: Index) -> None:
    hits = index.search("river", k=5)
    assert isinstance(hits, list)
    assert [hit.rank for hit in hits[1:3]] == [2, 3]
    assert isinstance(hits[:2], Hits)
    assert hits == index.search_many(["river"], k=5)[0]
    copied = pickle.loads(pickle.dumps(hits))
    assert (copied, copied.query) == (hits, "river")
    assert [hit.text for hit in copied] == [hit.text for hit in hits]


def test_a_notebook_shows_hits_and_explanations(index: Index) -> None:
    shown = index.search("money RIVER +money", k=1)._repr_html_()
    assert "&lt;b&gt;<mark" in shown  # nothing in a text is markup
    assert ">money</mark>&lt;/b&gt; &amp; <mark" in shown
    assert "<b>money" not in shown
    assert "and 179 more" in index.search("river", k=300)._repr_html_()
    assert index.search("")._repr_html_() == "<p>no hits</p>"
    explained = index.explain("money <i>", "d3")._repr_html_()
    assert ">money</mark>" in explained
    assert "&lt;i&gt;" in explained
    assert "<i>" not in explained


@pytest.mark.parametrize("by", ["coil", "tokens", "bm25", "dense", "hybrid"])
def test_a_notebook_shows_the_columns_of_the_terminal(index: Index, by: By) -> None:
    explanation = index.explain("money zebra the river", "d3", by=by)
    shown = explanation._repr_html_()
    head = re.findall(r"<th [^>]*>(.*?)</th>", shown)
    table = str(explanation).splitlines()
    [titles] = [line for line in table if line.startswith("  query")]
    assert head == re.split(r"  +", titles.strip())
    for row in re.findall(r"<tr>(.*?)</tr>", shown)[1:]:
        assert sum(int(span or 1) for span in re.findall(r'<td(?: colspan="(\d+)")?', row)) == len(head)
    for line in table[table.index(titles) + 1 :]:  # what is not in columns is a note
        if "  " not in line.strip() and ":" in line:
            assert f"{escape(line.strip())}<" in shown
    for match in explanation.matches:
        assert f">{match.contribution:.2f}</td>" in shown


def test_a_notebook_shows_why_one_ranks_above_another(index: Index) -> None:
    contrast = index.explain("money <i> river", "d3").versus(index.explain("money <i> river", "d4"))
    shown = contrast._repr_html_()
    assert shown.startswith(f"<p>{escape(contrast.summary)}</p>")
    assert re.findall(r"<th [^>]*>(.*?)</th>", shown) == ["query", "d3", "adds", "d4", "adds", "difference"]
    for difference in contrast.differences:
        assert f">{difference.value:+.2f}</td>" in shown
    assert f"<b>{contrast.gap:+.2f}</b>" in shown
    assert "<i>" not in shown


def found_in_another_process(index: Index) -> list[tuple[str, float]]:
    return [(hit.doc_id, hit.score) for hit in index.search("river bank", k=7)]


def test_a_pinned_index_is_not_pickled(tmp_path: Path) -> None:
    with (
        create(tmp_path / "a.coil", encoder=HashEncoder()) as index,
        index.pinned() as still,
        pytest.raises(InputError, match="a pinned index cannot be pickled"),
    ):
        pickle.dumps(still)


def test_an_index_is_pickled_by_its_path(full: Path, tmp_path: Path) -> None:
    with create(tmp_path / "b.coil", model=full) as index:
        index.add([{"id": f"d{n}", "text": f"river bank {n}"} for n in range(9)])
        wanted = found_in_another_process(index)
        again: Index = pickle.loads(pickle.dumps(index))
        with again:
            assert found_in_another_process(again) == wanted
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            assert pool.submit(found_in_another_process, index).result() == wanted


def test_an_explanation_survives_json(index: Index, tmp_path: Path) -> None:
    with create(tmp_path / "sentences.coil", encoder=SummingEncoder()) as other:
        other.add([{"id": "a", "text": "The river bank is steep. Money! " * 30}])
        for explained in (other.explain("steep river bank of xyz", "a"), index.explain("river", "d1")):
            assert Explanation.from_json(json.loads(json.dumps(explained.to_json()))) == explained


# ---- on a server


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    folder = build(tmp_path / "notes.coil", encoder=SummingEncoder())
    with running([folder], ServiceOptions(token=TOKEN), SummingEncoder()) as server:
        yield server


def test_a_served_index_answers_as_one_that_is_here(server: Running) -> None:
    local = server.service.served["notes"].index
    with coil.connect(str(server.client.base_url), token=TOKEN) as remote:
        assert len(remote) == len(local)
        assert repr(remote).startswith("<coil.RemoteIndex 'notes' at http://")
        for query, how in (
            ("river bank", {}),
            ("river -xyzzy +river", {"k": 3, "offset": 2, "by": "bm25"}),
            ("river", {"filter": "year < 2010", "sort": "-year", "min_share": 0.01}),
            ('"river"', {"fold_duplicates": True}),
        ):
            here, there = local.search(query, **how), remote.search(query, **how)  # type: ignore[arg-type]
            assert here == there
            assert here, query
            assert [(hit.text, hit.fields) for hit in here] == [(hit.text, hit.fields) for hit in there]
            assert remote.explain(query, here[0].doc_id) == local.explain(query, here[0].doc_id)
        queries = [f"river {n}" for n in range(450)]
        assert remote.search_many(queries, k=2) == local.search_many(queries, k=2)
        assert remote.suggest("rivr") == local.suggest("rivr") != []
        assert remote["d/1"] == local["d/1"]
        assert "d/1" in remote
        assert "nothing" not in remote
        assert remote.inspect()["name"] == "notes"
        assert remote.search("river", k=1)._repr_html_().startswith("<table>")


def test_changes_reach_the_server(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "UPLOAD_BYTES", 500)
    local = server.service.served["notes"].index
    with coil.connect(f"{server.client.base_url}/v1/indexes/notes", token=TOKEN) as remote:
        before = len(remote)
        given = [{"id": f"new{n}", "title": "On banks", "text": f"money {n}", "n": n} for n in range(50)]
        assert remote.add(given) == 50
        assert len(remote) == before + 50
        assert local["new7"].text == "On banks\nmoney 7"
        assert remote.update([remote["new7"]]) == 1  # a title is not joined twice
        assert local["new7"].text == "On banks\nmoney 7"
        assert remote.delete(["new1", "new2", "nothing"]) == 2
        assert "new1" not in remote
        assert remote.add([]) == 0
        with pytest.raises(InputError, match="no text found"):
            remote.add([{"id": "x"}])
    with coil.connect(str(server.client.base_url)) as remote:
        with pytest.raises(OutputError, match="changes require the token"):
            remote.delete(["d/1"])
        with pytest.raises(InputError, match="only excludes words"):
            remote.search("-river")
        with pytest.raises(UnknownId, match="nothing"):
            remote.explain("river", "nothing")
        with pytest.raises(InputError, match="expected a string"):
            remote.search(5)  # type: ignore[arg-type]
    with pytest.raises(RemoteProblem, match="nowhere"):
        coil.connect(str(server.client.base_url), index="nowhere")


def test_the_async_client(server: Running) -> None:
    local = server.service.served["notes"].index

    async def run() -> None:
        async with coil.connect_async(str(server.client.base_url), token=TOKEN) as remote:
            several = await asyncio.gather(*(remote.search(f"river {n}", k=3) for n in range(10)))
            assert several == [local.search(f"river {n}", k=3) for n in range(10)]
            assert await remote.search_many(["river", "bank"], k=2) == local.search_many(
                ["river", "bank"], k=2
            )
            assert await remote.explain("river", "d/1") == local.explain("river", "d/1")
            assert await remote.update([{"id": "new", "text": "money"}]) == 1
            assert await remote.has("new")
            assert (await remote.document("new")).text == "money"
            assert await remote.delete(["new"]) == 1
            assert not await remote.has("new")
            assert (await remote.inspect())["documents"] == len(local)

    asyncio.run(run())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "", "not a url at all"])
def test_a_wrong_address_is_refused(url: str) -> None:
    with pytest.raises((InputError, RemoteProblem)):
        coil.connect(url, timeout=2)


def test_a_server_that_is_not_there_or_is_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RemoteProblem, match=r"cannot be reached.*\n  try: check the address"):
        coil.connect("http://127.0.0.1:9", timeout=2)

    def answer(self: Any, request: httpx.Request, stream: bool) -> httpx.Response:
        return httpx.Response(200, content=b"<html>", request=request)

    monkeypatch.setattr(httpx.Client, "send", answer)
    with pytest.raises(RemoteProblem, match="is not JSON"):
        coil.connect("http://127.0.0.1:9")


def test_a_missing_native_core_is_told_once(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "coil._native", None)
    native._warn_of_slowness.cache_clear()
    with pytest.warns(RuntimeWarning, match="without its native core") as told:
        found = [native.load_native() for _ in range(3)]
    assert found == [None] * 3
    assert len(told) == 1
