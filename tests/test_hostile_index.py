"""Indexes that somebody has tampered with, with digests that fit: named errors, and no harm done."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coil.errors import DamagedManifest, DamagedSegment, IndexProblem, OutputError, ReplacedIndex
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.lists.precision import Precision
from coil.storage import manifest, writer
from coil.storage.connections import Watch
from tests.hash_encoder import HashEncoder
from tests.mutations import change_manifest, cover_up

THESIS = "years of work"


def make(path: Path, count: int = 5) -> Path:
    """A small index."""
    with create(path, encoder=HashEncoder()) as index:
        index.add([{"id": f"d{number}", "text": "river bank", "year": number} for number in range(count)])
    return path


def reopen(path: Path) -> Index:
    return open_index(path, HashEncoder())


# ---- links in the place of what a writer changes


def test_a_writer_leaves_alone_what_segments_links_to(tmp_path: Path) -> None:
    victim, empty = tmp_path / "victim", tmp_path / "a.coil"
    victim.mkdir()
    (victim / "thesis.txt").write_text(THESIS)
    create(empty, encoder=HashEncoder()).close()
    (empty / "segments").symlink_to(victim)
    with reopen(empty) as index:
        for change in (
            lambda: index.delete(["nothing"]),
            lambda: index.add([{"id": 1, "text": "river"}]),
            index.compact,
        ):
            with pytest.raises(OutputError, match="segments is a symbolic link"):
                change()
    assert not reopen(empty).discard_if_empty()
    assert [path.read_text() for path in victim.iterdir()] == [THESIS]


def test_indexes_that_share_a_folder_of_segments_do_not_remove_each_others(tmp_path: Path) -> None:
    one, other = make(tmp_path / "one.coil"), make(tmp_path / "other.coil")
    for path in (other / "segments").iterdir():
        path.rename(one / "segments" / path.name)
    (other / "segments").rmdir()
    (other / "segments").symlink_to(one / "segments")
    for change in (lambda index: index.delete(["d1"]), lambda index: index.compact()):
        with reopen(other) as index, pytest.raises(OutputError, match="is a symbolic link"):
            change(index)
    for path in (one, other):
        with reopen(path) as index:
            index.verify()
            assert len(index) == 5


@pytest.mark.parametrize("kind", ["symbolic", "hard"])
def test_the_lock_does_not_overwrite_what_it_links_to(tmp_path: Path, kind: str) -> None:
    precious, path = tmp_path / "precious", make(tmp_path / "a.coil")
    precious.write_text(THESIS)
    (path / "writer.lock").unlink()
    with reopen(path) as index:
        if kind == "hard":
            os.link(precious, path / "writer.lock")
            assert index.delete(["d1"]) == 1
        else:
            (path / "writer.lock").symlink_to(precious)
            with pytest.raises(OutputError, match=r"writer\.lock is a symbolic link"):
                index.delete(["d1"])
    assert precious.read_text() == THESIS


def test_a_writer_removes_only_files_that_a_writer_has_made(tmp_path: Path) -> None:
    path = make(tmp_path / "a.coil")
    ours = path / "segments" / "0000000099-0123456789abcdef.lists"
    others = [
        path / "segments" / "thesis.txt",
        path / "segments" / "backup.lists",
        path / "manifest-.partial",
    ]
    for file in (ours, *others):
        file.write_text(THESIS)
    with reopen(path) as index:
        index.delete(["d1"])
    assert not ours.exists()
    assert all(file.read_text() == THESIS for file in others)


# ---- documents


def tampered(path: Path, sql: str) -> Path:
    """A small index whose documents were changed."""
    make(path)
    [documents] = (path / "segments").glob("*.documents")
    with closing(sqlite3.connect(documents)) as connection:
        connection.executescript(sql)
    cover_up(path, documents)
    return path


HIDDEN = "ALTER TABLE documents RENAME TO hidden; CREATE VIEW documents AS "
ENDLESS = (
    f"{HIDDEN} WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
    "SELECT n AS ordinal, 'a' || n AS doc_id, 't' AS text, '{}' AS fields, 0 AS dropped FROM r"
)


@pytest.mark.parametrize("span", [(0, 5), (0, 11), (1, 10), (4_000_000, 4_000_010)])
def test_rows_that_are_not_the_text_are_found(tmp_path: Path, span: tuple[int, int]) -> None:
    path = make(tmp_path / "a.coil")
    [lists] = (path / "segments").glob("*.lists")
    content = bytearray(lists.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    begin += json.loads(content[8:begin])["row_spans"]["data_offsets"][0]
    assert np.frombuffer(content, np.uint32, 2, begin).tolist() == [0, len("river bank")]
    content[begin : begin + 8] = np.array(span, np.uint32).tobytes()
    lists.write_bytes(content)
    cover_up(path, lists)
    with pytest.raises(DamagedSegment, match="do not cover its text"):
        reopen(path).verify()


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        f"{HIDDEN} SELECT 'x' AS ordinal, doc_id, text, fields, dropped FROM hidden",
        "ALTER TABLE documents ADD COLUMN more TEXT",
        "CREATE TABLE more (a)",
        "CREATE INDEX more ON documents (text)",
        "CREATE TRIGGER more AFTER INSERT ON documents BEGIN SELECT 1; END",
    ],
)
def test_documents_with_another_schema_are_refused(tmp_path: Path, sql: str) -> None:
    with pytest.raises(DamagedSegment, match="schema"):
        reopen(tampered(tmp_path / "a.coil", sql))


@pytest.mark.parametrize(
    "fields",
    [
        '{"year": NaN}',
        '{"year": -Infinity}',
        '{"tags": [1, [Infinity]]}',
        '{"a": "\\ud800"}',
        '{"\\udfff": 1}',
    ],
)
def test_fields_that_a_filter_could_not_read_are_found(tmp_path: Path, fields: str) -> None:
    """Python's parser accepts more than SQLite's."""
    path = tampered(tmp_path / "a.coil", f"UPDATE documents SET fields = '{fields}' WHERE ordinal = 1")
    with reopen(path) as index, pytest.raises(DamagedSegment, match="the fields of a document"):
        index.verify()


@pytest.mark.parametrize("change", ["text = x'fffe00'", "dropped = 'x'", "fields = x'7b7d'", "dropped = 0.5"])
def test_values_of_other_types_are_found(tmp_path: Path, change: str) -> None:
    path = tampered(tmp_path / "a.coil", f"UPDATE documents SET {change} WHERE ordinal > 1")
    with reopen(path) as index:
        with pytest.raises(DamagedSegment):
            index.verify()
        for step in (
            lambda: [hit.text for hit in index.search("river")],
            lambda: index.document("d1"),
            lambda: index.explain("river", "d1"),
        ):
            if "dropped" not in change:
                with pytest.raises(DamagedSegment):
                    step()
        index.delete(["d0"])
        with pytest.raises(DamagedSegment):
            index.compact()


def test_an_id_that_was_not_found_when_it_was_updated_is_not_merged(tmp_path: Path) -> None:
    """The end of the file is where SQLite has the first ids."""
    path = make(tmp_path / "a.coil")
    [documents] = (path / "segments").glob("*.documents")
    os.truncate(documents, documents.stat().st_size - 20)
    cover_up(path, documents)
    with reopen(path) as index:
        index.update([{"id": "d1", "text": "bank"}])
        with pytest.raises(DamagedSegment, match="two documents with the same id") as caught:
            index.compact()
        assert caught.value.remedy
        with pytest.raises(DamagedSegment):
            index.verify()
        assert len(list((path / "segments").iterdir())) == 4


def test_an_id_that_is_no_text_is_found(tmp_path: Path) -> None:
    with reopen(
        tampered(tmp_path / "a.coil", "UPDATE documents SET doc_id = x'64' WHERE ordinal = 2")
    ) as index:
        for step in (index.verify, lambda: index.search("river"), lambda: index.search_many(["river"], 10)):
            with pytest.raises(DamagedSegment):
                step()


# ---- manifests


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("version", 2**62),
        ("next_ordinal", 2**62),
        ("next_segment", 10**10 - 1),
    ],
)
def test_a_manifest_that_nobody_could_read_is_not_published(tmp_path: Path, key: str, value: int) -> None:
    path = make(tmp_path / "a.coil")
    change_manifest(path, lambda manifest: manifest.update({key: value}))
    with reopen(path) as index:
        with pytest.raises(IndexProblem, match="could not be read"):
            index.add([{"id": "new", "text": "river"}])
        assert len(index) == 5
    with reopen(path) as index:
        index.verify()
        assert len(index) == 5


def test_a_manifest_that_grows_too_large_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make(tmp_path / "a.coil")
    monkeypatch.setattr(manifest, "LARGEST", (path / "manifest.jsonl").stat().st_size + 10)
    with reopen(path) as index, pytest.raises(IndexProblem, match="exceeds the limit"):
        index.add([{"id": "new", "text": "river"}])
    assert len(reopen(path)) == 5


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("next_segment", 10**10),
        ("index_id", "a\0b"),
        ("index_id", "\ud800xx"),
        ("index_id", "0" * 31 + "G"),
        ("index_id", 5),
    ],
)
def test_a_manifest_with_values_that_none_has_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = make(tmp_path / "a.coil")
    change_manifest(path, lambda manifest: manifest.update({key: value}))
    with pytest.raises(DamagedManifest):
        reopen(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("documents", None),
        ("documents", -1),
        ("empty", 1),
        ("empty", True),
        ("finished", 0),
        ("digest", "00"),
        ("digest", None),
        ("starts", [[1, "1"]]),
        ("starts", [[5, 5], [1, 1]]),
        ("starts", 1),
        ("on_duplicate", []),
        ("on_duplicate", "never"),
        ("columns", []),
        ("columns", {"id": 1}),
        ("columns", {"text": "body"}),
        ("columns", {"author": "x"}),
    ],
)
def test_a_build_state_of_other_types_is_refused(tmp_path: Path, key: str, value: object) -> None:
    path = tmp_path / "a.coil"
    create(path, encoder=HashEncoder(), build_with="error").close()
    change_manifest(path, lambda manifest: manifest["build"].update({key: value}))
    with pytest.raises(DamagedManifest):
        reopen(path)


def _fan_out(path: Path) -> None:
    """Aim all children of a page of the table at one other page, again and again: a scan has no end."""
    data = bytearray(path.read_bytes())
    size = int.from_bytes(data[16:18], "big")
    with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'documents'")
    top = bytes(data[(root - 1) * size : root * size])
    assert top[0] == 5  # a page with children
    cells = [int.from_bytes(top[12 + 2 * i : 14 + 2 * i], "big") for i in range(top[3] * 256 + top[4])]
    children = [int.from_bytes(top[cell : cell + 4], "big") for cell in cells]
    at = root
    for next_page in [*children[5:11], children[0]]:
        page = bytearray(top)
        for cell in (*cells, 8):
            page[cell : cell + 4] = next_page.to_bytes(4, "big")
        data[(at - 1) * size : at * size] = page
        at = next_page
    path.write_bytes(data)


def test_a_table_without_an_end_is_not_read_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "a.coil"
    with create(path, encoder=HashEncoder()) as index:
        index.add([{"id": f"d{i}", "text": "river bank " * 60, "year": 2020} for i in range(300)])
    [file] = (path / "segments").glob("*.documents")
    _fan_out(file)
    cover_up(path, file)
    with reopen(path) as index:
        for do in (
            index.inspect,
            lambda: index.search("river", filter="year >= 2020"),
            lambda: index.search("river", filter="year >= 2021"),
            index.verify,
        ):
            with pytest.raises(DamagedSegment):
                do()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer")
def test_a_filter_can_be_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Watch, "steps", 10)
    path = make(tmp_path / "a.coil", 2_000)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def ask_on(index: Index) -> None:
        wanted = " or ".join(f"year = {-number - 1}" for number in range(100))
        while True:
            index.search("river", filter=f"{wanted} or year = {time.monotonic_ns()}")

    with reopen(path) as index:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                ask_on(index)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert len(index.search("river", 10, filter="year < 3")) == 3


@pytest.mark.parametrize(("documents", "living"), [(5, 1), (5, 4), (4, 4)])
def test_a_manifest_that_counts_other_documents_is_found_and_deletes_no_others(
    tmp_path: Path, documents: int, living: int
) -> None:
    path = make(tmp_path / "a.coil")
    change_manifest(path, lambda m: m["segments"][0].update(documents=documents, living=living))
    with reopen(path) as index:
        with pytest.raises(DamagedManifest, match="but there are 5 and 5"):
            index.verify()
        assert index.delete(["d0"]) == 1
        assert {hit.doc_id for hit in index.search("river", 10)} == {"d1", "d2", "d3", "d4"}
        assert len(index) == 4


@pytest.mark.parametrize("gone", [[0], [1]])
def test_a_manifest_that_deletes_a_part_of_a_document_is_found(tmp_path: Path, gone: list[int]) -> None:
    path = tmp_path / "a.coil"
    with create(path, encoder=HashEncoder()) as index:
        index.add([{"id": "long", "text": "river " * 600}, {"id": "short", "text": "bank"}])
        rows = index.inspect().rows
    alive = np.ones(rows, dtype=bool)
    alive[gone] = False
    assert rows > 2

    def change(value: dict[str, Any]) -> None:
        entry = manifest.SegmentEntry.from_json(value["segments"][0])
        value["segments"][0] = entry.with_alive(alive, 2).to_json()

    change_manifest(path, change)
    with reopen(path) as index, pytest.raises(DamagedManifest, match="some rows of a document"):
        index.verify()


@pytest.mark.parametrize("place", [[], ["segments", 0], ["segments", 0, "lists"], ["segments", 0, "texts"]])
def test_a_manifest_with_other_keys_is_refused(tmp_path: Path, place: list[str | int]) -> None:
    path = make(tmp_path / "a.coil")

    def change(value: Any) -> None:
        for key in place:
            value = value[key]
        value["more"] = [[]] * 3

    change_manifest(path, change)
    with pytest.raises(DamagedManifest, match="keys"):
        reopen(path)


def test_a_manifest_too_large_for_any_index_is_not_parsed(tmp_path: Path) -> None:
    path = make(tmp_path / "a.coil")
    with (path / "manifest.jsonl").open("ab") as file:
        file.truncate(33 << 20)
    with pytest.raises(DamagedManifest, match="exceeds the limit"):
        reopen(path)


@pytest.mark.parametrize("name", ["manifest.jsonl", "*.lists", "*.documents"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    path = make(tmp_path / "a.coil")
    [file] = path.rglob(name)
    file.unlink()
    os.mkfifo(file)
    if name != "manifest.jsonl":
        cover_up(path, Path(shutil.copy(os.devnull, tmp_path / file.name)))
    held = os.open(file, os.O_RDWR)
    try:
        with pytest.raises((DamagedManifest, DamagedSegment)):
            reopen(path)
    finally:
        os.close(held)


# ---- segments of another index


@pytest.mark.parametrize(
    ("theirs", "precision"),
    [
        (HashEncoder(8, 3), "int8"),
        (HashEncoder(4, 32), "int8"),
        (HashEncoder(4, 0), "int8"),
        (HashEncoder(0, 3), "int8"),
        (HashEncoder(), "fp32"),
        (HashEncoder(), "int8+fp32"),
    ],
)
def test_segments_of_another_form_are_refused(
    tmp_path: Path, theirs: HashEncoder, precision: Precision
) -> None:
    path, other = make(tmp_path / "a.coil"), tmp_path / "b.coil"
    with create(other, encoder=theirs, precision=precision) as index:
        for number in range(2):  # beyond the ordinals of the other index
            index.update([{"id": f"d{i}", "text": "river"} for i in range(5 + number)])
    for file in (other / "segments").iterdir():
        shutil.copy(file, path / "segments")
    taken = json.loads((other / "manifest.jsonl").read_bytes().split(b"\n")[1])

    def mix(value: Any) -> None:
        value["segments"] += taken["segments"][-1:]
        value["next_ordinal"] = taken["next_ordinal"]

    reader = reopen(path)
    change_manifest(path, mix)
    change_manifest(path, lambda value: value.update(version=value["version"] + 1))
    with reader:
        with pytest.raises(DamagedManifest, match="n_t, n_c and precision"):
            reader.refresh()
        assert len(reader.search("river")) == 5
    with pytest.raises(DamagedManifest, match="n_t, n_c and precision"):
        reopen(path)


def test_other_settings_are_another_index(tmp_path: Path) -> None:
    path = tmp_path / "a.coil"
    with create(path, encoder=HashEncoder()) as index:
        change_manifest(path, lambda value: value["settings"].update(precision="fp32"))
        change_manifest(path, lambda value: value.update(version=2))
        with pytest.raises(ReplacedIndex):
            index.add([{"id": 1, "text": "river"}])


def test_a_merge_that_fails_for_any_reason_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise IndexError("a bug")

    monkeypatch.setattr(writer, "merge_small_segments", fail)
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        assert index.add([{"id": 1, "text": "river"}]) == 1
        assert len(index) == 1
    assert "could not be merged: a bug" in caplog.text
