"""What testers found in the storage engine: each of these once broke an index, refused a writer or lied."""

from __future__ import annotations

import errno
import gc
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.arrays import distinct, is_among
from coil.errors import (
    DamagedManifest,
    DamagedSegment,
    DuplicateId,
    IndexLocked,
    IndexProblem,
    InputError,
    OutputError,
    ReplacedIndex,
)
from coil.explanations.explainer import explain_hit
from coil.hits.searcher import Searcher
from coil.indexes.opening import create, open_index
from coil.storage import document_file, holder, publishing, writer
from coil.storage.disk import Folder
from coil.storage.holder import Holder
from coil.storage.lock import writer_lock
from coil.storage.manifest import Manifest, read_manifest
from coil.storage.overlap import Background
from coil.storage.snapshot import Snapshot
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder, answers


@pytest.mark.parametrize("sizes", ["alternating", "random", "mostly one"])
def test_commits_of_mixed_sizes_do_not_make_many_segments(tmp_path: Path, sizes: str) -> None:
    rng = random.Random(sizes)
    with create(tmp_path / "a.coil", encoder=HashEncoder(n_c=0)) as index:
        added, most = 0, 0
        for number in range(160):
            count = {"alternating": 1 + 7 * (number % 2), "random": rng.randrange(1, 40)}.get(sizes, 1)
            if sizes == "mostly one" and number % 5 == 4:
                count = 20
            index.add([{"id": added + i, "text": f"river {i}"} for i in range(count)])
            added += count
            most = max(most, index.disk_use()[0])
        assert most <= 4 * 7 + 1  # classes of up to 4096 rows, seven of each
        assert len(index) == added
        index.verify()


def test_no_job_outlives_an_interrupted_caller() -> None:
    """Interrupted twice, as by an impatient user: a commit must end before the lock is free."""
    done: list[str] = []

    def job() -> None:
        time.sleep(0.6)
        done.append("job")

    def interrupt() -> None:
        for _ in range(2):
            time.sleep(0.15)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), Background[None]() as background:  # noqa: PT012
        background.start(job)
        threading.Thread(target=interrupt).start()
        background.result()
    assert done == ["job"]


def test_a_closed_folder_is_never_written_by_its_path(tmp_path: Path) -> None:
    folder = Folder.open(tmp_path)
    folder.close()
    for step in (
        lambda: folder.write("a", [b"x"]),
        lambda: folder.replace("a", "b"),
        lambda: folder.path_of("a"),
        lambda: folder.identity,
    ):
        with pytest.raises(OSError, match="closed"):
            step()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_read_closes_its_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle that is closed twice may be another thread's by then."""
    (tmp_path / "a").write_bytes(b"river")
    closed: list[int] = []

    def interrupt(*given: Any, **named: Any) -> Any:
        with open(*given, **named) as file:  # it is open, but its caller has not got it yet
            number = file.fileno()
        try:
            os.fstat(number)
        except OSError:
            closed.append(number)
        raise KeyboardInterrupt

    with Folder.open(tmp_path) as folder:
        monkeypatch.setattr("coil.storage.disk.open", interrupt, raising=False)
        monkeypatch.setattr(os, "close", closed.append)
        with pytest.raises(KeyboardInterrupt):
            folder.read("a", 10)
        monkeypatch.undo()
    assert len(closed) == 1


