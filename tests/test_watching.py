"""Rounds of a watch: the index has what the files have, no more is encoded than has changed, and documents
from elsewhere stay."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.cli.main import run
from coil.errors import DuplicateId, IndexLocked, OptionMismatch, TooLittleMemory
from coil.indexes import index as index_module
from coil.indexes.building import open_build
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.indexes.watching import Round, Watch
from coil.storage.lock import writer_lock
from coil.storage.manifest import Manifest
from coil.storage.watched import Watched
from coil.texts.columns import name_columns
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
from tests.tiny import PROFILE


class CountingEncoder(HashEncoder):
    """Tells which texts were encoded."""

    def __init__(self) -> None:
        super().__init__(profile=PROFILE)
        self.texts: list[str] = []

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        def noted() -> Iterator[str]:
            for text in texts:
                self.texts.append(text)
                yield text

        return super().encode_documents(noted())


class World:
    """A folder, an index, and the watch between them; `again` is a new process."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "notes"
        self.root.mkdir()
        self.out = tmp_path / "notes.coil"
        self.encoder = CountingEncoder()
        self.index = create(self.out, encoder=self.encoder)
        self.watch = Watch(self.index, [self.root])

    def again(self, *sources: Path, **options: object) -> Round:
        self.index = open_index(self.out, self.encoder)
        self.watch = Watch(self.index, sources or [self.root], **options)  # type: ignore[arg-type]
        return self.settle()

    def settle(self) -> Round:
        """Rounds until nothing is in motion, as one."""
        self.encoder.texts.clear()
        rounds = [self.watch.round()]
        while rounds[-1].is_due:
            rounds.append(self.watch.round())
            assert len(rounds) < 10
        return Round(*(sum(getattr(r, name) for r in rounds) for name in ("added", "updated", "removed")))

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def documents(self) -> dict[str, Document]:
        return {document.doc_id: document for document in self.index}

    def texts(self) -> dict[str, str]:
        return {doc_id: document.text for doc_id, document in self.documents().items()}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_ids_of_records_that_exceed_the_memory_end_the_watch(world: World) -> None:
    """Ids get 8 times the longest line: 8,000 bytes, enough for 31 of them."""
    records = [json.dumps({"id": f"{i:04}", "text": "river"}) + "\n" for i in range(90)]
    files = [world.write("a.jsonl", "".join(records[:25])), world.write("b.jsonl", records[25])]
    assert world.again(*files, longest=1_000) == Round(added=26)
    world.write("b.jsonl", "".join(records[25:50]))
    with pytest.raises(
        TooLittleMemory, match=r"ids of all records.*b\.jsonl.*limit of 8,000 bytes"
    ) as caught:
        world.settle()
    assert "raise --memory" in caught.value.remedy
    assert len(world.texts()) == 26
    world.write("b.jsonl", "".join(records[25:27]))
    assert world.again(*files, longest=1_000) == Round(added=1)
    world.write("a.jsonl", "".join(records[60:85]))  # the ids that the file had before do not count
    assert world.settle() == Round(added=25, removed=25)


def test_new_changed_renamed_and_deleted_files(world: World) -> None:
    world.write("river.md", "# The river\n\na bank by the river\n")
    world.write("deep/loan.txt", "a loan")
    assert world.settle() == Round(added=2)
    assert world.settle() == Round()
    world.write("river.md", "# The river\n\na boat on the river\n")
    world.write("bank.txt", "a bank")
    (world.root / "deep").rename(world.root / "deeper")
    assert world.settle() == Round(2, 1, 1)
    assert world.documents() == {d.doc_id: d for d in read_documents(world.root)}
    assert world.documents()["river.md"].fields == {"title": "The river"}
    shutil.rmtree(world.root / "deeper")
    (world.root / "bank.txt").unlink()
    assert world.settle() == Round(removed=2)
    assert list(world.texts()) == ["river.md"]


