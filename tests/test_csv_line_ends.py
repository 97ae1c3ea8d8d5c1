"""The lines of a .csv file end as any program writes them, also with carriage returns alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from coil.errors import BadLine
from coil.texts.corpora import read_documents
from tests.files import COMPRESSORS, put


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\r\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_a_csv_file_may_have_any_line_ends(tmp_path: Path, end: str, last: bool) -> None:
    rows = ["id,text", "a,river", 'b,"steep, wide"', 'c,"say ""bank"""', "d,"]
    path = put(tmp_path / "a.csv", end.join(rows) + end * last)
    assert [(d.doc_id, d.text) for d in read_documents(path)] == [
        ("a", "river"), ("b", "steep, wide"), ("c", 'say "bank"'), ("d", ""),
    ]  # fmt: skip


def test_carriage_returns_in_a_csv_file(tmp_path: Path) -> None:
    """In quotes they are part of the text, whatever ends the lines; elsewhere they may be an error."""
    path = put(tmp_path / "a.csv", 'id;text\ra;"two\rlines"\r\rb;"and\nthree\r\nmore"\r')
    assert [d.text for d in read_documents(path)] == ["two\rlines", "and\nthree\r\nmore"]
    path = put(tmp_path / "b.csv.gz", COMPRESSORS[".gz"](b'\r\r"id",text\ra,river\rb\rc,x\r'))
    with pytest.raises(BadLine, match=r"line 5: 1 cell, but the header has 2"):
        list(read_documents(path))
    path = put(tmp_path / "c.csv", 'id,text\na,"one\rtwo"\nb,river\rc,bank\n')
    reading = read_documents(path)
    assert next(reading).text == "one\rtwo"
    with pytest.raises(BadLine, match="line 3: invalid CSV"):
        next(reading)
    path = put(tmp_path / "d.csv", 'id,text,"a\rb"\na,river,x\nb,river\rbank,y\n')
    with pytest.raises(BadLine, match="line 3: invalid CSV"):
        list(read_documents(path))


def test_a_long_csv_file_with_carriage_returns_is_read_row_by_row(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "id,text\r" + "".join(f"{n},river {n}\r" for n in range(50_000)))
    reading = read_documents(path)
    reading.gauge.longest = 1 << 20
    assert sum(1 for _ in reading) == 50_000


def test_a_header_that_names_no_columns_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "id,text,,\na,river,1,2\n")
    with pytest.raises(
        BadLine, match=r"line 1: several columns have no name\n +try: name them, or remove them"
    ):
        list(read_documents(path))
    path = put(tmp_path / "b.csv", "A table of rivers\nid,text\na,river\n")
    with pytest.raises(BadLine, match="make the names of the columns the first line of the file"):
        list(read_documents(path))


def test_carriage_returns_in_a_tsv_file_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "a\triver\rb\tbank\r")
    with pytest.raises(BadLine, match="line 1: its lines end with carriage returns alone"):
        list(read_documents(path))
    path = put(tmp_path / "b.tsv", "a\triver\r\nb\tbank\r\n")
    assert [d.text for d in read_documents(path)] == ["river", "bank"]
