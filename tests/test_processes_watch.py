"""`coil index --watch` as a process: real files, real events, other writers, and how it ends."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from coil.cli.main import run
from coil.errors import CoilError
from coil.indexes.opening import open_index
from coil.storage.lock import writer_lock

_PATIENCE = 120.0


class Watcher:
    """The process, and what it says."""

    def __init__(self, *arguments: object) -> None:
        command = [sys.executable, "-m", "coil.cli.main", "index", *map(str, arguments), "--watch"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.lines: queue.Queue[str] = queue.Queue()
        self.told: list[str] = []
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def hear(self, words: str) -> str:
        """The next line with these words."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            try:
                self.told.append(self.lines.get(timeout=0.1))
            except queue.Empty:
                assert self.process.poll() is None, self.told
                continue
            if words in self.told[-1]:
                return self.told[-1]
        raise AssertionError(f"{words!r} was never told, but {self.told}")

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        status = self.process.wait(_PATIENCE)
        self._thread.join()
        while not self.lines.empty():
            self.told.append(self.lines.get())
        return status


@contextmanager
def watching(*arguments: object) -> Iterator[Watcher]:
    watcher = Watcher(*arguments)
    try:
        watcher.hear("Ctrl-C to stop")
        yield watcher
    finally:
        if watcher.process.poll() is None:
            watcher.process.kill()
        watcher.process.wait()
        watcher._thread.join()
        assert watcher.process.stderr is not None
        watcher.process.stderr.close()


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def texts(out: Path) -> dict[str, str]:
    with open_index(out) as index:
        return {document.doc_id: document.text for document in index}


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.txt").write_text("a bank by the river")
    return folder


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGINT, 130, "coil: interrupted"), (signal.SIGTERM, 143, "coil: terminated (SIGTERM)")],
)
def test_files_are_followed_until_a_signal(notes: Path, number: int, status: int, word: str) -> None:
    out = notes.parent / "notes.coil"
    with watching(notes, "--out", out) as watcher:
        assert any(line.startswith("1 added, 0 updated, 0 removed in ") for line in watcher.told)
        with open_index(out) as reader:  # another process, which reads all the while
            for i in range(30):  # a burst
                (notes / f"{i}.md").write_text(f"note {i}")

            def has(count: int) -> bool:
                reader.refresh()
                return len(reader) == count

            wait_for(lambda: has(31))
            (notes / "a.txt").write_text("a loan")
            watcher.hear("1 updated")
            (notes / "sub").mkdir()
            os.replace(notes / "a.txt", notes / "sub" / "b.txt")
            wait_for(lambda: has(31) and reader.has("sub/b.txt"))
            (notes / "sub" / "b.txt").unlink()
            wait_for(lambda: has(30))
        assert watcher.end(number) == status
    assert word in "".join(watcher.told)
    assert "Traceback" not in "".join(watcher.told)
    assert run(["verify", str(out)]) == 0
    (notes / "0.md").unlink()
    with watching(notes, "--out", out) as watcher:  # what has changed meanwhile
        assert any(line.startswith("0 added, 0 updated, 1 removed") for line in watcher.told)


def test_another_writer_is_waited_for(notes: Path) -> None:
    out = notes.parent / "notes.coil"
    with watching(notes, "--out", out) as watcher:
        with writer_lock(out):
            (notes / "b.txt").write_text("a loan")
            assert f"process {os.getpid()}" in watcher.hear("; waiting")
        watcher.hear("1 added")
        assert watcher.end(signal.SIGINT) == 130
    assert texts(out) == {"a.txt": "a bank by the river", "b.txt": "a loan"}


def test_a_folder_that_is_replaced_is_followed(notes: Path) -> None:
    out = notes.parent / "notes.coil"
    with watching(notes, "--out", out) as watcher:
        (notes.parent / "new").mkdir()
        (notes.parent / "new" / "b.txt").write_text("a boat")
        notes.rename(notes.parent / "old")
        (notes.parent / "new").rename(notes)
        watcher.hear("1 added, 0 updated, 1 removed")
        (notes / "c.txt").write_text("money")
        watcher.hear("1 added, 0 updated, 0 removed")


def _has_only(out: Path, doc_id: str) -> bool:
    return set(texts(out)) == {doc_id}


def test_a_folder_that_is_made_again_is_followed(notes: Path) -> None:
    """Often it gets the number of the folder that was removed, so that only an event tells the two apart."""
    out = notes.parent / "notes.coil"
    with watching(notes, "--out", out):
        for i in range(8):
            shutil.rmtree(notes)
            notes.mkdir()
            (notes / f"{i}.txt").write_text("a boat")
            wait_for(partial(_has_only, out, f"{i}.txt"))


def test_a_table_whose_folder_is_replaced_is_followed(tmp_path: Path) -> None:
    table, out = tmp_path / "data" / "faq.csv", tmp_path / "faq.coil"
    table.parent.mkdir()
    table.write_text("id,text\n1,river\n")
    with watching(table, "--out", out) as watcher:
        (tmp_path / "data").rename(tmp_path / "old")
        (tmp_path / "data").mkdir()
        (tmp_path / "old" / "faq.csv").rename(table)  # the same file in another folder
        time.sleep(3)
        table.write_text("id,text\n2,loan\n")
        watcher.hear("1 added, 0 updated, 1 removed")


def test_a_table_that_is_replaced_is_followed(tmp_path: Path) -> None:
    table, out = tmp_path / "faq.csv", tmp_path / "faq.coil"
    table.write_text("id,text\n1,river\n2,bank\n")
    with watching(table, "--out", out) as watcher:
        (tmp_path / "next.csv").write_text("id,text\n2,loan\n3,boat\n")
        os.replace(tmp_path / "next.csv", table)
        watcher.hear("1 added, 1 updated, 1 removed")
        with table.open("a") as file:
            file.write("4,money\n")
        watcher.hear("1 added, 0 updated, 0 removed")
    assert texts(out) == {"2": "loan", "3": "boat", "4": "money"}


def test_an_index_within_the_folder_wakes_nobody(notes: Path) -> None:
    out = notes / "notes.coil"
    with watching(notes, "--out", out) as watcher:
        (notes / ".hidden.txt").write_text("never read")
        (notes / "b.txt").write_text("a loan")
        watcher.hear("1 added")
        (notes / "b.txt").unlink()
        watcher.hear("1 removed")
        watcher.end(signal.SIGINT)
    rounds = [line for line in watcher.told if "removed in" in line]
    assert len(rounds) == 3, watcher.told


@pytest.mark.parametrize(("number", "status"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_a_watch_that_is_stopped_while_it_builds_goes_on(notes: Path, number: int, status: int) -> None:
    out = notes.parent / "notes.coil"
    for i in range(3_000):
        (notes / f"{i}.txt").write_text(f"note {i} of a bank by the river " * 20)
    watcher = Watcher(notes, "--out", out)
    kept: list[int] = []

    def committed() -> bool:
        try:
            with open_index(out) as index:
                kept.append(len(index))
        except CoilError:
            return False
        return kept[-1] > 0

    try:
        wait_for(committed)
        assert watcher.end(number) == status
    finally:
        watcher.process.kill()
        watcher.process.wait()
        assert watcher.process.stderr is not None
        watcher.process.stderr.close()
    assert run(["verify", str(out)]) == 0
    assert 0 < len(texts(out)) < 3_001
    for i in range(5, 3_000):
        (notes / f"{i}.txt").unlink()
    with watching(notes, "--out", out):
        pass
    assert set(texts(out)) == {"a.txt", *(f"{i}.txt" for i in range(5))}