def test_all_chunks_of_a_file_are_replaced(world: World) -> None:
    world.write("long.txt", "the bank lends money to the river. " * 40)
    world.settle()
    chunks = world.index.inspect().rows
    world.write("long.txt", "a short loan")
    world.settle()
    assert chunks > 1
    assert world.index.inspect().rows == 1
    assert [hit.doc_id for hit in world.index.search("lends", by="bm25")] == []


def test_a_large_process_without_a_limit_can_watch(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_module, "resident_bytes", lambda: 9 << 30)
    world.write("long.txt", "the bank lends money to the river. " * 40)
    assert world.settle() == Round(added=1)


def test_only_what_has_changed_is_encoded(world: World) -> None:
    for number in range(20):
        world.write(f"{number}.txt", f"river {number}")
    world.settle()
    assert len(world.encoder.texts) == 20
    version = world.index.version
    assert world.again() == Round()
    assert world.encoder.texts == []
    assert world.index.version == version  # nothing was written either
    world.write("3.txt", "bank")
    (world.root / "4.txt").unlink()
    os.utime(world.root / "5.txt", (1, 1))
    assert world.again() == Round(0, 1, 1)
    assert world.encoder.texts == ["3\nbank"]  # with its path


def test_documents_from_elsewhere_stay(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write("a.txt", "river a")
    world.settle()
    other = open_index(world.out, world.encoder)
    other.add([{"id": "elsewhere", "text": "loan"}, {"id": "b.txt", "text": "money"}])
    (world.root / "a.txt").unlink()
    world.write("b.txt", "river b")
    world.write("c.txt", "river c")
    assert world.settle() == Round(added=1, removed=1)
    assert world.texts() == {"elsewhere": "loan", "b.txt": "money", "c.txt": "river c"}
    assert "kept 1 document from other sources" in caplog.text
    assert "--on-duplicate update" in caplog.text
    (world.root / "b.txt").unlink()
    assert world.settle() == Round()  # it is not ours
    world.write("b.txt", "river b")
    with pytest.raises(DuplicateId):
        world.again(on_duplicate="error")
    caplog.clear()
    assert world.again(on_duplicate="skip") == Round()
    assert not caplog.text
    assert world.again(on_duplicate="update") == Round(updated=1)
    (world.root / "b.txt").unlink()
    assert world.again() == Round(removed=1)
    assert world.texts() == {"elsewhere": "loan", "c.txt": "river c"}


def test_a_document_that_equals_a_file_becomes_the_file_s(world: World) -> None:
    world.write("a.txt", "river")
    world.write("b.txt", "bank")
    world.index.add(read_documents(world.root))
    assert world.settle() == Round()
    assert world.encoder.texts == []
    world.write("a.txt", "boat")
    (world.root / "b.txt").unlink()
    assert world.again() == Round(updated=1, removed=1)
    assert world.texts() == {"a.txt": "boat"}


def test_another_folder_is_elsewhere(world: World, tmp_path: Path) -> None:
    world.write("a.txt", "river a")
    world.settle()
    second = tmp_path / "second"
    second.mkdir()
    (second / "b.txt").write_text("river b")
    assert world.again(second) == Round(added=1)
    assert set(world.texts()) == {"a.txt", "b.txt"}
    (second / "b.txt").unlink()
    (world.root / "a.txt").unlink()
    (world.root / "c.txt").write_text("river c")
    assert world.again(world.root, second) == Round(1, 0, 2)


def test_what_a_build_has_added_is_taken_over(tmp_path: Path) -> None:
    root, out, encoder = tmp_path / "notes", tmp_path / "a.coil", CountingEncoder()
    root.mkdir()
    for name in "abc":
        (root / f"{name}.txt").write_text(f"river {name}")
    index, state = open_build(out, encoder=encoder)
    index.build(read_documents(root), state.on_duplicate, None, 10)
    index.add([{"id": "elsewhere", "text": "loan"}])
    (root / "a.txt").unlink()
    (root / "b.txt").write_text("bank")
    encoder.texts.clear()
    watch = Watch(open_index(out, encoder), [root])
    assert watch.round() == Round(0, 1, 1)
    assert encoder.texts == ["b\nbank"]  # with its path
    index.refresh()
    assert {d.doc_id: d.text for d in index} == {"b.txt": "bank", "c.txt": "river c", "elsewhere": "loan"}


def test_a_build_of_something_else_is_not_taken_over(tmp_path: Path) -> None:
    root, corpus, out = tmp_path / "notes", tmp_path / "c.jsonl", tmp_path / "a.coil"
    root.mkdir()
    (root / "a.txt").write_text("river")
    corpus.write_text('{"id": "1", "text": "loan"}\n')
    index, state = open_build(out, encoder=(encoder := CountingEncoder()))
    index.build(read_documents(corpus), state.on_duplicate, None, 10)
    assert Watch(open_index(out, encoder), [root]).round() == Round(added=1)
    index.refresh()
    assert {d.doc_id for d in index} == {"1", "a.txt"}


def test_rows_of_a_table(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = tmp_path / "faq.csv"
    columns = name_columns("url", ["answer"])

    def rows(*pairs: tuple[str, str]) -> None:
        table.write_text("url,answer\n" + "".join(f"{url},{text}\n" for url, text in pairs))

    rows(("1", "river"), ("2", "bank"), ("3", "loan"))
    assert world.again(table, columns=columns) == Round(added=3)
    rows(("1", "river"), ("3", "boat"), ("4", "money"))
    assert world.settle() == Round(1, 1, 1)
    assert world.texts() == {"1": "river", "3": "boat", "4": "money"}
    rows(("1", "river"), ("4", "money"))
    assert world.again(table, columns=columns) == Round(removed=1)
    with table.open("a") as file:  # a line in the middle of being written
        file.write("5,b\n6")
    assert world.settle() == Round()
    assert "faq.csv" in caplog.text
    assert set(world.texts()) == {"1", "4"}
    assert world.again(table, world.root, columns=columns) == Round()
    assert set(world.texts()) == {"1", "4"}  # a file that cannot be read says nothing of what is gone
    rows(("4", "money"), ("5", "b"))
    assert world.settle() == Round(1, 0, 1)
    assert set(world.texts()) == {"4", "5"}


def test_a_value_of_another_kind_is_a_change(world: World, tmp_path: Path) -> None:
    """For Python, 1, 1.0 and true are equal; for a filter they are not."""
    table = tmp_path / "t.jsonl"
    for value, expected in (
        ("1", {"added": 1}),
        ("true", {"updated": 1}),
        ("1.0", {"updated": 1}),
        ("1.0", {}),
    ):
        table.write_text(f'{{"id": "a", "text": "river", "draft": {value}, "more": [{{"x": {value}}}]}}\n')
        assert (world.again(table) if value == "1" else world.settle()) == Round(**expected)
        assert repr(world.index["a"].fields["draft"]) == repr(json.loads(value))
    table.write_text('{"id": "a", "more": [{"x": 1.0}], "draft": 1.0, "text": "river"}\n')
    assert world.settle() == Round()


def test_a_row_that_moves_to_another_file_stays(world: World, tmp_path: Path) -> None:
    first, second = tmp_path / "1.jsonl", tmp_path / "2.jsonl"
    row = json.dumps({"id": "x", "text": "river"}) + "\n"
    first.write_text(row)
    second.write_text('{"id": "y", "text": "loan"}\n')
    assert world.again(first, second) == Round(added=2)
    first.write_text("")
    second.write_text(row)
    assert world.settle() == Round(removed=1)
    assert world.texts() == {"x": "river"}
    first.write_text(row)
    second.write_text("")
    assert world.again(first, second) == Round()
    assert world.texts() == {"x": "river"}


def test_an_id_in_two_files_belongs_to_the_first(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "a.txt").write_text("loan")
    world.write("a.txt", "river")
    assert world.again(world.root, second) == Round(added=1)
    assert world.texts() == {"a.txt": "river"}
    assert "more than one place" in caplog.text
    (world.root / "a.txt").unlink()
    assert world.settle() == Round(updated=1)
    assert world.texts() == {"a.txt": "loan"}
    (second / "a.txt").unlink()
    assert world.settle() == Round(removed=1)


def test_a_file_that_cannot_be_read_keeps_its_document(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("a.txt", "river")
    world.write("b.pdf", "")
    world.settle()
    caplog.clear()
    (world.root / "a.txt").write_bytes(b"\0\1\2" * 100)
    assert world.settle() == Round()
    assert "a.txt is not a text file" in caplog.text
    assert world.texts() == {"a.txt": "river"}
    caplog.clear()
    assert world.settle() == Round()
    assert not caplog.text  # it is told once
    assert world.again() == Round()
    assert world.texts() == {"a.txt": "river"}
    world.write("a.txt", "boat")
    assert world.settle() == Round(updated=1)


def test_a_document_that_is_too_large_is_left_out(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.write("a.txt", "river")
    world.write("b.txt", "bank")
    world.settle()
    world.watch._longest = 50
    world.write("a.txt", "river " * 100)
    world.write("b.txt", "boat")
    assert world.settle() == Round(updated=1)
    assert "exceeds" in caplog.text
    assert world.texts() == {"a.txt": "river", "b.txt": "boat"}


def test_a_file_without_text_loses_its_document(world: World) -> None:
    world.write("a.txt", "river")
    world.write("b.txt", " \n")
    assert world.settle() == Round(added=1)
    world.write("a.txt", "")
    assert world.settle() == Round(removed=1)
    assert world.texts() == {}
    world.write("a.txt", "bank")
    assert world.settle() == Round(added=1)


def test_a_file_is_read_when_it_has_settled(world: World) -> None:
    world.write("a.txt", "river")
    world.settle()
    world.write("a.txt", "half of")
    assert world.watch.round() == Round(is_due=True)
    world.write("a.txt", "half of the text")
    assert world.watch.round() == Round(is_due=True)
    assert world.texts() == {"a.txt": "river"}
    assert world.watch.round() == Round(updated=1)
    (world.root / "a.txt").unlink()
    assert world.watch.round() == Round(is_due=True)
    world.write("a.txt", "half of the text")  # an editor that deletes and writes again
    assert world.settle() == Round()
    assert world.texts() == {"a.txt": "half of the text"}
    assert world.encoder.texts == []


def test_a_file_that_changes_while_it_is_read_is_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = world.write("a.txt", "river")
    from coil.indexes import changes

    original = changes.read_part

    def slow(*arguments: object) -> Iterator[Document]:
        found = list(original(*arguments))  # type: ignore[arg-type]
        monkeypatch.setattr(changes, "read_part", original)
        path.write_text("the whole river")
        return iter(found)

    monkeypatch.setattr(changes, "read_part", slow)
    first = world.watch.round()
    assert first == Round(is_due=True)
    assert world.texts() == {}
    assert world.settle() == Round(added=1)
    assert world.texts() == {"a.txt": "the whole river"}


def test_a_folder_out_of_reach_keeps_its_documents(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("a.txt", "river")
    world.settle()
    world.root.rename(tmp_path / "away")
    assert world.settle() == Round()
    assert "unavailable" in caplog.text
    world.root.mkdir()  # the place where a disk was mounted
    assert world.settle() == Round()
    assert world.texts() == {"a.txt": "river"}
    world.root.rmdir()
    (tmp_path / "away").rename(world.root)
    assert world.settle() == Round()
    (world.root / "a.txt").unlink()
    assert world.settle() == Round(removed=1)  # here it is the same folder, without its file


def test_a_folder_without_rights_keeps_its_documents(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.write("deep/a.txt", "river")
    world.write("b.txt", "bank")
    world.settle()
    (world.root / "b.txt").unlink()
    listed = os.scandir

    def refused(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    with monkeypatch.context() as patched:  # for whom runs the tests, rights may not hold
        patched.setattr(os, "scandir", refused)
        assert world.settle() == Round(removed=1)
        assert "deep is unavailable" in caplog.text
        world.write("c.txt", "loan")
        assert world.again() == Round(added=1)
    assert world.texts() == {"deep/a.txt": "river", "c.txt": "loan"}
    (world.root / "deep" / "a.txt").unlink()
    assert world.settle() == Round(removed=1)


def test_another_writer_is_reported_and_nothing_is_lost(world: World) -> None:
    world.write("a.txt", "river")
    with writer_lock(world.out), pytest.raises(IndexLocked):
        world.watch.round()
    assert world.settle() == Round(added=1)
    world.write("a.txt", "bank")
    world.watch.round()
    with writer_lock(world.out), pytest.raises(IndexLocked):
        world.watch.round()
    assert world.settle() == Round(updated=1)


NAMES = st.sampled_from(["a.txt", "b.md", "c.txt", "deep/d.txt", "deep/e.md"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.sampled_from(["river", "bank loan", "# Boat\n\nmoney", ""])),
        st.tuples(st.just("delete"), NAMES, st.just("")),
        st.tuples(st.just("move"), NAMES, st.sampled_from(["a.txt", "f.txt"])),
        st.tuples(st.sampled_from(["round", "again", "add", "compact"]), st.just(""), st.just("")),
    ),
    max_size=20,
)


@given(STEPS)
@settings(max_examples=40, deadline=None)
def test_after_any_changes_the_index_has_what_the_files_have(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str]]
) -> None:
    world = World(tmp_path_factory.mktemp("watched"))
    foreign = 0
    for verb, name, value in [*steps, ("round", "", "")]:
        path = world.root / name
        if verb == "write":
            world.write(name, value)
        elif verb == "delete":
            path.unlink(missing_ok=True)
        elif verb == "move" and path.is_file():
            path.replace(world.root / value)
        elif verb == "add":
            world.index.add([{"id": f"foreign {foreign}", "text": "money"}])
            foreign += 1
        elif verb == "compact":
            world.index.compact()
        elif verb == "again":
            world.again()
        elif verb == "round":
            world.settle()
    expected = {d.doc_id: d for d in read_documents(world.root) if not d.is_empty} if _any(world.root) else {}
    found = world.documents()
    assert {i: d for i, d in found.items() if not i.startswith("foreign")} == expected
    assert len(found) == len(expected) + foreign


def _any(folder: Path) -> bool:
    return any(path.is_file() for path in folder.rglob("*"))


# ---- what the manifest keeps


def test_runs_are_few_where_nobody_else_writes(world: World) -> None:
    for number in range(10):
        world.write("a.txt", f"river {number}")
        world.settle()
    with world.index._holder.held() as current:
        assert current.manifest.watched.n_runs == 1


@pytest.mark.parametrize("is_built", [True, False])
def test_the_columns_of_a_source_are_kept(tmp_path: Path, is_built: bool) -> None:
    """A watch without column options must not read other ids and texts from the same files."""
    world = World(tmp_path)
    table = tmp_path / "faq.csv"
    table.write_text("id,url,text,question\n1,u1,steep,river\n2,u2,otter,bank\n")
    columns = name_columns("url", ["question"])
    if is_built:
        shutil.rmtree(world.out)
        index, state = open_build(world.out, encoder=world.encoder, columns=columns)
        given = read_documents(table, id_column="url", text_column="question")
        index.build(given, state.on_duplicate, None, 10)
        assert world.again(table) == Round()
    else:
        assert world.again(table, columns=columns) == Round(added=2)
    table.write_text(table.read_text() + "3,u3,otter,stream\n")
    assert world.again(table) == Round(added=1)  # the build state is gone: the index itself knows the columns
    assert {document.doc_id: document.text for document in world.index} == {
        "u1": "river", "u2": "bank", "u3": "stream",
    }  # fmt: skip
    with pytest.raises(OptionMismatch, match="was indexed with --id-column url --text-column question, not"):
        world.again(table, columns=name_columns("id"))
    assert world.again(table, columns=columns) == Round()
    other = tmp_path / "other.csv"
    other.write_text("id,text\na,otter\n")
    assert world.again(other) == Round(added=1)  # another source has columns of its own
    with pytest.raises(OptionMismatch, match="was indexed with no column options, not --id-column url"):
        world.again(table, other, columns=columns)
    assert world.again(table, other) == Round()


@given(st.lists(st.sampled_from(["one", "two", None]), max_size=30), st.sets(st.integers(0, 29)))
def test_runs_tell_whose_each_document_is(owners: list[str | None], dead: set[int]) -> None:
    watched = Watched()
    for ordinal, owner in enumerate(owners, start=1):
        if owner is not None:
            watched = watched.added(owner, ordinal, ordinal + 1)
    alive = np.array([o for o in range(1, len(owners) + 1) if o - 1 not in dead], dtype=np.int64)
    taken = alive[::3].tolist()
    expected = {o: "two" if o in taken else owners[o - 1] for o in alive.tolist()}
    named = watched.read_with({"one": name_columns("url"), "two": name_columns()})
    written = json.loads(json.dumps(named.assigned(alive, {"two": taken}).to_json()))
    assigned = Watched.from_json(written.get("watched", {}), written["watched_columns"])
    assert assigned.columns == {"one": name_columns("url")}
    for name in ("one", "two"):
        assert assigned.came_from(name, alive).tolist() == [expected[o] == name for o in alive.tolist()]
    assert assigned.n_runs <= watched.n_runs + len(taken) + 1 or not len(alive)


@pytest.mark.parametrize(
    "value", [[], {"a": 1}, {"a": [[1]]}, {"a": [[2, 2]]}, {"a": [[3, 4], [1, 2]]}, {"a": [["1", "2"]]}]
)
def test_runs_that_cannot_be_are_refused(value: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        Watched.from_json(value)


def test_an_index_that_was_never_watched_has_the_same_bytes_as_before() -> None:
    assert b"watched" not in Manifest("0" * 32, {}).to_bytes()


# ---- the command line


def test_options_that_contradict_a_watch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("river")
    source, out = str(tmp_path / "a.txt"), str(tmp_path / "a.coil")
    for extra in ("--resume", "--dry-run"):
        assert run(["index", source, "--out", out, "--watch", extra]) == 2
        assert "--watch resumes by itself" in capsys.readouterr().err
    assert run(["index", "-", "--out", out, "--watch"]) == 2
    assert "requires files or folders" in capsys.readouterr().err
    assert not Path(out).exists()


def test_a_missing_package_is_told_before_anything_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    (tmp_path / "a.txt").write_text("river")
    out = tmp_path / "a.coil"
    assert run(["index", str(tmp_path), "--out", str(out), "--watch"]) == 1
    assert "pip install 'coil-ir[watch]'" in capsys.readouterr().err
    assert not out.exists()


def test_an_index_made_otherwise_keeps_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("river")
    index: Index = create(tmp_path / "a.coil", precision="fp32")
    index.close()
    out = str(tmp_path / "a.coil")
    assert run(["index", str(tmp_path / "a.txt"), "--out", out, "--watch", "--precision", "int8"]) == 1
    assert "was built with --precision fp32" in capsys.readouterr().err
