"""Shards in object storage: copied here to be read, stored there when they change, and never mixed up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coil.errors import (
    CoilError,
    DamagedSegment,
    IndexLocked,
    InputError,
    MissingIndex,
    MissingShard,
    OutputError,
    ReplacedIndex,
)
from coil.indexes.opening import open_index
from coil.shards.exchange import Put
from coil.shards.opening import create_shards, open_sharded, serve_shard
from coil.shards.places import FolderPlace, StoredPlace, find_place, read_whole
from coil.shards.routing import Routing
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder

fsspec = pytest.importorskip("fsspec")
DOCS = [{"id": f"d{n}", "text": f"river bank {n}"} for n in range(10)]


@pytest.fixture
def url() -> Iterator[str]:
    name = f"memory://{uuid.uuid4().hex}/notes.shards"
    yield name
    fsspec.filesystem("memory").rm(name.removeprefix("memory:/"), recursive=True)


@pytest.fixture
def place(url: str, tmp_path: Path) -> StoredPlace:
    found = find_place(url, tmp_path / "scratch")
    assert isinstance(found, StoredPlace)
    create_shards(found, 2, encoder=HashEncoder())
    return found


def another(place: StoredPlace, tmp_path: Path) -> StoredPlace:
    """The same place as another node sees it."""
    return StoredPlace(place.where, tmp_path / "elsewhere")


def ids(index: Any) -> set[str]:
    return {hit.doc_id for hit in index.search("river", k=100)}


def test_what_one_node_writes_another_reads(place: StoredPlace, tmp_path: Path) -> None:
    with open_sharded(place, HashEncoder()) as one:
        one.add(DOCS)
        with open_sharded(another(place, tmp_path), HashEncoder()) as other:
            assert ids(other) == {document["id"] for document in DOCS}
            one.delete(["d3"])
            one.add([{"id": "new", "text": "river"}])
            assert "d3" not in other
            assert "new" in other
            other.add([{"id": "d4", "text": "river river"}])
            assert one["d4"].text == "river river"
            assert list(one.search("river bank", k=50)) == list(other.search("river bank", k=50))


def test_only_what_the_manifest_names_is_kept(place: StoredPlace) -> None:
    with open_sharded(place, HashEncoder()) as index:
        for document in DOCS * 3:  # segments are merged meanwhile
            index.add([document])
    files = fsspec.filesystem("memory").find(place.where.removeprefix("memory:/"))
    stored = [name for name in files if name.endswith(".lists")]
    local = list(place.folder("00000.coil").glob("segments/*.lists"))
    local += place.folder("00001.coil").glob("segments/*.lists")
    assert {Path(name).name for name in stored} == {path.name for path in local}
    assert not [name for name in files if "lock" in name or "partial" in name]
    with open_index(place.folder("00000.coil"), HashEncoder()) as shard:
        shard.verify()


def test_a_change_that_could_not_be_stored_is_stored_later(
    place: StoredPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = read_whole(place)
    shard = serve_shard(place, manifest, 0, HashEncoder())
    mine = next(doc_id for doc_id in map(str, range(50)) if Routing(2).shard_of(doc_id) == 0)
    put = type(place._files).put_file

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(place._files), "put_file", full)
    with pytest.raises(OutputError, match="No space left"):
        shard.put([(2, Document(mine, "river"))])
    monkeypatch.setattr(type(place._files), "put_file", put)
    found: Put = shard.put([(2, Document(mine, "river"))])
    assert found.state.documents == 1
    with open_sharded(another(place, tmp_path), HashEncoder()) as other:
        assert ids(other) == {mine}
    shard.close()


def test_storage_that_cannot_be_reached_is_told(
    place: StoredPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cat = type(place._files).cat_file

    def cut_off(files: Any, path: str, *given: Any, **how: Any) -> Any:
        if path.endswith("manifest.jsonl"):
            raise ConnectionResetError(104, "Connection reset by peer")
        return cat(files, path, *given, **how)

    with open_sharded(place, HashEncoder()) as index:
        index.update(DOCS)
        monkeypatch.setattr(type(place._files), "cat_file", cut_off)
        assert len(ids(index)) == 10, "what is here is still searched"
        with pytest.raises(CoilError, match=r"cannot be read: .*Connection reset"):
            index.update([{"id": "new", "text": "river"}])
        with pytest.raises(MissingShard, match=r"cannot be opened: .*Connection reset"):
            open_sharded(another(place, tmp_path), HashEncoder())
        monkeypatch.setattr(type(place._files), "cat_file", cat)
        assert index.update([{"id": "new", "text": "river"}]) == 1


def test_two_writers_never_overwrite_each_other(place: StoredPlace, tmp_path: Path) -> None:
    manifest = read_whole(place)
    one = serve_shard(place, manifest, 0, HashEncoder())
    two = serve_shard(another(place, tmp_path), manifest, 0, HashEncoder())
    mine = [doc_id for doc_id in map(str, range(50)) if Routing(2).shard_of(doc_id) == 0]
    one.put([(2, Document(mine[0], "river"))])
    two.index.put([(2, Document(mine[1], "river"))])  # without a look at what the other has done
    with pytest.raises(ReplacedIndex, match="another writer"):
        two._committed()
    with pytest.raises(ReplacedIndex):
        two.state()
    with open_sharded(StoredPlace(place.where, tmp_path / "third"), HashEncoder()) as whole:
        assert ids(whole) == {mine[0]}
    one.close()
    two.close()


def test_a_writer_with_more_commits_does_not_win(place: StoredPlace, tmp_path: Path) -> None:
    manifest = read_whole(place)
    one = serve_shard(place, manifest, 0, HashEncoder())
    two = serve_shard(another(place, tmp_path), manifest, 0, HashEncoder())
    mine = [doc_id for doc_id in map(str, range(50)) if Routing(2).shard_of(doc_id) == 0]
    one.put([(2, Document(mine[0], "river"))])
    two.index.put([(2, Document(mine[1], "river"))])  # without a look at what the other has done
    two.index.put([(4, Document(mine[2], "river"))])
    for ask in (two._committed, two.state):
        with pytest.raises(ReplacedIndex, match="another writer"):
            ask()
    with open_sharded(StoredPlace(place.where, tmp_path / "third"), HashEncoder()) as whole:
        assert ids(whole) == {mine[0]}
    one.close()
    two.close()


def test_an_index_that_was_removed_is_not_stored_again(place: StoredPlace) -> None:
    with open_sharded(place, HashEncoder()) as index:
        index.add(DOCS)
        memory = fsspec.filesystem("memory")
        shards = [shard for shard in place.names() if shard.endswith(".coil")]
        for shard in shards:
            memory.rm(f"{place.where.removeprefix('memory:/')}/{shard}", recursive=True)
            with pytest.raises(ReplacedIndex, match="no longer there"):
                place.push(shard)
        assert not [shard for shard in place.names() if shard.endswith(".coil")]


def test_a_manifest_that_was_stored_unheard_is_gone_on_from(
    place: StoredPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = serve_shard(place, read_whole(place), 0, HashEncoder())
    mine = [doc_id for doc_id in map(str, range(50)) if Routing(2).shard_of(doc_id) == 0]
    pipe = type(place._files).pipe_file

    def unheard(*given: Any, **named: Any) -> None:
        pipe(*given, **named)
        raise OSError(110, "Connection timed out")

    monkeypatch.setattr(type(place._files), "pipe_file", unheard)
    with pytest.raises(OutputError, match="timed out"):
        shard.put([(2, Document(mine[0], "river"))])
    monkeypatch.setattr(type(place._files), "pipe_file", pipe)
    shard.index.put([(4, Document(mine[1], "river"))])
    shard._committed()
    with open_sharded(another(place, tmp_path), HashEncoder()) as other:
        assert ids(other) == {mine[0], mine[1]}
    shard.close()


def test_a_file_that_was_damaged_in_storage_is_told(place: StoredPlace, tmp_path: Path) -> None:
    with open_sharded(place, HashEncoder()) as index:
        index.add(DOCS)
    memory = fsspec.filesystem("memory")
    [name] = memory.glob(f"{place.where.removeprefix('memory:/')}/00001.coil/segments/*.lists")
    content = bytearray(memory.cat_file(name))
    content[-1] ^= 1
    memory.pipe_file(name, bytes(content))
    with pytest.raises(DamagedSegment, match="not what was written"):
        another(place, tmp_path).pull("00001.coil")
    memory.rm_file(name)
    with pytest.raises(MissingShard, match="shard 1 of 2 cannot be opened"):
        open_sharded(another(place, tmp_path), HashEncoder())


def test_copies_of_processes_that_have_ended_are_removed(place: StoredPlace) -> None:
    left_over = place._scratch / "999999999-abcdef"
    left_over.mkdir(parents=True)
    StoredPlace(place.where, place._scratch.parent).folder("00000.coil")
    assert not left_over.exists()
    assert place.folder("00000.coil").exists()  # this process is running


def test_wrong_addresses(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        find_place("nowhere://bucket/x")
    with pytest.raises(MissingIndex, match="not a sharded index"):
        read_whole(find_place("memory://nothing/here", tmp_path))
    with pytest.raises(MissingIndex):
        read_whole(find_place(tmp_path / "nothing"))
    (tmp_path / "file").write_text("x")
    with pytest.raises(OutputError):
        create_shards(find_place(tmp_path / "file"), 2, encoder=HashEncoder())
    for count in (0, 5000, "x"):
        with pytest.raises(InputError, match="shards"):
            create_shards(find_place(tmp_path / "new"), count, encoder=HashEncoder())  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()


def test_the_url_of_a_folder_is_the_folder(tmp_path: Path) -> None:
    place = find_place(f"file://{tmp_path}/notes.shards/")
    create_shards(place, 2, encoder=HashEncoder())
    with open_sharded(find_place(tmp_path / "notes.shards"), HashEncoder()) as index:
        index.add(DOCS)
    with open_sharded(place, HashEncoder()) as index:
        assert len(index) == len(DOCS)


def test_a_replaced_manifest_keeps_its_permissions(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path)
    place.write("shards.json", b"first")
    for mode in (0o604, 0o664):
        (tmp_path / "shards.json").chmod(mode)
        place.write("shards.json", b"second")
        assert oct((tmp_path / "shards.json").stat().st_mode & 0o777) == oct(mode)


def test_one_build_at_a_time(tmp_path: Path) -> None:
    place = FolderPlace(tmp_path / "notes.shards")
    with place.claim(), pytest.raises(IndexLocked, match="is being built by another process"), place.claim():
        pass
    with place.claim():
        pass
    assert place.names() == []
