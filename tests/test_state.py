"""One state of an index, whatever else happens: reads during writes, refreshes, swapped folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coil.errors import (
    CoilError,
    DamagedSegment,
    InputError,
    MissingIndex,
    OutputError,
    ReplacedIndex,
    SearchTimeout,
)
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.storage import merging
from coil.storage import snapshot as snapshot_module
from coil.storage.disk import Folder
from coil.storage.snapshot import Snapshot
from tests.hash_encoder import HashEncoder, answers
from tests.tiny import random_texts


def texts(count: int, prefix: str = "d", seed: int = 0) -> list[dict[str, Any]]:
    found = random_texts(count, longest=8, seed=seed)
    return [{"id": f"{prefix}{i}", "text": text, "year": i} for i, text in enumerate(found)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as made:
        made.add(texts(30))
        yield made


# ---- readers and writers


def read_all_the_time(index: Index, changes: Callable[[], object]) -> int:
    """Readers search, explain, filter and look while `changes` runs; returns how many answers were right."""
    done = threading.Event()
    wrong: list[BaseException] = []
    right = [0] * 4

    def read(number: int) -> None:
        try:
            while not done.is_set():
                with index.pinned() as still:
                    first, again = (still.search("river bank money", k=5) for _ in range(2))
                    assert first == again
                    explained = still.explain("river bank money", first[0].doc_id)
                    assert abs(explained.score - first[0].score) < 1e-4
                    assert still.document(first[0].doc_id).text == first[0].text
                kept = index.search("river bank money", k=1000, filter="year < 10")
                assert {f"d{i}" for i in range(10)} <= {hit.doc_id for hit in kept}
                assert all(hit.fields["year"] < 10 for hit in kept)
                assert index.has("d3")
                right[number] += 1
        except BaseException as error:
            wrong.append(error)

    readers = [threading.Thread(target=read, args=(number,)) for number in range(4)]
    for reader in readers:
        reader.start()
    try:
        changes()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    if wrong:
        raise wrong[0]
    return sum(right)


def test_reads_never_fail_because_of_a_write(index: Index) -> None:
    def change() -> None:
        index.add(texts(2000, "many", 1), commit_every=40)
        for number in range(20):
            index.update(texts(20, "many", number))
            index.delete([f"many{i}" for i in range(number, number + 5)])
            if number % 5 == 0:
                index.compact()

    assert read_all_the_time(index, change) > 10
    index.verify()


def test_a_commit_is_seen_when_it_is_told(index: Index) -> None:
    seen: list[bool] = []

    def committed(count: int) -> None:
        seen.append(index.has(f"more{sum(counts)}"))
        counts.append(count)
        seen.append(index.has(f"more{sum(counts) - 1}"))

    counts: list[int] = []
    index.add(texts(50, "more"), committed=committed, commit_every=7)
    assert len(seen) > 10
    assert all(seen)


def test_refresh_never_goes_back(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh that began before a write, and ends after it, has nothing to say any more."""
    opened, refreshing, written = Snapshot.open, threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> Snapshot:
        snapshot = opened(*arguments, **options)
        if threading.current_thread().name == "refreshing":
            refreshing.set()
            assert written.wait(20)
        return snapshot

    monkeypatch.setattr(Snapshot, "open", slow)
    with open_index(index.folder, HashEncoder()) as other:
        other.add(texts(1, "other"))
    thread = threading.Thread(target=index.refresh, name="refreshing")
    thread.start()
    assert refreshing.wait(20)
    index.add(texts(1, "new"))
    version = index.version
    written.set()
    thread.join()
    assert index.has("new0")
    assert index.version == version
    assert index.refresh() is False


def test_pinned_readers_share_what_was_computed(index: Index) -> None:
    index.search("river")
    with index.pinned() as one, index.pinned() as two:
        assert one.searcher is two.searcher is index.searcher
        index.add(texts(1, "new"))
        assert index.searcher is not one.searcher
        assert not one.has("new0")
        assert len(one) == len(two) == 30
    index.close()
    with pytest.raises(InputError, match="closed"):
        index.search("river")


