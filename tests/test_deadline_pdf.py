"""A PDF that takes too much time or memory, or ends its process, is skipped; nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coil.cli.main import run
from coil.errors import InputError, NotText
from coil.indexes.opening import open_index
from coil.texts import files, pdf
from coil.texts.corpora import read_documents
from coil.texts.pdf import PdfLimits, read_pdf
from tests.test_text_files import pdf as make_pdf

pytest.importorskip("pypdf")

LONGEST = 1 << 30
SHORT = PdfLimits(page=3.0)


@pytest.fixture(scope="module")
def endless() -> bytes:
    """A page of three million lines: minutes, where others take milliseconds."""
    return make_pdf("\n".join(["a"] * 3_000_000))


@pytest.fixture(scope="module")
def growing() -> bytes:
    """A page of 100,000 letters, each of which stands for 128 emoji."""
    letter = b"1 beginbfchar\n<41> <%s>\nendbfchar\n" % (b"D83DDE00" * 128)
    span = b"1 begincodespacerange <00> <FF> endcodespacerange\n"
    return make_pdf("A" * 100_000, unicode=b"begincmap " + span + letter + b"endcmap")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    found: list[subprocess.Popen[bytes]] = []
    original = subprocess.Popen

    def start(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        found.append(original(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(pdf.subprocess, "Popen", start)
    return found


def test_a_page_that_takes_too_long_is_stopped(
    endless: bytes, started: list[subprocess.Popen[bytes]]
) -> None:
    with pytest.raises(
        NotText, match=r"a\.pdf is a PDF that takes too long to read: page 1 took over"
    ) as told:
        read_pdf(endless, "a.pdf", LONGEST, SHORT)
    assert "pdftotext" in told.value.remedy
    [process] = started
    assert process.returncode is not None
    assert read_pdf(make_pdf("river"), "b.pdf", LONGEST) == ("", "river")


def test_all_pages_have_a_limit_as_well() -> None:
    with pytest.raises(NotText, match=r"or the whole file over 0\.001 s"):
        read_pdf(make_pdf("river"), "a.pdf", LONGEST, PdfLimits(file=0.001))


def test_a_build_skips_and_names_it(
    tmp_path: Path, endless: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(files, "read_pdf", partial(read_pdf, limits=SHORT))
    folder, out = tmp_path / "papers", tmp_path / "a.coil"
    folder.mkdir()
    (folder / "1.pdf").write_bytes(make_pdf("a river"))
    (folder / "2.pdf").write_bytes(endless)
    (folder / "3.pdf").write_bytes(make_pdf("a bank"))
    assert run(["index", str(folder), "--out", str(out)]) == 0
    assert f"skipped {folder / '2.pdf'}: a PDF that takes too long to read" in caplog.text
    with open_index(out) as index:
        assert [document.doc_id for document in index] == ["1.pdf", "3.pdf"]


def test_a_text_that_is_too_long_is_an_error(started: list[subprocess.Popen[bytes]]) -> None:
    with pytest.raises(InputError, match="the limit of 3 characters"):
        read_pdf(make_pdf("river"), "a.pdf", 3)
    assert started[0].returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere, the process has no memory limit")
def test_a_page_that_takes_too_much_memory_is_skipped(
    growing: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pdf, "_ROOM", 0)
    monkeypatch.setattr(pdf, "_LEAST_ROOM", 32 << 20)
    with pytest.raises(NotText, match=r"a\.pdf is a PDF that requires too much memory") as told:
        read_pdf(growing, "a.pdf", LONGEST)
    assert "pdftotext" in told.value.remedy
    (tmp_path / "1.pdf").write_bytes(growing)
    (tmp_path / "2.pdf").write_bytes(make_pdf("a bank"))
    assert [document.doc_id for document in read_documents(tmp_path)] == ["2.pdf"]
    assert f"skipped {tmp_path / '1.pdf'}: a PDF that requires too much memory" in caplog.text


def test_a_page_that_is_too_long_does_not_leave_its_process(growing: bytes, tmp_path: Path) -> None:
    """The parent would have to read all of it before it could count its characters."""
    command = [sys.executable, "-I", str(pdf._PROCESS), "60", str(LONGEST), "1000", *sys.path]
    done = subprocess.run(command, input=growing, capture_output=True, timeout=100, check=True)
    assert done.stdout == b'{"failure": "long"}\n'
    with pytest.raises(InputError, match="the limit of 1,000 characters"):
        read_pdf(growing, "a.pdf", 1000)


@pytest.mark.parametrize(
    ("code", "expected", "message"),
    [
        ("import os; os.kill(os.getpid(), 9)", NotText, r"crashes its reader \(status -9\)"),
        ("print('{\"page\": \"half', end='')", NotText, r"crashes its reader \(status 0\)"),
        ('print(\'{"failure": "memory"}\')', NotText, "requires too much memory"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", KeyboardInterrupt, None),
    ],
)
def test_a_process_that_ends_early_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    expected: type[BaseException],
    message: str | None,
) -> None:
    (tmp_path / "process.py").write_text(code)
    monkeypatch.setattr(pdf, "_PROCESS", tmp_path / "process.py")
    with pytest.raises(expected, match=message):
        read_pdf(make_pdf("river") * 1000, "a.pdf", LONGEST)  # more than a pipe holds


def test_a_process_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(InputError, match="no process could be started"):
        read_pdf(make_pdf("river"), "a.pdf", LONGEST)


def test_a_process_whose_parent_is_gone_ends_by_itself(endless: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(endless)
    with (tmp_path / "a.pdf").open("rb") as file:
        command = [sys.executable, "-I", str(pdf._PROCESS), "2", str(LONGEST), str(LONGEST), *sys.path]
        done = subprocess.run(command, stdin=file, capture_output=True, timeout=100, check=False)
    assert done.returncode != 0
    assert b"Timeout" in done.stderr


def test_files_of_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "pypdf", "signal", "io"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert read_pdf(make_pdf("river", "On rivers"), "a.pdf", LONGEST) == ("On rivers", "river")
