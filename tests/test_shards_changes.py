"""Changes of a sharded index, the states that its readers see, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coil.errors import (
    DamagedManifest,
    InputError,
    MissingIndex,
    MissingShard,
    MixedShards,
    NewerIndex,
    OrdinalsTaken,
    OutputError,
    StateGone,
    UnfinishedBuild,
)
from coil.indexes.opening import create, open_index
from coil.shards import shard as shard_module
from coil.shards.calls import Arguments, LocalCalls
from coil.shards.exchange import Refusal
from coil.shards.index import ShardedIndex
from coil.shards.ledger import Ledger
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place, read_whole
from coil.shards.routing import Routing
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder

DOCS = [{"id": f"d{n}", "text": f"river bank {'money ' * (n % 3)}"} for n in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "many"
    create_shards(find_place(path), 3, encoder=HashEncoder())
    return path


@pytest.fixture
def many(folder: Path) -> Iterator[ShardedIndex]:
    with open_sharded(find_place(folder), HashEncoder()) as opened:
        opened.add(DOCS)
        yield opened


def ids(index: Any, query: str = "river") -> list[str]:
    return [hit.doc_id for hit in index.search(query, k=100)]


def calls_of(index: ShardedIndex) -> LocalCalls:
    calls = index._whole.calls
    assert isinstance(calls, LocalCalls)
    return calls


# ---- states


def test_a_reader_keeps_its_state_while_others_change_it(many: ShardedIndex) -> None:
    with many.pinned() as before:
        first = ids(before)
        many.delete(["d3"])
        many.add([{"id": "new", "text": "river"}])
        assert ids(before) == first
        assert "d3" in before
    assert set(ids(many)) == {*first, "new"} - {"d3"}


def test_a_state_that_is_gone_is_told_or_moved_on_from(
    many: ShardedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As shards in other processes are read, which do not know who reads them.
    with ShardedIndex.pinned(many) as settled, ShardedIndex.pinned(many) as fresh:
        ids(settled)
        monkeypatch.setattr(shard_module, "KEPT_SECONDS", 0.0)
        many.delete(["d3"])
        many.delete(["d4"])
        many.delete(["d5"])
        with pytest.raises(StateGone, match="was requested"):
            ids(settled)
        assert "d3" not in ids(fresh)  # it had not answered yet: any state is as good
        assert fresh.versions == many._changes.versions()


def test_versions_grow_only_where_something_changes(many: ShardedIndex) -> None:
    before = many._changes.versions()
    many.delete(["d3"])
    after = many._changes.versions()
    shard = Routing(3).shard_of("d3")
    assert [number for number in range(3) if before[number] != after[number]] == [shard]


def test_an_open_index_follows_what_another_process_commits(folder: Path, many: ShardedIndex) -> None:
    with open_sharded(find_place(folder), HashEncoder()) as other:
        other.add([{"id": "new", "text": "river"}])
        shard = Routing(3).shard_of("new")
        assert calls_of(many).shards[shard].refresh(other._changes.versions()[shard] or 0)
        assert Ledger(calls_of(many)).versions() == other._changes.versions()


# ---- the ledger


class Failing(LocalCalls):
    """Shards that commit, and then die before they can say so; or that do not answer at all."""

    def __init__(self, calls: LocalCalls) -> None:
        super().__init__(calls.shards)
        self.dies_after: str | None = None
        self.gone: set[int] = set()

    def ask(
        self, numbers: Sequence[int], method: str, arguments: Arguments, meanwhile: Any = None
    ) -> dict[int, Any]:
        missing = self.gone & set(numbers)
        if missing:
            raise MissingShard("gone", "", sorted(missing))
        found = super().ask(numbers, method, arguments)
        if method == self.dies_after:
            self.dies_after = None
            found = super().ask(numbers, method, arguments)  # as a caller does that got no answer
        return found


def test_a_change_that_is_sent_again_is_made_once(many: ShardedIndex) -> None:
    calls = Failing(calls_of(many))
    ledger = Ledger(calls)
    calls.dies_after = "put"
    assert ledger.update([Document("new", "river"), Document("d1", ""), Document("d2", "water")]).added == 2
    versions = ledger.versions()
    calls.dies_after = "delete"
    found = ledger.delete(["new", "nobody"])
    assert (found.deleted, found.missing) == (1, ("nobody",))
    assert ledger.versions() != versions
    assert "new" not in many
    assert "d1" not in many
    assert many["d2"].text == "water"


def test_a_second_try_adds_only_what_the_first_did_not(many: ShardedIndex) -> None:
    shard = calls_of(many).shards[0]
    first = shard.state().next_ordinal
    mine = [doc_id for doc_id in map("n{}".format, range(50)) if Routing(3).shard_of(doc_id) == 0][:3]
    start = -(-first // 3) * 3
    numbered = [(start + 3 * place, Document(doc_id, "river")) for place, doc_id in enumerate(mine)]
    shard.put(numbered[:2])
    version = shard.put(numbered[:2]).state.version
    assert shard.put(numbered).state.documents == shard.put(numbered).state.documents
    assert version == shard.state().version - 1
    with pytest.raises(OrdinalsTaken, match="next one"):
        shard.put([(start, Document("other", "river"))])


def test_a_new_ledger_goes_on_where_the_last_one_was(many: ShardedIndex) -> None:
    calls = calls_of(many)
    old, new = Ledger(calls), Ledger(calls)
    old.update([Document("a", "river"), Document("b", "river"), Document("c", "river")])
    new.update([Document("e", "river"), Document("f", "river"), Document("g", "river")])  # numbered as those
    assert [one for one in ids(many) if len(one) == 1] == ["a", "b", "c", "e", "f", "g"]
    assert len(many) == len(DOCS) + 6


def test_nothing_is_changed_while_a_shard_has_never_answered(many: ShardedIndex) -> None:
    calls = Failing(calls_of(many))
    calls.gone = {1}
    ledger = Ledger(calls)
    assert ledger.versions()[1] is None
    with pytest.raises(MissingShard, match="shard 1 of 3 cannot be reached"):
        ledger.update([Document("a", "river")])
    with pytest.raises(MissingShard):
        ledger.delete(["d1"])
    assert "a" not in many
    calls.gone = set()
    assert ledger.versions() == many._changes.versions()
    assert ledger.update([Document("a", "river")]).documents == len(DOCS) + 1


def test_many_documents_are_several_changes(many: ShardedIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coil.shards.ledger.TOGETHER", 5)
    empty: list[str] = []
    given = [{"id": f"d{n % 13}", "text": "" if n == 20 else f"water {n}"} for n in range(26)]
    assert many.update(given, empty.extend) == 25
    assert empty == ["d7"]
    assert len(many) == 12
    assert many["d0"].text == "water 13"


# ---- missing shards


def test_an_error_tells_how_many_were_added_before(
    many: ShardedIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coil.shards.ledger.TOGETHER", 4)
    docs: list[dict[str, Any]] = [{"id": f"new{n}", "text": "river"} for n in range(9)]
    before = len(many)
    with pytest.raises(InputError, match="; the first 8 documents were added"):
        many.add([*docs, {"id": "x", "text": 7}])
    assert len(many) == before + 8
    with pytest.raises(InputError) as caught:
        many.add([{"id": "x", "text": 7}])
    assert "added" not in caught.value.reason


def test_answers_without_a_shard_say_so(folder: Path, many: ShardedIndex) -> None:
    calls = Failing(calls_of(many))
    allowing = ShardedIndex(many.manifest, calls, Ledger(calls), many.encoder, partial=True)
    strict = ShardedIndex(many.manifest, calls, Ledger(calls), many.encoder)
    whole = ids(many)
    calls.gone = {2}
    there = [doc_id for doc_id in whole if Routing(3).shard_of(doc_id) != 2]
    assert 0 < len(there) < len(whole)
    with allowing.pinned() as reader:
        hits = reader.search("river", k=100)
        told = reader.tell_state()
    assert told["partial"]
    assert told["versions"][2] is None
    assert [(of["shard"], of["of"]) for of in told["missing"]] == [(2, 3)]
    # What is left is searched as an index of its own: with its own statistics.
    with create(folder.parent / "rest.coil", encoder=HashEncoder()) as rest:
        rest.add(document for document in DOCS if document["id"] in there)
        assert list(hits) == list(rest.search("river", k=100))
    with pytest.raises(MissingShard):
        strict.search("river")
    calls.gone = {0, 1, 2}
    with pytest.raises(MissingShard):
        allowing.search("river")
    calls.gone = set()
    with allowing.pinned() as reader:
        assert list(reader.search("river", k=100)) == list(many.search("river", k=100))
        assert reader.tell_state()["partial"] is False


# ---- bad input


def edit(folder: Path, change: Mapping[str, Any]) -> None:
    file = folder / "shards.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        ({"coil_shards": 2}, NewerIndex, "format 2"),
        ({"coil_shards": "x"}, DamagedManifest, "keys"),
        ({"routing": "md5"}, DamagedManifest, "routing"),
        ({"shards": []}, DamagedManifest, "0 shards"),
        ({"shards": 7}, DamagedManifest, "int"),
        ({"whole": "../x"}, DamagedManifest, "label"),
        ({"settings": []}, DamagedManifest, "settings"),
        ({"more": 1}, DamagedManifest, "keys"),
        ({"build": {}}, UnfinishedBuild, "unfinished"),
    ],
)
def test_a_manifest_that_is_wrong_is_refused(folder: Path, change: Any, kind: Any, told: str) -> None:
    edit(folder, change)
    with pytest.raises(kind, match=told):
        open_sharded(find_place(folder), HashEncoder())


def test_shards_outside_the_folder_are_refused(folder: Path) -> None:
    entries = json.loads((folder / "shards.json").read_text())["shards"]
    for path in ("../elsewhere.coil", "/tmp/x.coil", "a/b.coil", entries[1]["path"]):
        edit(folder, {"shards": [{**entries[0], "path": path}, *entries[1:]]})
        with pytest.raises(DamagedManifest):
            open_sharded(find_place(folder), HashEncoder())


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(MissingIndex, match="not a sharded index"):
        open_sharded(find_place(tmp_path))


def test_shards_that_are_not_of_one_index_are_refused(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    create_shards(find_place(other), 3, encoder=HashEncoder())
    shutil.rmtree(folder / "00001.coil")
    with pytest.raises(MissingShard, match="shard 1 of 3 cannot be opened"):
        open_sharded(find_place(folder), HashEncoder())
    shutil.copytree(other / "00001.coil", folder / "00001.coil")
    with pytest.raises(MixedShards, match="another index"):
        open_sharded(find_place(folder), HashEncoder())
    shutil.rmtree(folder / "00001.coil")
    shutil.copytree(folder / "00002.coil", folder / "00001.coil")
    with pytest.raises(MixedShards, match="not shard 1"):
        open_sharded(find_place(folder), HashEncoder())
    shutil.rmtree(folder / "00001.coil")
    create(folder / "00001.coil", encoder=HashEncoder(n_t=5)).close()
    with pytest.raises(MixedShards, match="built with the model hash-5-3-word"):
        open_sharded(find_place(folder), HashEncoder())


def test_an_old_copy_of_a_shard_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "00000.coil", tmp_path / "old")
    with open_sharded(find_place(folder), HashEncoder()) as many:
        many.add(DOCS)
    manifest = read_whole(find_place(folder))
    edit(folder, {"shards": [{**entry.to_json(), "version": 2} for entry in manifest.shards]})
    open_sharded(find_place(folder), HashEncoder()).close()
    shutil.rmtree(folder / "00000.coil")
    shutil.move(tmp_path / "old", folder / "00000.coil")
    with pytest.raises(MixedShards, match="earlier"):
        open_sharded(find_place(folder), HashEncoder())


def test_a_damaged_shard_is_told(folder: Path, many: ShardedIndex) -> None:
    lists = next((folder / "00001.coil" / "segments").glob("*.lists"))
    lists.write_bytes(lists.read_bytes()[:-8])
    with pytest.raises(MissingShard, match="shard 1 of 3"):
        open_sharded(find_place(folder), HashEncoder())


def test_a_shard_is_an_ordinary_index_to_read_but_not_to_add_to(folder: Path, many: ShardedIndex) -> None:
    with open_index(folder / "00000.coil", HashEncoder()) as index:
        assert str(index.shard) == "shard 0 of 3"
        mine = {document.doc_id for document in index}
        assert mine == {doc_id for doc_id in ids(many) if Routing(3).shard_of(doc_id) == 0}
        index.verify()
        for add in (index.add, index.update):
            with pytest.raises(OutputError, match="shard 0 of 3 of a sharded index"):
                add([{"id": "x", "text": "river"}])
        index.compact()


def test_no_place_is_taken_twice(folder: Path) -> None:
    with pytest.raises(OutputError, match="already exists"):
        create_shards(find_place(folder), 2, encoder=HashEncoder())


def test_errors_arrive_as_they_were() -> None:
    for error in (
        StateGone("a", "b", 3, 2),
        MissingShard("a", "b", [1]),
        DamagedManifest("x", "y"),
    ):
        found = Refusal.of(error).error()
        assert type(found) is type(error)
        assert vars(found) == vars(error)
        assert str(found) == str(error)