def test_interruptions_leave_no_file_open(tmp_path: Path) -> None:
    """Ctrl-C again and again, as in a notebook: neither handles nor locks are kept."""
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": 1, "text": "river"}])
    arguments = [sys.executable, "-m", "tests.interruptions", tmp_path / "a.coil", "3"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    interrupted, files_before, files_after = map(int, done.stdout.split())
    assert interrupted > 50, done.stderr
    assert files_after == files_before
    with open_index(tmp_path / "a.coil", HashEncoder()) as index:
        index.verify()


def test_the_lock_does_not_live_on_in_a_child(tmp_path: Path) -> None:
    create(tmp_path / "a.coil", encoder=HashEncoder()).close()
    with writer_lock(tmp_path / "a.coil") as lock, lock.held():
        with pytest.raises(IndexLocked, match="this process"), writer_lock(tmp_path / "a.coil"):
            pass
        child = os.fork()
        if not child:
            time.sleep(3)
            os._exit(0)
    try:
        with writer_lock(tmp_path / "a.coil"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    "document",
    [
        Document("a", "river", None),  # type: ignore[arg-type]
        Document("a", "river", [1]),  # type: ignore[arg-type]
        Document(5, "river"),  # type: ignore[arg-type]
        Document("a", b"river"),  # type: ignore[arg-type]
    ],
)
def test_a_document_that_is_none_is_refused(tmp_path: Path, document: Document) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with pytest.raises(InputError, match="expected a"):
            index.add([document])
        assert len(index) == 0


def test_odd_values_of_a_document_do_no_harm(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([Document("\ud800a", "river \udfff", {"x": float("nan"), "y": {1, 2}, (1, 2): "z"})])  # type: ignore[dict-item]
        [hit] = index.search("river", filter="x exists or id != 'b'")
        assert hit.doc_id == "\ufffda"
        index.verify()
        odd: list[Any] = ["\ud800", 5, None, object()]
        assert not any(index.has(doc_id) for doc_id in odd)
        assert index.delete(odd[:1]) == 0
        for doc_id in odd[1:]:
            with pytest.raises(InputError, match="expected a string"):
                index.delete([doc_id])


def test_an_id_is_looked_up_as_it_is_stored(tmp_path: Path) -> None:
    """Half of a surrogate pair cannot be stored: U+FFFD takes its place, in a question, too."""
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        asked, kept = "a\ud800", "a\ufffd"
        index.add([{"id": asked, "text": "river bank"}, {"id": "b", "text": "river", "of": asked}])
        assert asked in index
        assert index.has(kept)
        assert index[asked].doc_id == kept
        assert index.size_of(asked) == index.size_of(kept)
        assert index.explain("river", asked) == index.explain("river", kept)
        assert [hit.doc_id for hit in index.rerank("bank", [asked, "b"])] == [kept, "b"]
        assert [hit.doc_id for hit in index.search("river", filter=f"id = '{asked}'")] == [kept]
        assert [hit.doc_id for hit in index.search("river", filter=f"of in ('{asked}')")] == ["b"]
        with pytest.raises(DuplicateId):
            index.add([{"id": asked, "text": "river"}])
        index.update([{"id": asked, "text": "bank"}])
        assert len(index) == 2
        assert index.delete([asked]) == 1
        assert asked not in index
    memory = Searcher.build(HashEncoder(), [Document(asked, "river")])
    assert explain_hit(memory, "river", asked).score == explain_hit(memory, "river", kept).score


def test_a_merge_with_too_few_file_descriptors_names_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Folder, name: str) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}, {"id": "b", "text": "bank"}])
        index.delete(["a"])
        for method in ("digest", "stat"):
            with monkeypatch.context() as patched:
                patched.setattr(Folder, method, refuse)
                with pytest.raises(IndexProblem, match="Too many open files") as caught:
                    index.compact() if method == "digest" else index.check_sizes()
                assert "ulimit -n" in caught.value.remedy


