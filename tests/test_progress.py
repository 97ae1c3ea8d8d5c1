"""Progress: a bar on a terminal, plain lines elsewhere, and estimates only from what this run has done."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coil import progress
from coil.cli.main import run
from coil.cli.progress import document_bar, expected_documents
from coil.progress import BYTES, ProgressBar

Output = pytest.CaptureFixture[str]


class Clock:
    """A time that passes only when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(progress, "monotonic", made)
    return made


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, columns: int) -> Iterator[list[str]]:
    """Makes a terminal of this width standard error; what it shows is in the list afterwards."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    shown: list[str] = []
    with os.fdopen(theirs, "w") as stream, monkeypatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        yield shown
        stream.write("\0")  # the end
        stream.flush()
        while not "".join(shown).endswith("\0"):
            shown.append(os.read(ours, 10_000).decode())
    os.close(ours)
    shown[:] = "".join(shown).removesuffix("\0").replace("\r\n", "\n").split("\r")


@pytest.mark.parametrize("is_there", [True, False])
def test_work_goes_on_without_standard_error(
    is_there: bool, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = (tmp_path / "log").open("w") if is_there else None
    if stream is not None:
        stream.close()
    monkeypatch.setattr("sys.stderr", stream)
    with ProgressBar("indexing", "documents", total=10) as bar:
        clock.now += 60
        bar.update(5)
    assert bar.done == 5


def test_a_log_gets_a_plain_line_now_and_then(clock: Clock, capsys: Output) -> None:
    with ProgressBar("indexing", "documents", total=1000) as bar:
        for _ in range(75):
            clock.now += 1
            bar.update(10)
    assert capsys.readouterr().err.splitlines() == [
        "indexing: 100 documents (10%), 10 per second, 90.0 s left",
        "indexing: 400 documents (40%), 10 per second, 60.0 s left",
        "indexing: 700 documents (70%), 10 per second, 30.0 s left",
    ]


def test_short_work_leaves_no_line(clock: Clock, capsys: Output) -> None:
    with ProgressBar("indexing", "documents") as bar:
        clock.now += 9
        bar.update(10)
    assert capsys.readouterr().err == ""


def test_lines_show_sizes_slow_rates_and_notes(clock: Clock, capsys: Output) -> None:
    with ProgressBar("verifying", BYTES) as bar, ProgressBar("training", "steps", 4) as steps:
        clock.now += 20
        bar.update(50_000_000)
        steps.annotate("loss 0.125")
        steps.update()
    assert capsys.readouterr().err.splitlines() == [
        "verifying: 50.0 MB, 2.5 MB per second",
        "training: 1 steps (25%), 3.0 per minute, 60.0 s left, loss 0.125",
    ]


def test_nothing_is_shown_of_a_hidden_bar(clock: Clock, capsys: Output) -> None:
    with ProgressBar("training", "steps", hidden=True) as bar:
        clock.now += 100
        bar.update()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("columns", [0, 80])
def test_a_terminal_gets_a_bar_if_it_has_a_width(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, columns: int
) -> None:
    with terminal(monkeypatch, columns) as shown, ProgressBar("indexing", "documents", 20) as bar:
        clock.now += 10
        bar.update(10)
    if columns:
        assert "| 10/20 " in shown[-1]
    else:
        assert shown == ["indexing: 10 documents (50%), 1.0 per second, 10.0 s left\n"]


def test_the_estimate_of_a_resumed_build_counts_only_this_run(clock: Clock, capsys: Output) -> None:
    with document_bar(lambda: 1_000_000, "indexing", before=60_000) as encoded:
        clock.now += 300  # reads the first 60,000 documents again
        encoded(500, 605_000)
        for number in range(1, 7):
            clock.now += 5
            encoded(500, 605_000 + 5000 * number)
    assert capsys.readouterr().err.splitlines() == [
        "indexing: 61,500 documents (62%), 100 per second, 6.4 minutes left"
    ]


def test_the_bar_of_a_resumed_build_counts_what_was_indexed_before(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Or its total would be that of the documents since, over the bytes of all."""
    with (
        terminal(monkeypatch, 100) as shown,
        document_bar(lambda: 10_000, "indexing", before=60) as encoded,
    ):
        encoded(10, 7_000)
        clock.now += 10
        encoded(10, 8_000)
        encoded(10, 9_000)
    assert "60 documents" in shown[1]
    assert "70 documents [00:00, ? " in "".join(shown)
    assert "| 90/100 " in shown[-1]


def test_there_is_no_estimate_before_there_is_a_rate(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    with (
        terminal(monkeypatch, 100) as shown,
        document_bar(lambda: 10_000, "indexing", before=60) as encoded,
    ):
        clock.now += 300
        encoded(10, 7_000)
        clock.now += 1
        encoded(10, 8_000)
    assert "80 documents [" in shown[-1]
    assert "/100" not in "".join(shown)


def test_a_build_reports_to_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setattr(progress, "FIRST_LINE", 0.0)
    (tmp_path / "a.tsv").write_text("a\tA river.\nb\tA bank.\n")
    for arguments in (
        ["index", str(tmp_path / "a.tsv"), "--out", str(tmp_path / "a.coil"), "--dry-run"],
        ["index", str(tmp_path / "a.tsv"), "--out", str(tmp_path / "a.coil")],
        ["verify", str(tmp_path / "a.coil")],
    ):
        assert run(arguments) == 0
    told = capsys.readouterr().err
    assert "reading: 1 documents\nindexing: 2 documents\n" in told
    assert "verifying: " in told
    assert "\r" not in told


def test_the_total_is_estimated_from_the_bytes() -> None:
    assert expected_documents(100, 50, 200) == 400
    assert expected_documents(100, 300, 200) == 100
