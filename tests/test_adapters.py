"""Retrievers for LangChain, LlamaIndex and Haystack give what a search gives, here and over HTTP."""

from __future__ import annotations

import asyncio
import copy
import importlib
import pickle
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coil
from coil.adapters import source
from coil.adapters.source import OWN_KEYS, Retrieval, Source
from coil.cli.main import run
from coil.errors import InputError, MissingExtra, MissingIndex, OptionMismatch
from coil.hits.hit import Hit
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.shards.opening import create_shards
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
from tests.serving import running

QUERY = "river bank"
LONG = "the water of the river is deep " * 40  # more than the tiny encoder takes in one piece
DOCUMENTS = [
    {"id": "a", "text": "the bank of the river", "year": 2020, "source": "a.md"},
    {"id": "b", "text": "the bank and the money", "year": 2023, "score": "a field of that name"},
    {"id": "c", "text": LONG, "year": 2024},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    with create(tmp_path_factory.mktemp("adapters") / "notes.coil", encoder=HashEncoder()) as index:
        index.add(DOCUMENTS)
        yield index


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index that can be opened by its path: it was made with the bundled model."""
    folder = tmp_path_factory.mktemp("bundled") / "notes.coil"
    with create(folder) as index:
        index.add(DOCUMENTS)
    return folder


# ---- what all of them share


def test_passages_are_hits(index: Index) -> None:
    found = Source(index).find(QUERY, Retrieval(k=3))
    hits = index.search(QUERY, k=3)
    assert [(of.doc_id, of.score) for of in found] == [(hit.doc_id, hit.score) for hit in hits]
    for of, hit in zip(found, hits, strict=True):
        assert of.text == hit.text[slice(*hit.chunk)]
        assert [of.metadata[name] for name in ("rank", "share", "chunk")] == [
            hit.rank,
            hit.share,
            list(hit.chunk),
        ]
    by_id = {of.doc_id: of for of in found}
    assert len(by_id["c"].text) < len(LONG)
    assert by_id["a"].metadata["source"] == "a.md"
    assert by_id["b"].metadata["field.score"] == "a field of that name"
    assert "explanation" not in by_id["a"].metadata


def test_the_whole_text_and_an_explanation_come_on_request(index: Index) -> None:
    for of in Source(index).find(QUERY, Retrieval(k=3, whole=True, explain=True)):
        assert of.text == index[of.doc_id].text
        assert of.metadata["explanation"] == index.explain(QUERY, of.doc_id).to_json()
        parts = [match["contribution"] for match in of.metadata["explanation"]["matches"]]
        assert sum(parts) + of.metadata["explanation"]["sentence"] == pytest.approx(of.score, abs=1e-6)


def test_a_field_that_no_document_has_is_named(index: Index) -> None:
    with pytest.warns(UserWarning, match="no document has the field 'yaer'"):
        assert Source(index).find(QUERY, Retrieval(filter="yaer = 2020")).unknown_fields == ("yaer",)


def test_operators_are_text_unless_asked_for(index: Index) -> None:
    source = Source(index)
    assert len(source.find("bank -money", Retrieval())) == 3
    assert "b" not in {of.doc_id for of in source.find("bank -money", Retrieval(plain=False))}


def test_a_path_is_read_as_it_is_now(bundled: Path, tmp_path: Path) -> None:
    """An index that is given open is left to its owner."""
    shutil.copytree(bundled, tmp_path / "notes.coil")
    source = Source(tmp_path / "notes.coil")
    with coil.open(tmp_path / "notes.coil") as opened, coil.open(tmp_path / "notes.coil") as other:
        still = Source(opened)
        for of in (source, still):
            assert "new" not in [passage.doc_id for passage in of.find("E4321", Retrieval())]
        other.add([{"id": "new", "text": "Error E4321 means that the disk is full."}])
        assert source.find("E4321", Retrieval())[0].doc_id == "new"
        assert "new" not in [passage.doc_id for passage in still.find("E4321", Retrieval())]


def test_an_index_that_replaces_the_one_at_a_path_is_read(bundled: Path, tmp_path: Path) -> None:
    """Readers of the older one finish with it, and it is closed then."""
    folder = tmp_path / "notes.coil"
    shutil.copytree(bundled, folder)
    of = Source(folder)
    older = of.index
    with of.reading() as still:
        shutil.rmtree(folder)
        with create(folder) as rebuilt:
            rebuilt.add([{"id": "new", "text": "the bank of a new river"}])
        assert [passage.doc_id for passage in of.find(QUERY, Retrieval())] == ["new"]
        assert len(still.search(QUERY)) == 3
    with pytest.raises(InputError, match="the index is closed"):
        older.search(QUERY)
    with of.reading() as now:
        assert now.explain(QUERY, "new").score > 0


def test_an_index_is_not_replaced_by_one_that_is_being_built(bundled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes.coil"
    shutil.copytree(bundled, folder)
    of = Source(folder)
    before = of.find(QUERY, Retrieval())
    shutil.rmtree(folder)
    create(folder, build_with="error").close()
    assert of.find(QUERY, Retrieval()) == before
    shutil.rmtree(folder)
    create(folder).close()
    assert of.find(QUERY, Retrieval()) == []


def test_an_index_is_not_replaced_by_one_of_another_model(bundled: Path, tmp_path: Path) -> None:
    folder = tmp_path / "notes.coil"
    shutil.copytree(bundled, folder)
    of = Source(folder)
    assert of.find(QUERY, Retrieval())
    shutil.rmtree(folder)
    create(folder, encoder=HashEncoder()).close()
    for _ in range(2):
        with pytest.raises(OptionMismatch, match="was replaced by an index of another model"):
            of.find(QUERY, Retrieval())


def test_metadata_say_where_in_a_document_a_passage_is(bundled: Path, tmp_path: Path) -> None:
    with create(tmp_path / "guide.coil") as index:
        text = "# Guide\n\n## Errors\n\n" + "An example. " * 400 + "E4321 means that the disk is full.\n"
        index.add([{"id": "guide.md", "text": text}])
        [found] = Source(index).find("E4321 disk is full", Retrieval())
        [hit] = index.search("E4321 disk is full")
        assert found.metadata["context"] == hit.context
        assert "Errors" in hit.context


def test_front_matter_is_metadata_and_not_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    front, body = "---\ntitle: Policy\nyear: 2024\n---\n", "# Backups\n\nBackups run at night.\n"
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "policy.md").write_text(front + body, encoding="utf-8")
    (tmp_path / "notes" / "only.md").write_text(front, encoding="utf-8")
    assert run(["index", str(tmp_path / "notes"), "--out", str(tmp_path / "notes.coil")]) == 0
    for whole in (True, False):
        found = {
            of.doc_id: of for of in Source(tmp_path / "notes.coil").find("backups", Retrieval(whole=whole))
        }
        assert found["policy.md"].text == body
        assert found["policy.md"].metadata["year"] == "2024"
        assert found["only.md"].text == front
    assert run(["search", str(tmp_path / "notes.coil"), "backups", "-k", "1"]) == 0
    assert "policy.md  # Backups Backups run at night." in capsys.readouterr().out


def test_a_source_is_opened_when_it_is_needed(bundled: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingIndex):
        _ = Source(tmp_path / "none.coil").index
    source = Source(str(bundled))
    assert source.index is source.index
    again = pickle.loads(pickle.dumps(source))
    assert again.find(QUERY, Retrieval(k=1)) == source.find(QUERY, Retrieval(k=1))
    assert copy.deepcopy(source) is source


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"k": -1}, InputError, "k is negative"),
        ({"by": "magic"}, OptionMismatch, "by is 'magic'"),
        ({"min_share": "much"}, InputError, "min_share"),
        ({"filter": 5}, InputError, "filter"),
    ],
)
def test_wrong_options_are_refused_at_once(options: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        Retrieval(**options)


def test_what_is_no_index_is_refused() -> None:
    with pytest.raises(InputError, match="expected an open index, its path, or the address of a server"):
        Source(5)  # type: ignore[arg-type]


def test_a_server_answers_like_the_index(index: Index) -> None:
    how = Retrieval(k=2, filter="year >= 2021", explain=True)
    expected = Source(index).find(QUERY, how)
    with (
        running([index.folder], encoder=HashEncoder()) as server,
        coil.connect(server.url) as client,
    ):
        assert Source(client).find(QUERY, how) == expected
        assert Source(client).address == client.url == f"{server.url.rstrip('/')}/v1/indexes/notes"
        by_address = Source(client.url.replace("http", "HTTP"))
        assert by_address.find(QUERY, how) == expected
        by_address.index.close()


def test_documents_that_are_deleted_before_they_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an open index, the state that was searched is explained; a server has only the newest one."""
    encoder, how = HashEncoder(), Retrieval(k=3, explain=True)
    first, text_of = list[str](), source._text_of

    def delete_others(hit: Hit, how: Retrieval) -> str:
        """Called after the first explanation: another process deletes what comes next."""
        if not first:
            first.append(hit.doc_id)
            with open_index(tmp_path / "notes.coil", encoder) as other:
                other.delete([name for name in "abc" if name != hit.doc_id])
            opened.refresh()
        return text_of(hit, how)

    monkeypatch.setattr(source, "_text_of", delete_others)
    with create(tmp_path / "notes.coil", encoder=encoder) as opened:
        opened.add(DOCUMENTS)
        assert sorted(of.doc_id for of in Source(opened).find(QUERY, how)) == ["a", "b", "c"]
        assert len(opened) == 1
        opened.update(DOCUMENTS)
        first.clear()
        with running([opened.folder], encoder=encoder) as server, coil.connect(server.url) as client:
            assert [of.doc_id for of in Source(client).find(QUERY, how)] == first


def test_a_sharded_index_is_named_as_such(tmp_path: Path) -> None:
    create_shards(find_place(tmp_path / "many"), 2, encoder=HashEncoder())
    with pytest.raises(MissingIndex, match=r"is a sharded index; expected a single one\n.*coil serve"):
        _ = Source(tmp_path / "many").index


@pytest.mark.parametrize(
    ("adapter", "package", "extra"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index.core", "llama-index"),
        ("haystack", "haystack", "haystack"),
        ("pyterrier", "pyterrier", "pyterrier"),
        ("mteb", "mteb", "mteb"),
        ("mcp", "mcp.server.mcpserver", "mcp"),
        ("authors_checkpoint", "transformers", "train"),
    ],
)
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, adapter: str, package: str, extra: str
) -> None:
    monkeypatch.delitem(sys.modules, f"coil.adapters.{adapter}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match="not installed") as caught:
        importlib.import_module(f"coil.adapters.{adapter}")
    assert caught.value.remedy == f"pip install 'coil-ir[{extra}]'"


def test_the_command_names_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, index: Index, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "coil.adapters.mcp", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server.mcpserver", None)
    assert run(["mcp", str(index.folder)]) == 1
    assert "pip install 'coil-ir[mcp]'" in capsys.readouterr().err


# ---- LangChain


def test_langchain(index: Index, bundled: Path) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document
    from langchain_core.load import dumps, loads
    from langchain_core.runnables import RunnableLambda

    from coil.adapters.langchain import CoilRetriever

    retriever = CoilRetriever(index, k=2)
    expected = Source(index).find(QUERY, Retrieval(k=2))
    found = retriever.invoke(QUERY)
    assert found == [Document(id=of.doc_id, page_content=of.text, metadata=of.metadata) for of in expected]
    assert asyncio.run(retriever.ainvoke(QUERY)) == found
    assert retriever.batch([QUERY, QUERY]) == [found, found]
    assert [of.id for of in retriever.invoke(QUERY, k=3, filter="year < 2021")] == ["a"]
    changed = asyncio.run(retriever.ainvoke(QUERY, by="bm25", k=1))
    assert changed[0].metadata["score"] == index.search(QUERY, k=1, by="bm25")[0].score
    assert (retriever | RunnableLambda(len)).invoke(QUERY) == 2
    assert "explanation" in CoilRetriever(index, explain=True).invoke(QUERY)[0].metadata

    saved = CoilRetriever(str(bundled), k=1, filter="year > 2000")
    answer = saved.invoke(QUERY)
    assert CoilRetriever(**saved.model_dump()).invoke(QUERY) == answer
    assert CoilRetriever.model_validate_json(saved.model_dump_json()).invoke(QUERY) == answer
    assert retriever.model_dump()["index"] == str(index.folder)
    loaded = loads(dumps(saved), valid_namespaces=["coil"], allowed_objects=[CoilRetriever])
    assert loaded.invoke(QUERY) == answer
    assert pickle.loads(pickle.dumps(saved)).invoke(QUERY) == answer


def test_langchain_refuses_wrong_options(index: Index) -> None:
    pytest.importorskip("langchain_core")
    from coil.adapters.langchain import CoilRetriever

    with pytest.raises(InputError, match="k is negative"):
        CoilRetriever(index, k=-1)
    with pytest.raises(InputError, match="expected an open index"):
        CoilRetriever(5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the filter 'year >'"):
        CoilRetriever(index, filter="year >").invoke(QUERY)
    with pytest.raises(InputError, match="unknown option 'top_k'") as caught:
        CoilRetriever(index, top_k=3)
    assert "explain, filter, index, k" in caught.value.remedy.replace("by, ", "")
    with pytest.raises(InputError, match="unknown option 'search_type'"):
        CoilRetriever(index).invoke(QUERY, search_type="mmr")
    assert CoilRetriever(index).invoke("river -bank", plain=False, k=1)[0].id == "c"


# ---- LlamaIndex


def test_llama_index(index: Index) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import MetadataMode

    from coil.adapters.llama_index import CoilRetriever

    retriever = CoilRetriever(index, k=3, explain=True)
    expected = Source(index).find(QUERY, Retrieval(k=3, explain=True))
    found = retriever.retrieve(QUERY)
    assert [(of.node.node_id, of.score, of.node.metadata) for of in found] == [
        (of.doc_id, of.score, of.metadata) for of in expected
    ]
    assert [of.node.get_content() for of in found] == [of.text for of in expected]
    assert asyncio.run(retriever.aretrieve(QUERY)) == found
    for of in found:
        shown = of.node.get_content(MetadataMode.LLM)
        assert "year" in shown
        assert not any(f"{name}:" in shown.replace("field.score:", "") for name in OWN_KEYS)


# ---- Haystack


def test_haystack(index: Index, bundled: Path) -> None:
    pytest.importorskip("haystack")
    from haystack import Pipeline

    from coil.adapters.haystack import CoilRetriever

    retriever = CoilRetriever(index, k=2, by="bm25")
    expected = Source(index).find(QUERY, Retrieval(k=2, by="bm25"))
    found = retriever.run(query=QUERY)["documents"]
    assert [(of.id, of.content, of.score, of.meta) for of in found] == [
        (of.doc_id, of.text, of.score, of.metadata) for of in expected
    ]
    assert asyncio.run(retriever.run_async(query=QUERY))["documents"] == found

    pipeline = Pipeline()
    pipeline.add_component("retriever", CoilRetriever(str(bundled), k=2))
    asked: dict[str, Any] = {"retriever": {"query": QUERY, "k": 1, "filter": "year > 2021"}}
    answer = pipeline.run(asked)["retriever"]["documents"]
    assert len(answer) == 1
    assert answer[0].meta["year"] > 2021
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["coil.adapters.haystack"])
    assert loaded.run(asked)["retriever"]["documents"] == answer
    component = CoilRetriever.from_dict(retriever.to_dict())
    assert (component.source.address, component.retrieval) == (str(index.folder), retriever.retrieval)