def test_too_few_file_descriptors_are_told_as_such(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for number in range(7):
            index.add([{"id": number, "text": "river"}])
    code = (
        "import resource, sys\n"
        "from coil.errors import CoilError; from coil.indexes.opening import open_index\n"
        "from tests.hash_encoder import HashEncoder\n"
        "encoder = HashEncoder()\n"
        "import os\n"
        "with open_index(sys.argv[1], encoder) as index:  # modules are imported when first used\n"
        "    index.update([{'id': 'x', 'text': 'river'}]); index.verify(); index.search('river')\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "for spare in range(1, 40):\n"
        "    used = len(os.listdir('/proc/self/fd'))\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (used + spare, hard))\n"
        "    try:\n"
        "        with open_index(sys.argv[1], encoder) as index:\n"
        "            index.update([{'id': 'x', 'text': 'river'}]); index.verify()\n"
        "    except CoilError as error:\n"
        "        assert 'backup' not in error.remedy, error\n"
        "    else: break\n"
        "print(spare)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.coil")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert 10 < int(done.stdout) < 39
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 40


def test_a_segment_more_than_can_be_open_is_not_committed(tmp_path: Path) -> None:
    """Or the index would be lost to everybody whom the system allows no more files."""
    code = (
        "import logging, os, resource, sys\n"
        "from coil.errors import CoilError; from coil.indexes.opening import create, open_index\n"
        "from coil.storage import merging; from tests.hash_encoder import HashEncoder\n"
        "merging.FAN = 1000\n"
        "index = create(sys.argv[1], encoder=HashEncoder())\n"
        "index.add([{'id': 'a', 'text': 'river'}]); index.search('river')  # imports what it needs\n"
        "used = len(os.listdir('/proc/self/fd'))\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (used + int(sys.argv[2]), hard))\n"
        "try:\n"
        "    for number in range(100): index.add([{'id': number, 'text': 'river'}])\n"
        "except CoilError as error: print(error.remedy)\n"
        "assert len(index) == number + 1, (len(index), number)\n"
        "index.close(); index = open_index(sys.argv[1], HashEncoder())\n"
        "assert len(index.search('river', k=1000)) == number + 1\n"
    )
    for spare in range(38, 44):
        path = tmp_path / f"{spare}.coil"
        done = subprocess.run(
            [sys.executable, "-c", code, path, str(spare)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "ulimit -n" in done.stdout
        open_index(path, HashEncoder()).verify()


def test_every_verb_may_open_as_many_files_as_the_system_allows(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for number in range(6):
            index.add([{"id": number, "text": "river"}])
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 4096))\n"
        "from coil.cli.main import main; main()\n"
    )
    arguments = [sys.executable, "-c", code, "verify", tmp_path / "a.coil"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_file_that_the_system_did_not_open_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may close a file between the failure and our look for its reason."""
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": 1, "text": "river"}])
    connect, failures = sqlite3.connect, document_file._TRIES

    def fail(*given: Any, **named: Any) -> Any:
        nonlocal failures
        failures -= 1
        if failures < 0:
            return connect(*given, **named)
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(sqlite3, "connect", fail)
    with pytest.raises(IndexProblem, match="unable to open") as raised:
        open_index(tmp_path / "a.coil", HashEncoder())
    assert type(raised.value) is IndexProblem
    assert "ulimit -n" in raised.value.remedy
    open_index(tmp_path / "a.coil", HashEncoder()).close()
    failures = 3  # it is tried again
    open_index(tmp_path / "a.coil", HashEncoder()).close()
    assert failures < 0


def test_a_path_too_long_for_sqlite_is_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "a.coil"
    create(path, encoder=HashEncoder()).close()
    deep = tmp_path
    while len(str(deep)) < 500:
        deep /= "x" * 60
    deep.mkdir(parents=True)
    path.rename(deep / "a.coil")
    with open_index(deep / "a.coil", HashEncoder()) as index:
        for _ in range(2):
            with pytest.raises(IndexProblem, match="the limit of SQLite is") as raised:
                index.add([{"id": 1, "text": "river"}])
            assert "shorter path" in raised.value.remedy
        assert len(index) == 0
    (deep / "a.coil").rename(path)
    with open_index(path, HashEncoder()) as index:
        index.add([{"id": 1, "text": "river"}])
    path.rename(deep / "a.coil")
    with pytest.raises(IndexProblem, match="the limit of SQLite is") as raised:
        open_index(deep / "a.coil", HashEncoder())
    assert "shorter path" in raised.value.remedy
    (deep / "a.coil").rename(path)
    open_index(path, HashEncoder()).verify()


def test_verify_goes_on_where_it_was_when_a_writer_merges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        for number in range(6):
            index.add([{"id": number, "text": "river"}])
        read: list[int] = []
        changed = False

        def progress(count: int) -> None:
            nonlocal changed
            read.append(count)
            if len(read) == 3 and not changed:
                changed = True
                index.compact()

        index.verify(progress)
        assert len(read) == 4  # three, and the one that took the place of all
        assert len(answers(index)) > 0


def _fail_to_open(monkeypatch: pytest.MonkeyPatch, when: Callable[[int, Manifest], bool]) -> list[int]:
    """Reopening after a commit fails where `when` says so: only the disk is changed."""
    opened, real = [0], Snapshot.open.__func__  # type: ignore[attr-defined]

    def failing(cls: type[Snapshot], folder: Folder, manifest: Any = None, earlier: Any = None) -> Snapshot:
        if manifest is not None:
            opened[0] += 1
            if when(opened[0], manifest):
                raise IndexProblem("too many open files", "close some")
        found: Snapshot = real(cls, folder, manifest, earlier)
        return found

    monkeypatch.setattr(Snapshot, "open", classmethod(failing))
    return opened


def test_what_cannot_be_opened_is_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}])
        _fail_to_open(monkeypatch, lambda number, _: number == 1)
        with pytest.raises(IndexProblem, match="nothing was changed"):
            index.add([{"id": "b", "text": "river"}])
        assert not index.has("b")
        assert index.version == read_manifest(Folder.open(tmp_path / "a.coil")).version
        index.add([{"id": "c", "text": "river"}])
        assert {hit.doc_id for hit in index.search("river", by="bm25")} == {"a", "c"}


def test_a_commit_that_is_interrupted_at_its_end_is_seen_by_the_next_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}])
        real = publishing.publish

        def interrupted(*given: Any) -> Manifest:
            real(*given)
            raise KeyboardInterrupt

        monkeypatch.setattr(publishing, "publish", interrupted)
        with pytest.raises(KeyboardInterrupt):
            index.add([{"id": "b", "text": "river"}])
        monkeypatch.undo()
        assert index.has("b")
        assert index.version == read_manifest(Folder.open(tmp_path / "a.coil")).version


def test_after_a_commit_that_failed_late_no_thread_reads_the_previous_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}, {"id": "b", "text": "bank"}])
        publish, load = publishing.publish, holder.newer_state
        loading = threading.Event()

        def unconfirmed(*given: Any) -> Manifest:
            publish(*given)
            raise OutputError("the disk did not confirm it", "check the disk")

        def slow(*given: Any) -> Snapshot | None:
            if threading.current_thread() is other:
                loading.set()
                time.sleep(0.3)
            return load(*given)

        with monkeypatch.context() as failing:
            failing.setattr(publishing, "publish", unconfirmed)
            with pytest.raises(OutputError):
                index.delete(["a"])
        other = threading.Thread(target=index.has, args=("b",))
        monkeypatch.setattr(holder, "newer_state", slow)
        other.start()
        loading.wait()
        assert not index.has("a")
        other.join()


def test_a_build_goes_on_after_a_merge_that_could_not_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    merged: list[int] = []

    def is_first_merge(number: int, manifest: Manifest) -> bool:
        if not merged and manifest.segments and max(entry.rows for entry in manifest.segments) > 5:
            merged.append(number)
            return True
        return False

    monkeypatch.setattr(writer, "WINDOW", 5)
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        opened = _fail_to_open(monkeypatch, is_first_merge)
        assert index.add([{"id": i, "text": f"river {i}"} for i in range(100)], commit_every=5) == 100
        assert merged
        assert opened[0] > merged[0]
        assert "could not be merged" in caplog.text
        assert len(index) == 100
        index.verify()


def test_verify_finds_an_id_that_is_there_twice(tmp_path: Path) -> None:
    """As after an update of a document that a damaged file could not find."""
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": f"d{n}", "text": "river"} for n in range(600)])
        [documents] = (folder / "segments").glob("*.documents")
        whole = documents.read_bytes()
        index.verify()
    with closing(sqlite3.connect(documents)) as connection, connection:
        connection.execute("UPDATE documents SET doc_id = 'gone' WHERE doc_id = 'd77'")
    with open_index(folder, encoder=HashEncoder()) as index:
        index.update([{"id": "d77", "text": "bank"}])
    documents.write_bytes(whole)
    with open_index(folder, encoder=HashEncoder()) as index:
        with pytest.raises(DamagedManifest, match="duplicate id 'd77'"):
            index.verify()
        index.delete(["d77"])
        assert not index.has("d77") or index.delete(["d77"]) == 1
        index.verify()


def test_an_add_that_fails_late_says_what_stays(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        given = [{"id": str(n), "text": "river"} for n in range(3000)] + [{"id": "1", "text": "river"}]
        with pytest.raises(InputError, match="duplicate id '1'") as caught:
            index.add(given, commit_every=1000)
        assert len(index) >= 1000
        assert caught.value.reason.endswith(f"; the first {len(index):,} documents were added")
        with pytest.raises(InputError, match="duplicate id '0'") as caught:
            index.add(given)
        assert "were added" not in str(caught.value)


def test_a_wrong_argument_leaves_no_index(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="memory"):
        create(tmp_path / "a.coil", encoder=HashEncoder(), memory="1G")  # type: ignore[arg-type]
    create(tmp_path / "a.coil", encoder=HashEncoder()).close()


def test_a_query_is_read_in_the_state_that_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a name is a field is a question about the same documents as all others."""
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add([{"id": "a", "text": "river bank bank"}, {"id": "b", "text": "river", "loan": "bank"}])
    before = index.explain("loan:bank", "a").score
    assert before != index.explain("loan:bank", "a", plain=True).score
    held, done = Holder.held, list[bool]()

    @contextmanager
    def changing(self: Holder) -> Iterator[Snapshot]:
        with held(self) as snapshot:
            if not done:
                done.append(True)
                index.update([{"id": "b", "text": "river"}])
            yield snapshot

    monkeypatch.setattr(Holder, "held", changing)
    assert index.explain("loan:bank", "a").score == before
    assert done


def test_a_closed_index_can_be_printed(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.close()
    assert repr(index).endswith("a.coil', closed>")


def test_a_field_with_a_nul_is_not_taken_for_what_is_before_it(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        tenants = {"a": "acme", "b": "acme\0evil"}
        index.add([{"id": name, "text": "river", "tenant": tenant} for name, tenant in tenants.items()])
        for expression, expected in (
            ('tenant = "acme"', "a"),
            ('tenant in ("acme")', "a"),
            ('tenant != "acme"', "b"),
            ('tenant = "acme\ufffdevil"', "b"),
        ):
            assert [hit.doc_id for hit in index.search("river", filter=expression)] == [expected]


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": np.int64(4), "text": "river", "year": np.int32(2020), "part": np.float32(0.5)}])
        assert index.document("4").fields == {"year": 2020, "part": 0.5}
        assert index.search("river", filter="year > 2019 and part < 1")


@pytest.mark.parametrize("precision", ["int8", "fp16", "int8+fp16"])
def test_a_model_without_token_vectors_is_explained(tmp_path: Path, precision: Any) -> None:
    encoder = HashEncoder(n_t=0, n_c=8)
    with create(tmp_path / "a.coil", encoder=encoder, precision=precision) as index:
        index.add([{"id": "a", "text": "river bank river"}, {"id": "b", "text": "money bank river"}])
        for by in ("coil", "bm25", "dense", "hybrid"):
            for hit in index.search("river bank river", by=by):  # type: ignore[arg-type]
                made = index.explain("river bank river", hit.doc_id, by=by)  # type: ignore[arg-type]
                assert made.score == pytest.approx(hit.score, abs=1e-5)


@given(st.lists(st.integers(-5, 5)), st.lists(st.integers(-5, 5)), st.sampled_from(["i8", "u2", "f4"]))
def test_sets_of_numbers(numbers: list[int], others: list[int], kind: str) -> None:
    some = np.array(numbers).astype(kind)
    assert distinct(some).tolist() == sorted(set(some.tolist()))
    among = is_among(some, np.array(others).astype(kind))
    assert among.tolist() == [
        number in set(np.array(others).astype(kind).tolist()) for number in some.tolist()
    ]


ENDS = """
import sys, threading, time, random
from coil.indexes.opening import open_index
from tests.hash_encoder import HashEncoder
index = open_index(sys.argv[1], encoder=HashEncoder(), threads=2)
def change():
    for n in range(10**6):
        index.update([{"id": f"t{n % 50}", "text": "river " * random.randint(1, 50)}])
def read():
    while True:
        index.search("river bank money", k=20, filter="year < 15")
for work in (change, read, read):
    threading.Thread(target=work, daemon=True).start()
time.sleep(random.random() * 0.3)
"""


def test_a_process_ends_while_daemon_threads_write_and_search(
    tmp_path: Path, soaked: Callable[..., None]
) -> None:
    rounds = int(os.environ.get("COIL_CRASH_ROUNDS", "4"))
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": f"d{n}", "text": "river bank " * (n + 1), "year": n} for n in range(20)])
    for _ in range(rounds):
        ended = subprocess.run(
            [sys.executable, "-c", ENDS, str(tmp_path / "a.coil")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-2000:]
    with open_index(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.verify()
    soaked("processes that ended", ends=rounds)


@pytest.mark.parametrize("text", [b"documents", b"CREATE TABLE", b"doc_id TEXT", b"autoindex"])
def test_a_schema_that_is_no_text_is_damage(tmp_path: Path, text: bytes) -> None:
    folder = tmp_path / "a.coil"
    with create(folder, encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river"}])
    [documents] = (folder / "segments").glob("*.documents")
    whole = documents.read_bytes()
    for place in range(len(text)):
        at = whole.index(text) + place
        documents.write_bytes(whole[:at] + b"\xff" + whole[at + 1 :])
        with pytest.raises(DamagedSegment):
            open_index(folder, encoder=HashEncoder())


@pytest.mark.parametrize("use", ["phrase", "folding", "loop", "texts"])
def test_reading_documents_leaves_nothing_in_memory(tmp_path: Path, use: str) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(number), "text": f"the river bank {number}"} for number in range(50)])
        uses: dict[str, Callable[[], object]] = {
            "phrase": lambda: index.search('"river bank"', k=5),
            "folding": lambda: index.search("river", k=50, fold_duplicates=True),
            "loop": lambda: list(index),
            "texts": lambda: index.answer_many(["river"], k=50, texts=True),
        }

        def objects_after(count: int) -> int:
            for _ in range(count):
                uses[use]()
            gc.collect()
            return sys.getallocatedblocks()

        before = objects_after(20)
        # Two for each of 2,000 documents would be too many. Python itself keeps up to 200 cursors.
        assert objects_after(40) - before < 400


def test_a_failed_write_to_a_replaced_folder_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        (tmp_path / "a.coil").rename(tmp_path / "b.coil")
        raise OSError(None, "unable to open database file")

    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        monkeypatch.setattr("coil.storage.stored_segment.write_documents", fail)
        with pytest.raises(ReplacedIndex, match="was replaced while it was written"):
            index.add([{"id": "a", "text": "river"}])
