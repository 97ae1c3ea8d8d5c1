"""Every kind of file and corpus is read, compressed or not; what is broken is named by its line."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import sys
import unicodedata
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coil.errors import BadLine, CoilError, DuplicateId, InputError, MissingExtra
from coil.texts.columns import make_document
from coil.texts.corpora import read_documents, unique
from coil.texts.judgements import read_judgements
from coil.texts.opening import json_lines, read_lines, split_name
from coil.texts.pairs import read_pairs
from coil.texts.queries import read_queries
from coil.texts.runs import read_run
from coil.texts.values import Document, Query
from tests.files import COMPRESSORS, put, stdin, zst

TWO = '{"_id": "a", "title": "T", "text": "x", "year": 2020}\n\n{"id": 7, "contents": "y"}\n'
TWO_DOCUMENTS = [Document("a", "T\nx", {"title": "T", "year": 2020}), Document("7", "y")]


# ---- opening


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_compressed_files(tmp_path, suffix):
    data = COMPRESSORS[suffix](TWO.encode())
    assert list(read_documents(put(tmp_path / f"c.jsonl{suffix}", data))) == TWO_DOCUMENTS
    assert list(read_documents(put(tmp_path / "unsaid.jsonl", data))) == TWO_DOCUMENTS
    doubled = put(tmp_path / f"twice.jsonl{suffix}", data + data)  # as `cat a.gz b.gz` makes
    assert list(read_documents(doubled)) == TWO_DOCUMENTS * 2


@pytest.mark.parametrize("suffix", COMPRESSORS)
@pytest.mark.parametrize("kept", [0, 3, 0.5, -3])
def test_truncated_compressed_files(tmp_path, suffix, kept):
    lines = "".join(json.dumps({"id": n, "text": f"text {n * 7919 % 1000}"}) + "\n" for n in range(3000))
    data = COMPRESSORS[suffix](lines.encode())
    cut = data[: int(len(data) * kept)] if isinstance(kept, float) else data[:kept]
    path = put(tmp_path / f"c.jsonl{suffix}", cut)
    with pytest.raises(InputError, match=r"c\.jsonl") as caught:
        list(read_documents(path))
    assert "again" in caught.value.remedy


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_files_that_are_not_compressed_as_they_say(tmp_path, suffix):
    with pytest.raises(InputError, match="damaged, or not in the format"):
        list(read_documents(put(tmp_path / f"c.jsonl{suffix}", TWO)))


def test_large_zst(tmp_path):
    line = b'{"id": "%d", "text": "' + b"long " * 20_000 + b'"}\n'
    data = b"".join(line % n for n in range(40))
    assert len(list(read_documents(put(tmp_path / "c.jsonl.zst", zst(data))))) == 40


def test_standard_input(monkeypatch):
    stdin(monkeypatch, TWO.encode())
    assert list(read_documents("-")) == TWO_DOCUMENTS
    stdin(monkeypatch, gzip.compress(TWO.encode()))
    assert list(read_documents("-")) == TWO_DOCUMENTS
    stdin(monkeypatch, b'{"id": "a", "text": "x"}\n{')
    with pytest.raises(BadLine, match="standard input, line 2"):
        list(read_documents("-"))


def test_missing_and_unreadable_files(tmp_path):
    for read in (read_documents, read_queries, read_pairs):
        with pytest.raises(InputError, match="file not found") as caught:  # at once, not at the first text
            read(tmp_path / "none.jsonl")
        assert caught.value.remedy
    for read in (read_judgements, read_run):
        with pytest.raises(InputError, match="file not found"):
            read(tmp_path / "none")
        with pytest.raises(InputError):
            read("a\0b")
    with pytest.raises(InputError, match="folder"):
        read_pairs(tmp_path)
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_run(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_the_right_to_read(tmp_path):
    path = put(tmp_path / "c.jsonl", TWO)
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read_documents(path)


def test_a_refused_file_is_an_input_error(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    path = put(tmp_path / "c.jsonl", TWO)
    monkeypatch.setattr("builtins.open", refuse)
    with pytest.raises(InputError, match="permission denied"):
        read_documents(path)


def test_byte_order_marks(tmp_path):
    assert list(read_documents(put(tmp_path / "c.jsonl", b"\xef\xbb\xbf" + TWO.encode()))) == TWO_DOCUMENTS
    assert next(read_documents(put(tmp_path / "c.tsv", b"\xef\xbb\xbfa\tx\n"))).doc_id == "a"
    assert next(read_documents(put(tmp_path / "f" / "a.txt", b"\xef\xbb\xbfx").parent)).text == "x"
    with pytest.raises(InputError, match="UTF-16"):
        list(read_documents(put(tmp_path / "w.jsonl", TWO.encode("utf-16"))))


def test_lines_and_names(tmp_path):
    path = put(tmp_path / "x", "a\r\nb\u2028c\x0bd\re\n\nf")  # only a line feed ends a line
    assert list(read_lines(path)) == [(1, "a\r\n"), (2, "b\u2028c\x0bd\re\n"), (3, "\n"), (4, "f")]
    assert split_name("d/a.b.jsonl.gz") == ("a.b", ".jsonl", ".gz")
    assert split_name("a.JSONL") == ("a", ".jsonl", "")
    assert split_name("a") == ("a", "", "")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "invalid JSON"),
        ('{"id": "a", "text": "x"', "invalid JSON"),
        ("[1]", "expected a JSON object"),
        ("12", "expected a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ("9" * 5000, "a number has thousands of digits"),
        ('{"id": "a", "text": "x", "n": -' + "9" * 5000 + "}", "a number has thousands of digits"),
    ],
)
def test_broken_json_is_named_by_line(tmp_path, line, reason):
    path = put(tmp_path / "c.jsonl", '{"id": "a", "text": "x"}\n\n' + line + "\n")
    with pytest.raises(BadLine, match=reason) as caught:
        list(json_lines(path))
    assert caught.value.line == 3
    assert str(path) in str(caught.value)
    told = caught.value.reason.removeprefix(f"{path}, line 3: ")
    assert "line" not in told, "one line number is enough"
    assert len(str(caught.value)) < 400 + len(str(path))
    assert caught.value.remedy


# ---- documents


def test_tsv(tmp_path):
    path = put(tmp_path / "c.tsv", "0\tone\ttwo\r\n\n1\t\n")
    assert list(read_documents(path)) == [Document("0", "one\ttwo"), Document("1", "")]
    with pytest.raises(BadLine, match="line 2: no tab"):
        list(read_documents(put(tmp_path / "d.tsv", "0\tx\nno tab\n")))
    with pytest.raises(BadLine, match="line 1: the id"):
        list(read_documents(put(tmp_path / "e.tsv", "\tx\n")))


def test_tsv_with_a_header(tmp_path):
    path = put(tmp_path / "c.tsv", "\ndocno\ttitle\tbody\tyear\r\n\na\tT\tx\t2020\r\nb\t\tw\t\n")
    assert list(read_documents(path)) == [
        Document("a", "T\nx", {"title": "T", "year": "2020"}),
        Document("b", "w", {"title": "", "year": ""}),
    ]
    assert list(read_documents(put(tmp_path / "d.tsv", "id\ttext\n1\tone\n"))) == [Document("1", "one")]
    assert list(read_queries(put(tmp_path / "q.tsv", "qid\tquery\n1\twhat\n"))) == [Query("1", "what")]


@pytest.mark.parametrize("first", ["id\tan instinct", "7\ttext", "qid\ttext", "ID\ttext", "id\ta\tb"])
def test_a_tsv_line_that_only_looks_like_a_header_is_a_document(tmp_path, first):
    doc_id, _, text = first.partition("\t")
    path = put(tmp_path / "c.tsv", f"{first}\nid\ttext\n")
    assert list(read_documents(path)) == [Document(doc_id, text), Document("id", "text")]


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ("id\ttext\tyear\na\tx\t1\nb\ty\tz\t2\n", 3, "4 cells, but the header has 3"),
        ("id\ttext\tyear\na\n", 2, "1 cell, but the header has 3"),
        ("id\ttext\ttext\na\tx\ty\n", 1, "two columns have the same name"),
        ("id\ttext\n\tx\n", 2, "the id under 'id' is ''"),
    ],
)
def test_broken_tsv_with_a_header(tmp_path, content, line, reason):
    with pytest.raises(BadLine, match=reason) as caught:
        list(read_documents(put(tmp_path / "c.tsv", content)))
    assert caught.value.line == line
    assert caught.value.remedy


def test_csv(tmp_path):
    path = put(tmp_path / "c.csv", 'docno,title,body,who\na,T,"x, ""y""\nz",me\n\nb,,w,\n')
    assert list(read_documents(path)) == [
        Document("a", 'T\nx, "y"\nz', {"title": "T", "who": "me"}),
        Document("b", "w", {"title": "", "who": ""}),
    ]
    long = "x" * 200_000
    assert next(read_documents(put(tmp_path / "long.csv", f"id,text\na,{long}\n"))).text == long


@pytest.mark.parametrize(
    "content",
    [
        "id;text;price\na;x, y;1,5\n",
        "\n\nid\ttext\tprice\r\na\tx, y\t1,5\r\n",
        'id;"text";"price"\na;"x, y";1,5\n',
        'id,"text",price\na,"x, y","1,5"\n',
        '"id";"text";"price, in €"\na;x, y;1,5\n',
    ],
)
def test_a_csv_without_commas_in_its_header_has_other_separators(tmp_path, content):
    (found,) = read_documents(put(tmp_path / "c.csv", content))
    assert (found.doc_id, found.text, list(found.fields.values())) == ("a", "x, y", ["1,5"])


@pytest.mark.parametrize(
    ("content", "line", "reason"),
    [
        ('id,text\na,"never closed\nand so on\n', 2, "invalid CSV"),
        ("id,text\na,b\nc,d,e\n", 3, "3 cells"),
        ('id,text\na,"two\nlines"\nc\n', 4, "1 cell,"),
        ("id,id,text\n1,2,3\n", 1, "two columns have the same name"),
        ("a,b\n1,2\n", 2, "no id"),
        ("\n \n\nid;text\na;b;c\n", 5, "3 cells"),
    ],
)
def test_broken_csv(tmp_path, content, line, reason):
    with pytest.raises(BadLine, match=reason) as caught:
        list(read_documents(put(tmp_path / "c.csv", content)))
    assert caught.value.line == line


def test_parquet(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"id": [1, 2], "text": ["x", None], "score": [0.5, math.nan], "raw": [b"\xff", b"b"]})
    parquet.write_table(table, tmp_path / "c.parquet")
    expected = [
        Document("1", "x", {"score": 0.5, "raw": "\ufffd"}),
        Document("2", "", {"score": None, "raw": "b"}),
    ]
    assert list(read_documents(tmp_path / "c.parquet")) == expected
    data = (tmp_path / "c.parquet").read_bytes()
    assert list(read_documents(put(tmp_path / "c.parquet.gz", gzip.compress(data)))) == expected
    for broken in (b"", b"PAR1", data[: len(data) // 2], data[:-20]):
        with pytest.raises(InputError, match="cannot be read as parquet"):
            list(read_documents(put(tmp_path / "broken.parquet", broken)))


def test_folder(tmp_path, caplog):
    put(tmp_path / "b.md", "# B")
    put(tmp_path / "a b" / "deep.TXT", "Ünï \U0001f600 \xff".encode("latin-1", "replace"))
    put(tmp_path / "a b" / "c.txt.gz", gzip.compress(b"zipped"))
    put(tmp_path / "empty.txt", b"")
    put(tmp_path / "binary.txt", b"PK\0\0\1")
    put(tmp_path / "image.png", b"no text")
    put(tmp_path / ".hidden" / "a.txt", "no")
    put(tmp_path / ".hidden.txt", "no")
    (tmp_path / "nowhere.txt").symlink_to(tmp_path / "gone")
    found = list(read_documents(tmp_path))
    assert [d.doc_id for d in found] == ["b.md", "empty.txt", "a b/c.txt.gz", "a b/deep.TXT"]
    assert [d.text for d in found[:3]] == ["# B", "", "zipped"]
    assert found[3].text.startswith("\ufffdn\ufffd")
    left_out = [record.getMessage() for record in caplog.records if record.name == "coil.texts"]
    assert len(left_out) == 4
    assert left_out[3] == "skipped 3 files: 2 .txt, 1 .png"
    assert "deep.TXT" in left_out[2]
    assert "binary.txt: not a text file" in left_out[0]
    assert "nowhere.txt: not a file" in left_out[1]


def test_a_text_file_is_a_corpus_of_one(tmp_path, monkeypatch):
    notes = put(tmp_path / "a" / "notes.md", "# Notes\n\nA river.")
    packed = put(tmp_path / "Other.TXT.gz", gzip.compress(b"zipped"))
    reading = read_documents(notes, packed, str(put(tmp_path / "c.jsonl", TWO)))
    assert reading.are_files
    assert reading.total_bytes() == sum(path.stat().st_size for path in (notes, packed, tmp_path / "c.jsonl"))
    expected = [
        Document("notes.md", "# Notes\n\nA river.", {"title": "Notes"}),
        Document("Other.TXT.gz", "zipped"),
    ]
    assert [next(reading)] == expected[:1]
    assert reading.place == str(notes)
    assert list(reading) == [*expected[1:], *TWO_DOCUMENTS]
    monkeypatch.chdir(notes.parent)
    assert list(read_documents("notes.md")) == expected[:1]
    with pytest.raises(DuplicateId) as caught:  # two files of one name have one id
        list(unique(read_documents(notes, put(tmp_path / "b" / "notes.md", "others"))))
    assert (caught.value.first, caught.value.second) == (str(notes), str(tmp_path / "b" / "notes.md"))
    with pytest.raises(InputError, match="not found"):
        read_documents(tmp_path / "gone.md")
    with pytest.raises(InputError, match=r"picture.txt is not a text file"):
        list(read_documents(put(tmp_path / "picture.txt", b"PK\0\0\1")))


def test_files_that_are_not_utf8_are_counted_and_named(tmp_path, caplog):
    def told() -> list[str]:
        messages = [record.getMessage() for record in caplog.records if record.name == "coil.texts"]
        caplog.clear()
        return messages

    put(tmp_path / "notes" / "fine.txt", "caf\u00e9 \ufffd")  # the character itself is no damage
    for name in "abcd":
        put(tmp_path / "notes" / f"{name}.txt", "caf\u00e9".encode("latin-1"))
    reading = read_documents(tmp_path / "notes")
    texts = [document.text for document in reading]
    assert texts == ["caf\ufffd"] * 4 + ["caf\u00e9 \ufffd"]
    assert next(reading, None) is None
    [message] = told()
    assert message.startswith("4 files are not UTF-8; ")
    assert all(f"{name}.txt" in message for name in "abc")
    assert "d.txt" not in message
    assert f"iconv -f latin1 -t utf-8 {tmp_path / 'notes' / 'a.txt'} > converted" in message
    lines = '{"id": 1, "text": "caf\u00e9"}\n{"id": 2, "text": "d\u00e9j\u00e0"}\n'.encode("latin-1")
    odd = put(tmp_path / "c.jsonl", lines)
    assert len(list(read_documents(odd, put(tmp_path / "d.tsv", "3\tok\n")))) == 2 + 1
    [message] = told()
    assert message.startswith("1 file is not UTF-8; ")
    assert "c.jsonl" in message
    assert len(list(read_queries(odd))) == 2
    [message] = told()
    assert "c.jsonl" in message
    assert len(list(read_documents(put(tmp_path / "e.jsonl", TWO)))) == 2
    assert told() == []


def test_folder_without_texts(tmp_path):
    put(tmp_path / "image.png", b"x")
    with pytest.raises(InputError, match="contains neither"):
        read_documents(tmp_path)
    with pytest.raises(InputError, match=r"no queries\.jsonl"):
        read_queries(tmp_path)
    with pytest.raises(InputError, match=r"no qrels/test\.tsv"):
        read_judgements(tmp_path)


@pytest.mark.parametrize("suffix", ["", *COMPRESSORS])
def test_beir_folder(tmp_path, suffix):
    pack = COMPRESSORS.get(suffix, lambda data: data)
    put(tmp_path / f"corpus.jsonl{suffix}", pack(TWO.encode()))
    put(tmp_path / f"queries.jsonl{suffix}", pack(b'{"_id": "1", "text": "what", "metadata": {}}\n'))
    put(tmp_path / "qrels" / f"test.tsv{suffix}", pack(b"query-id\tcorpus-id\tscore\n1\ta\t2\n"))
    put(tmp_path / "readme.md", "not a document")
    assert list(read_documents(tmp_path)) == TWO_DOCUMENTS
    assert list(read_queries(tmp_path)) == [Query("1", "what")]
    assert read_judgements(tmp_path) == {"1": {"a": 2}}


def test_unknown_kinds(tmp_path):
    for name in ("c.xlsx", "c", "c.json"):
        with pytest.raises(InputError, match="unsupported file type") as caught:
            read_documents(put(tmp_path / name, TWO))
        assert ".jsonl, .ndjson, .tsv, .csv, .parquet, .txt, .md, " in caught.value.remedy
        with pytest.raises(InputError, match="unsupported file type") as caught:
            read_queries(tmp_path / name)
        assert ".parquet, optionally compressed" in caught.value.remedy


@pytest.mark.parametrize("key", ["_id", "id", "doc_id", "docno", "pid"])
def test_id_keys(key):
    assert make_document({key: "a", "text": "x", "other": 1}) == Document("a", "x", {"other": 1})


def test_the_first_id_key_wins_and_the_others_are_fields():
    found = make_document(
        {"pid": "p", "_id": None, "id": "i", "body": "b", "text": "t", "title": "", "n": {"x": [1]}}
    )
    assert found == Document("i", "t\nb", {"pid": "p", "_id": None, "title": "", "n": {"x": [1]}})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"text": "x"}, "no id found among the keys 'text'"),
        ({"id": None, "text": "x"}, "no id"),
        ({"id": "", "text": "x"}, "the id under 'id' is ''"),
        ({"id": 1.5, "text": "x"}, "the id under 'id' is '1.5'"),
        ({"id": True, "text": "x"}, "the id under 'id'"),
        ({"id": ["a"], "text": "x"}, "the id under 'id'"),
        ({"id": "a", "txt": "x"}, "no text found among the keys 'id, txt'"),
        ({"id": "a", "text": 5}, "the text under 'text' is '5'"),
        ({}, "among the keys none"),
    ],
)
def test_bad_records(tmp_path, record, reason):
    path = put(tmp_path / "c.jsonl", '{"id": "ok", "text": ""}\n' + json.dumps(record) + "\n")
    with pytest.raises(BadLine, match="line 2") as caught:
        list(read_documents(path))
    assert reason in str(caught.value)
    assert caught.value.remedy


def test_empty_files_and_texts(tmp_path):
    for name in ("c.jsonl", "c.tsv", "c.csv"):
        assert list(read_documents(put(tmp_path / name, ""))) == []
        assert list(read_queries(tmp_path / name)) == []
    assert list(read_pairs(tmp_path / "c.jsonl")) == []
    assert read_run(tmp_path / "c.tsv") == {}
    with pytest.raises(InputError, match="no judgements"):
        read_judgements(tmp_path / "c.tsv")
    assert make_document({"id": "a", "text": ""}).text == ""
    assert make_document({"id": "a", "text": None}).text == ""


def test_strange_texts_survive(tmp_path):
    long_id = "i" * 10_000
    content = b'{"id": "nul", "text": "a\\u0000b"}\n{"id": "bad", "text": "a\xff\xfeb", "f\xff": "\\ud800"}\n'
    content += json.dumps({"id": long_id, "text": "😀 \U0001f468\u200d\U0001f469"}).encode() + b"\n"
    content += '{"id": "😀", "text": "\\ud83d\\ude00"}\n'.encode()
    nul, bad, long, emoji = read_documents(put(tmp_path / "c.jsonl", content))
    assert nul.text == "a\0b"
    assert bad == Document("bad", "a\ufffd\ufffdb", {"f\ufffd": "\ufffd"})
    assert (long.doc_id, long.text) == (long_id, "😀 \U0001f468\u200d\U0001f469")
    assert emoji == Document("😀", "😀")
    assert next(read_documents(put(tmp_path / "c.tsv", b"a\0\tb\0\n"))) == Document("a\0", "b\0")


def test_ids_that_differ_only_by_case_or_unicode_form_stay_different(tmp_path):
    ids = ["é", unicodedata.normalize("NFD", "é"), "É", "e", "ﬁ", "fi", "a", "a ", "1", "01"]
    path = put(tmp_path / "c.jsonl", "".join(json.dumps({"id": i, "text": "x"}) + "\n" for i in ids))
    assert [d.doc_id for d in unique(read_documents(path))] == ids


def test_duplicate_ids(tmp_path):
    first = put(tmp_path / "one.jsonl", TWO)
    second = put(tmp_path / "two.tsv", "b\tx\n7\ty\n")
    with pytest.raises(DuplicateId) as caught:
        list(unique(read_documents(first, second)))
    assert (caught.value.doc_id, caught.value.first, caught.value.second) == (
        "7",
        f"{first}, line 3",
        f"{second}, line 2",
    )
    folders = [put(tmp_path / name / "a.txt", name).parent for name in "xy"]
    with pytest.raises(DuplicateId) as caught:
        list(unique(read_documents(*folders)))
    assert caught.value.second == str(folders[1] / "a.txt")
    with pytest.raises(DuplicateId, match="document 1 and document 3"):
        list(unique(Document(i, "") for i in "aba"))
    assert len(list(read_documents(first, first))) == 4  # comparing ids is `unique`'s work


def test_unique_does_not_read_ahead():
    source = (Document(str(n), "") for n in range(10))
    next(unique(source))
    assert next(source).doc_id == "1"


def test_irds(monkeypatch):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    for read in (read_documents, read_queries, read_judgements):
        with pytest.raises(MissingExtra, match="ir_datasets"):
            read("irds:vaswani")

    def load(name):
        if name != "tiny":
            raise KeyError(name)
        doc, query = namedtuple("Doc", "doc_id title url"), namedtuple("Query", "query_id text")
        doc.default_text = lambda self: f"{self.title} all"
        return SimpleNamespace(
            docs_iter=lambda: iter([doc("1", "T", "u")]),
            queries_iter=lambda: iter([query("q", "what")]),
            qrels_dict=lambda: {"q": {"1": 1}},
        )

    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=load))
    assert list(read_queries("irds:tiny")) == [Query("q", "what")]
    assert read_judgements("irds:tiny") == {"q": {"1": 1}}
    (document,) = read_documents("irds:tiny")
    assert (document.doc_id, document.fields) == ("1", {"title": "T", "url": "u"})
    assert document.text == "T all"
    with pytest.raises(InputError, match="has no dataset 'other'"):
        read_documents("irds:other")


def test_missing_extras_are_named(tmp_path, monkeypatch):
    def absent(name, *_):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("importlib.import_module", absent)
    for source, extra in (
        ("irds:vaswani", "irds"),
        (put(tmp_path / "c.parquet", b"x"), "readers"),
        (put(tmp_path / "c.jsonl.zst", b"x"), "readers"),
    ):
        with pytest.raises(MissingExtra, match="is not installed") as caught:
            read_documents(source)
        assert caught.value.remedy == f"pip install 'coil-ir[{extra}]'"


# ---- anything at all

NAMES = ["c.jsonl", "c.tsv", "c.csv", "c.parquet", "f/a.txt", *(f"c.jsonl{suffix}" for suffix in COMPRESSORS)]
PIECES = [
    b"{",
    b"}",
    b'"',
    b":",
    b",",
    b"[",
    b"\n",
    b"\r",
    b"\t",
    b" ",
    b"\0",
    b"\xff",
    b"\xef\xbb\xbf",
    b"PAR1",
]
PIECES += [
    b'{"id":"a","text":"b"}',
    b'"_id"',
    b'"query"',
    b"\\ud800",
    b"NaN",
    b"1e999",
    b"-1",
    b"id,text\n",
    b"Q0",
]
PIECES += [b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"BZh91AY&SY", b"\xfd7zXZ\x00", "é😀".encode()]
anything = st.binary(max_size=200) | st.lists(st.sampled_from(PIECES), max_size=30).map(b"".join)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(NAMES), data=anything, packed=st.booleans())
def test_any_bytes_give_values_or_a_coil_error(tmp_path, name, data, packed):
    suffix = Path(name).suffix
    path = put(tmp_path / name, COMPRESSORS[suffix](data) if packed and suffix in COMPRESSORS else data)
    readers = [lambda: list(unique(read_documents(path.parent if name == "f/a.txt" else path)))]
    readers += [lambda: list(read_queries(path)), lambda: list(read_pairs(path))]
    readers += [lambda: read_judgements(path), lambda: read_run(path)]
    for read in readers:
        with contextlib.suppress(CoilError):
            repr(read()).encode()  # nothing that cannot be written again


@pytest.mark.parametrize("dictionary", [True, False])
def test_an_empty_row_group_has_no_rows(tmp_path: Path, dictionary: bool) -> None:
    """As an empty partition has it."""
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    full = arrow.table({"id": ["a", "b"], "text": ["river", "bank"]})
    with parquet.ParquetWriter(tmp_path / "a.parquet", full.schema, use_dictionary=dictionary) as file:
        for table in (full.slice(0, 0), full, full.slice(0, 0)):
            file.write_table(table)
    parquet.write_table(full.slice(0, 0), tmp_path / "none.parquet", use_dictionary=dictionary)
    assert [document.doc_id for document in read_documents(tmp_path / "a.parquet")] == ["a", "b"]
    assert list(read_documents(tmp_path / "none.parquet")) == []


def test_an_empty_path_is_not_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "secret.txt", "river")
    with pytest.raises(InputError, match="the path of a corpus is empty"):
        read_documents("")
    assert len(list(read_documents("."))) == 1