def test_ordinals_are_never_used_twice(index: Index) -> None:
    """Also those of documents that were replaced before they were committed, or deleted at the end."""
    used: set[int] = set()

    def ordinal(doc_id: str) -> int:
        with index._holder.held() as snapshot:
            return snapshot.ordinal_of(doc_id)

    for number in range(4):
        index.update([{"id": "x", "text": "river"}, {"id": "y", "text": "bank"}, {"id": "x", "text": ""}])
        assert ordinal("y") not in used
        used.add(ordinal("y"))
        index.update([{"id": "x", "text": "money"}, {"id": "x", "text": "loan"}])
        assert ordinal("x") not in used
        used.add(ordinal("x"))
        index.delete(["x", "y"])
        if number % 2:
            index.compact()
    assert len(used) == 8


def test_the_torch_ranker_agrees_after_updates_with_empty_texts(index: Index) -> None:
    pytest.importorskip("torch")
    # The last ordinal of a commit is that of a document that never was.
    index.update([{"id": "y", "text": "loan"}, {"id": "x", "text": "river bank"}, {"id": "x", "text": ""}])
    index.update([{"id": "w", "text": "money"}])
    index.update([{"id": "d4", "text": ""}])
    with open_index(index.folder, HashEncoder(), device="cpu") as on_torch:
        assert answers(on_torch) == answers(index)


def test_a_merge_that_leaves_no_row(index: Index) -> None:
    for number in range(5):
        index.add(texts(3, f"s{number}-"))
    index.delete([f"s{number}-{i}" for number in range(5) for i in range(3)])
    assert index.compact() == 1
    index.delete([f"d{i}" for i in range(30)])
    assert (len(index), index.compact(), index.search("river")) == (0, 0, [])
    index.verify()
    assert list((index.folder / "segments").iterdir()) == []
    index.add(texts(2))
    assert len(index) == 2


# ---- files


