"""Files that a command writes: never one of those that it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from coil.cli.main import run
from coil.errors import OutputError
from coil.texts.writing import check_output

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
