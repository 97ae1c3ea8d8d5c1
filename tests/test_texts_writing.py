"""Files that a command writes: never one of those that it reads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from coil.cli.main import run
from coil.errors import OutputError
from coil.texts.writing import check_output, write_whole

ROOT = Path(__file__).parents[1]
PAIR = '{"query": "bank of the river", "positive": "The bank was steep."}\n'


def test_an_output_is_compared_with_every_input(tmp_path: Path) -> None:
    data, link, other = (tmp_path / name for name in ("data", "link", "other"))
    data.write_text("kept")
    link.symlink_to(data)
    other.write_text("another")
    check_output(tmp_path / "new", [data, None, "-", "irds:vaswani", "a\0b", tmp_path])
    check_output(other, [data, link])
    check_output("/dev/null", ["/dev/null", data])
    for source in (data, link, str(tmp_path / "." / "data")):
        with pytest.raises(OutputError, match="is both the input and the output"):
            check_output(data, [other, source])


def test_a_file_in_a_folder_that_is_read_is_not_replaced(tmp_path: Path) -> None:
    folder, link = tmp_path / "beir", tmp_path / "link"
    (folder / "qrels").mkdir(parents=True)
    link.symlink_to(folder)
    for name in ("corpus.jsonl", "qrels/test.tsv", "first.trec"):
        (folder / name).write_text("kept")
    for name in ("corpus.jsonl", "qrels/test.tsv"):
        for source in (folder, str(folder) + "/", link):
            with pytest.raises(OutputError, match=f"test.tsv is in {source}|corpus.jsonl is in {source}"):
                check_output(folder / name, [None, source])
        with pytest.raises(OutputError, match="which this command reads"):
            check_output(link / name, [folder])
    check_output(folder / "new.tsv", [folder])  # not there, so not read
    check_output(folder / "first.trec", [folder])  # a run is not read from a folder
    check_output(folder / "corpus.jsonl", [folder / "qrels"])


@pytest.mark.parametrize(
    "command",
    [
        ["mine", "--pairs", "FILE", "--out", "FILE"],
        ["mine", "--pairs", "FILE", "--pairs", "other.jsonl", "--out", "./FILE"],
        ["search", "a.coil", "--queries", "FILE", "--run", "FILE"],
        ["rerank", "--corpus", "c.jsonl", "--queries", "FILE", "--run", "r.trec", "--out", "FILE"],
        ["rerank", "--corpus", "FILE", "--queries", "q.tsv", "--run", "r.trec", "--out", "FILE"],
        ["rerank", "--corpus", "c.jsonl", "--queries", "q.tsv", "--run", "FILE", "--out", "FILE"],
    ],
)
def test_no_command_overwrites_its_input(
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FILE", "other.jsonl"):
        Path(name).write_text(PAIR)
    if command[0] == "search":
        Path("corpus.jsonl").write_text('{"id": "a", "text": "The bank was steep."}\n')
        assert run(["index", "corpus.jsonl", "--out", "a.coil"]) == 0
    assert run(command) == 1
    assert "FILE is both the input and the output\n" in capsys.readouterr().err
    assert Path("FILE").read_text() == PAIR


def write_two(file: TextIO) -> int:
    return file.write("é 1\n") + file.write("é 2\n")


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_a_hyphen_is_standard_output(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert write_whole(name, write_two, "run.trec") == 8
    assert capfd.readouterr().out == "é 1\né 2\n"
    code = "import sys; from coil.texts.writing import write_whole; from tests.test_texts_writing import *\n"
    code += f"print('first'); write_whole('{name}', write_two, ''); print('last')"
    command = [sys.executable, "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    written = "first\né 1\né 2\nlast\n".encode()
    piped = subprocess.run(command, env=environment, stdout=subprocess.PIPE, timeout=60, check=True)
    assert piped.stdout == written
    with Path("log").open("wb") as log:
        log.write(b"kept\n")
    with Path("log").open("ab") as log:  # as with >>
        subprocess.run(command, env=environment, stdout=log, timeout=60, check=True)
    assert Path("log").read_bytes() == b"kept\n" + written
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_what_is_no_file_is_written_directly() -> None:
    reading, writing = os.pipe()
    try:
        assert write_whole(f"/dev/fd/{writing}", write_two, "run.trec") == 8
        assert os.read(reading, 100) == "é 1\né 2\n".encode()
    finally:
        os.close(reading)
        os.close(writing)


def test_the_end_of_the_reader_is_no_mistake_of_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: TextIO) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        write_whole("-", refuse, "run.trec")
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        write_whole("-", write_two, "run.trec")


def test_runs_are_written_to_standard_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.jsonl").write_text('{"id": "a", "text": "The bank was steep."}\n')
    Path("q.tsv").write_text("q\tsteep bank\n")
    Path("-").write_text("another file, kept")
    assert run(["index", "corpus.jsonl", "--out", "a.coil"]) == 0
    capfd.readouterr()
    assert run(["search", "a.coil", "--queries", "q.tsv", "--run", "-"]) == 0
    out, err = capfd.readouterr()
    assert out.startswith("q Q0 a 1 ")
    assert out.count("\n") == 1
    assert "wrote 1 hit for 1 query to standard output\n" in err
    Path("r.trec").write_text(out)
    command = ["rerank", "--index", "a.coil", "--queries", "q.tsv", "--run", "r.trec", "--out", "-"]
    assert run(command) == 0
    again, err = capfd.readouterr()
    assert again == out
    assert "wrote 1 candidate for 1 query to standard output\n" in err
    assert Path("-").read_text() == "another file, kept"