def test_a_segment_takes_three_file_descriptors(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for number in range(7):
            index.add(texts(2, f"s{number}-"))
        index.search("river", filter="year = 1")
    before = len(os.listdir("/proc/self/fd"))
    with open_index(tmp_path / "a.coil", HashEncoder()) as index:
        index.search("river", filter="year = 1")
        assert index.inspect().segments == 7
        assert len(os.listdir("/proc/self/fd")) <= before + 7 * 3
        with index.pinned():
            index.compact()
            index.search("river")
        assert len(os.listdir("/proc/self/fd")) <= before + 3
        maps = Path("/proc/self/maps").read_text().splitlines()
        assert len([line for line in maps if str(tmp_path) in line and ".lists" in line]) == 1
    assert len(os.listdir("/proc/self/fd")) == before


def test_disk_use_stays_bounded_while_readers_are_open(index: Index) -> None:
    """Readers that stay for weeks must not make any file grow."""

    def size() -> int:
        return sum(path.stat().st_size for path in index.folder.rglob("*") if path.is_file())

    with index.pinned() as still, open_index(index.folder, HashEncoder()) as other:
        before = answers(still), size()
        for number in range(60):
            index.update(texts(5, seed=number))
        assert size() < 3 * before[1]
        assert answers(still) == before[0] == answers(other)
        other.refresh()
        assert answers(other) == answers(index)


def test_a_file_that_was_cut_short_is_told_at_the_next_refresh(index: Index) -> None:
    with open_index(index.folder, HashEncoder()) as other:
        other.add(texts(1, "new"))
    path = max((index.folder / "segments").glob("*.lists"), key=lambda found: found.stat().st_size)
    content = path.read_bytes()
    os.truncate(path, 100)
    with pytest.raises(CoilError, match=f"{path.name} has 100 bytes"):
        index.refresh()
    path.write_bytes(content)
    index.refresh()
    assert index.has("new0")


def test_a_file_that_is_cut_short_while_it_is_open(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look into a mapped part that is gone would be a SIGBUS."""
    monkeypatch.setattr(snapshot_module, "_CHECK_SECONDS", 0.0)
    assert index.search("river")
    [path] = (index.folder / "segments").glob("*.lists")
    content = path.read_bytes()
    os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(DamagedSegment, match=path.name):
            index.search("river bank", k=30)
    path.write_bytes(content)
    assert index.search("river")


@pytest.mark.skipif(sys.platform != "linux", reason="bind mounts are Linux's")
def test_a_read_only_mount_is_followed(index: Index, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount")
    seen = tmp_path / "mounted"
    seen.mkdir()
    code = (
        "import sys; from coil.indexes.opening import open_index\n"
        "from tests.hash_encoder import HashEncoder\n"
        "index = open_index(sys.argv[1], HashEncoder())\n"
        "print(len(index), flush=True); sys.stdin.readline()\n"
        "index.refresh(); print(len(index), len(index.search('river', filter='year = 0')), flush=True)\n"
        "try: index.delete(['d1'])\n"
        "except Exception as error: print(type(error).__name__, flush=True)\n"
    )
    script = (
        f"mount --bind {index.folder} {seen} && mount -o remount,ro,bind {seen} && exec "
        f'{sys.executable} -c "$CODE" {seen}'
    )
    reader = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "CODE": code},
    )  # fmt: skip
    assert reader.stdout is not None
    first = reader.stdout.readline()
    if not first:
        reader.wait()
        pytest.skip("this machine does not let a test mount")
    index.add([{"id": "new", "text": "river", "year": 0}])
    told, _ = reader.communicate("\n", timeout=60)
    assert (first, told.split()) == ("30\n", ["31", "2", "OutputError"])


# ---- folders that are swapped, moved, deleted


def test_a_folder_that_is_swapped_during_a_write_loses_nothing(index: Index, tmp_path: Path) -> None:
    with create(tmp_path / "b.coil", encoder=HashEncoder()) as other:
        other.add(texts(20, "other", 5))
        theirs = answers(other)
    promised = 30

    def documents() -> Iterator[dict[str, Any]]:
        for number, document in enumerate(texts(400, "new", 2)):
            if number == 200:
                os.rename(index.folder, tmp_path / "moved.coil")
                os.rename(tmp_path / "b.coil", index.folder)
            yield document

    def committed(count: int) -> None:
        nonlocal promised
        promised += count

    with pytest.raises(ReplacedIndex, match="moved, replaced or deleted"):
        index.add(documents(), committed=committed, commit_every=10)
    with open_index(tmp_path / "moved.coil", HashEncoder()) as ours:
        ours.verify()
        assert len(ours) >= promised
        assert all(ours.has(f"d{i}") for i in range(30))
    with open_index(index.folder, HashEncoder()) as swapped:
        swapped.verify()
        assert answers(swapped) == theirs
    assert len(index) >= promised  # what was read is still there
    for change in (index.compact, lambda: index.delete(["d1"]), lambda: index.add(texts(1, "late"))):
        with pytest.raises(ReplacedIndex, match="nothing was written"):
            change()
    with pytest.raises(ReplacedIndex):
        index.refresh()


def test_a_folder_that_is_deleted_during_a_write(index: Index) -> None:
    def documents() -> Iterator[dict[str, Any]]:
        for number, document in enumerate(texts(100, "new", 2)):
            if number == 50:
                shutil.rmtree(index.folder)
            yield document

    with pytest.raises((OutputError, ReplacedIndex)):
        index.add(documents(), commit_every=10)
    assert index.search("river bank")
    with pytest.raises(MissingIndex):
        index.refresh()


def test_a_manifest_that_another_hand_replaced_is_not_overwritten(index: Index) -> None:
    manifest = index.folder / "manifest.jsonl"
    before = manifest.read_bytes()

    def documents() -> Iterator[dict[str, Any]]:
        yield from texts(20, "new", 2)
        manifest.write_bytes(before)  # as a backup would
        yield from texts(20, "newer", 2)

    index.add(texts(1, "x"))
    with pytest.raises(ReplacedIndex, match="did not hold the writer lock"):
        index.add(documents(), commit_every=10)
    assert manifest.read_bytes() == before


def test_a_restored_backup_is_not_mistaken_for_news(index: Index, tmp_path: Path) -> None:
    shutil.copytree(index.folder, tmp_path / "backup")
    index.add(texts(1, "x"))
    os.rename(index.folder, tmp_path / "newer.coil")
    os.rename(tmp_path / "backup", index.folder)
    with pytest.raises(ReplacedIndex):
        index.refresh()
    assert index.has("x0")


def test_an_empty_index_that_was_swapped_is_not_removed(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    with create(tmp_path / "b.coil", encoder=HashEncoder()) as other:
        other.add(texts(3))
    os.rename(tmp_path / "a.coil", tmp_path / "c.coil")
    os.rename(tmp_path / "b.coil", tmp_path / "a.coil")
    assert index.discard_if_empty() is False
    assert len(open_index(tmp_path / "a.coil", HashEncoder())) == 3
    assert open_index(tmp_path / "c.coil", HashEncoder()).discard_if_empty()
    assert not (tmp_path / "c.coil").exists()
    stale = create(tmp_path / "d.coil", encoder=HashEncoder())
    with open_index(tmp_path / "d.coil", HashEncoder()) as other:
        other.add(texts(1))
    assert stale.discard_if_empty() is False
    assert len(open_index(tmp_path / "d.coil", HashEncoder())) == 1


def test_an_index_does_not_depend_on_the_working_directory(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with open_index("a.coil", HashEncoder()) as relative:
        monkeypatch.chdir("/")
        index.add(texts(1, "new"))
        assert relative.refresh()
        assert relative.delete(["new0"]) == 1


# ---- what goes wrong after a commit


def test_a_commit_is_a_success_when_the_merge_after_it_fails(
    index: Index, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(6):
        index.add(texts(2, f"s{number}-"))

    def full(*_: object) -> None:
        raise OutputError("no space left on device", "free some space")

    monkeypatch.setattr(merging, "write_stored_segment", full)
    for number in range(6, 9):
        assert index.add(texts(2, f"s{number}-")) == 2
        assert index.has(f"s{number}-1")
    assert "are in the index, but its segments could not be merged: no space left" in caplog.text
    with pytest.raises(OutputError, match="no space left"):
        index.compact()
    monkeypatch.undo()
    index.compact()
    index.verify()
    assert len(index) == 30 + 9 * 2


def test_a_slow_filter_is_stopped_and_holds_up_nobody(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(i), "text": "river", "deep": {"n": i}} for i in range(3000)])
        slow = " or ".join(f'deep.n = {i} or deep.m{i} = "x"' for i in range(80))
        began = time.monotonic()
        with pytest.raises(SearchTimeout):
            index.answer_many(["river"], filter=slow, timeout=0.02)
        assert time.monotonic() - began < 5
        waiting = threading.Thread(target=lambda: index.search("river", filter=slow))
        waiting.start()
        for _ in range(20):
            assert index.search("river", k=1)
        waiting.join()
        assert {hit.doc_id for hit in index.search("river", k=100, filter=slow)} == {
            str(i) for i in range(80)
        }


def test_a_write_goes_to_the_folder_that_was_locked(index: Index, tmp_path: Path) -> None:
    with Folder.open(index.folder) as folder:
        os.rename(index.folder, tmp_path / "moved")
        assert not folder.is_at_its_path
        folder.write("here", [b"text"])
        with pytest.raises(FileExistsError):
            folder.write("here", [b"other"])
    assert (tmp_path / "moved" / "here").read_bytes() == b"text"
    os.rename(tmp_path / "moved", index.folder)
