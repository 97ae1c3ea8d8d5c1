"""Whatever a file declares, repeats or unpacks to, reading it takes little memory, or the limit is named."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.errors import InputError
from coil.texts.corpora import read_documents
from coil.texts.opening import check_values, count_separators
from tests.files import put, zst

KB = 1 << 10
LONGEST = 2 << 20  # bytes of a line in these tests
LIMIT = "exceeds the limit of"
VALUES = "exceeds the limit of 20,971 values"
OK = b'{"id": "ok", "text": "river"}\n'
ROW = b'{"id": 1, "text": "a", "v": %s}\n'
LONG = b'{"id": 1, "text": "' + b"x" * (4 << 20)  # more than a line may have
WIDE = LONG[: 1 << 20]  # few enough bytes, but four of memory for each if one character is wide
BOMB = OK + LONG * 8
DICTIONARY = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 << 20}]


def _parquet(columns: dict[str, object], **options: object) -> bytes:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    written = io.BytesIO()
    parquet.write_table(arrow.table(columns), written, **options)
    return written.getvalue()


def _repeated() -> bytes:
    """A dictionary of one long text that a thousand rows share: few bytes that unpack to many."""
    arrow = pytest.importorskip("pyarrow")
    texts = arrow.array(["z" * (256 * KB)])
    shared = arrow.DictionaryArray.from_arrays(arrow.array([0] * 1000, arrow.int32()), texts)
    return _parquet({"id": [str(i) for i in range(1000)], "text": shared})


def _wide() -> bytes:
    """Many columns, each with pages that fit."""
    texts = [[f"{column} {row} {'z' * 400}" for row in range(1000)] for column in range(60)]
    return _parquet({"id": [str(i) for i in range(1000)], **{f"c{i}": of for i, of in enumerate(texts)}})


def _list(value: object, length: int) -> bytes:
    arrow = pytest.importorskip("pyarrow")
    return _parquet({"id": ["1"], "text": ["a"], "v": arrow.array([[value] * length])})


def _zst_with_window() -> bytes:
    zstandard = pytest.importorskip("zstandard")
    wide = zstandard.ZstdCompressionParameters(window_log=26, strategy=1)
    data: bytes = zstandard.ZstdCompressor(compression_params=wide).compress(OK + b"\n" * (60 << 20))
    return data


CASES: dict[str, tuple[Callable[[], bytes], str]] = {
    "line.jsonl": (lambda: OK + LONG, LIMIT),
    "wide.jsonl": (lambda: OK + WIDE + "😀".encode(), LIMIT),
    "escapes.jsonl": (lambda: OK + WIDE + b'\\ud83d\\ude00"}', LIMIT),
    "ones.jsonl": (lambda: OK + ROW % (b"[" + b"1," * (1000 * KB) + b"1]"), VALUES),
    "dicts.jsonl": (lambda: OK + ROW % (b"[" + b"{}," * (600 * KB) + b"1]"), VALUES),
    "keys.jsonl": (lambda: OK + ROW % b"{%s}" % b",".join(b'"%x":1' % i for i in range(100 * KB)), VALUES),
    "breaks.jsonl": (
        lambda: OK + ROW % (b'["' + b"\\n" * (800 * KB) + b'",' + b"1," * (30 * KB) + b"1]"),
        VALUES,
    ),
    "nested.jsonl": (lambda: OK + ROW % (b'{"a":' * (200 * KB) + b"1" + b"}" * (200 * KB)), VALUES),
    "quote.csv": (
        lambda: b'id,text\nok,river\n1,"' + b"some words\n" * (900 * KB),
        "line 3: the row exceeds",
    ),
    "cell.csv": (lambda: b"id,text\nok,river\n1," + b"x" * (1900 * KB), LIMIT),
    "cells.csv": (lambda: b"id,text\nok,river\n1" + b",ab" * (100 * KB), "exceeds the limit of 5,242 values"),
    "cells.tsv": (lambda: b"id\ttext\nok\triver\n1" + b"\tab" * (600 * KB), VALUES),
    "header.tsv": (lambda: b"id" + b"\tab" * (600 * KB), VALUES),
    "line.tsv": (lambda: b"ok\triver\n1\t" + LONG, LIMIT),
    "text.txt": (lambda: LONG, LIMIT),
    "wide.md": (lambda: WIDE + "😀".encode(), LIMIT),
    "list.md": (lambda: b"---\ntags: [" + b"a, " * (600 * KB) + b"a]\n---\nriver\n", VALUES),
    "bomb.jsonl.gz": (lambda: gzip.compress(BOMB, 1), LIMIT),
    "bomb.jsonl.xz": (lambda: lzma.compress(BOMB, preset=0), LIMIT),
    "bomb.jsonl.zst": (lambda: zst(BOMB), LIMIT),
    "bomb.txt.zst": (lambda: zst(BOMB), LIMIT),
    "window.jsonl.xz": (
        lambda: lzma.compress(OK + b"\n" * (60 << 20), filters=DICTIONARY),
        "requires a dictionary that exceeds the limit of 5,242,880 bytes",
    ),
    "window.jsonl.zst": (_zst_with_window, "requires a window of 62,914,590 bytes that exceeds"),
    "repeated.parquet": (_repeated, ""),
    "page.parquet": (
        lambda: _parquet({"id": ["1"], "text": ["z" * (4 << 20)]}),
        "'text': a page of 4,194,308 bytes exceeds the limit of 2,097,152",
    ),
    "list.parquet": (lambda: _list(7, 1 << 20), "a page of 1,048,576 values exceeds the limit of 524,288"),
    "columns.parquet": (_wide, "the pages of its 61 columns take about 7"),
    "row.parquet": (lambda: _list(7, 100 * KB), "line 1: the row takes 10,240,000 bytes of memory"),
    "packed.parquet.gz": (lambda: gzip.compress(LONG, 1), "for a compressed .parquet file"),
}


READ = """
import json, sys
import pyarrow.parquet, zstandard
from coil.errors import InputError
from coil.storage.memory import peak_bytes
from coil.texts.corpora import read_documents
longest, slack = 2 << 20, 12 << 20  # slack: what allocators keep
assert len(list(read_documents(sys.argv[1]))) == 1  # libraries take some room at first use
before = peak_bytes()
for path in sys.argv[2:]:
    reading, count, told, remedy = read_documents(path), 0, "", ""
    reading.gauge.longest = longest
    try:
        for document in reading:
            count += 1
    except InputError as error:
        told, remedy = str(error), error.remedy
    print(json.dumps([path, count, told, remedy, (peak_bytes() - before - slack) / longest]))
"""


def test_reading_takes_little_memory_whatever_is_read(tmp_path: Path) -> None:
    """A process of its own, because only that has a peak of its own; it is no less for the later files."""
    pytest.importorskip("pyarrow")
    paths = [str(put(tmp_path / name, make())) for name, (make, _) in CASES.items()]
    small = str(put(tmp_path / "small.parquet", _parquet({"id": ["1"], "text": ["a"], "v": [[1]]})))
    done = subprocess.run(
        [sys.executable, "-c", READ, small, *paths], capture_output=True, text=True, check=True, timeout=300
    )
    for line, (name, (_, expected)) in zip(done.stdout.splitlines(), CASES.items(), strict=True):
        path, count, told, remedy, lines = json.loads(line)
        assert path.endswith(name)
        assert expected in told, name
        assert (count, told) == (1000, "") if not expected else "--memory" in remedy, name
        assert lines < 7, f"{name} took {lines:.1f} times the longest line"  # planned are 4 and some slack


def test_a_bomb_on_standard_input_is_refused_within_the_budget(tmp_path: Path) -> None:
    code = (
        "from coil.cli.main import run; from coil.storage.memory import peak_bytes; import sys;"
        "print(run(['index', '-', '--out', sys.argv[1], '--memory', '400M']), peak_bytes() >> 20)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.coil")],
        input=zst(OK + LONG * 20), capture_output=True, check=True, timeout=120,
    )  # fmt: skip
    status, peak = (int(part) for part in done.stdout.split())
    assert (status, peak < 400) == (1, True)
    assert b"standard input, line 2: the line exceeds the limit of 13,107,200 bytes" in done.stderr
    assert b"raise --memory" in done.stderr


def test_ordinary_files_are_read_as_ever(tmp_path: Path) -> None:
    """Commas in texts are not values, and a limit is not reached one early."""
    text = 'a, b, [c], {d}, \\"e\\", ' * 1000
    check_values(f'{{"id": 1, "text": "{text}"}}', ",[{", 1000, "here", 1, is_json=True)
    rows = {"id": [str(i) for i in range(5000)], "text": [f"text {i} " * 50 for i in range(5000)]}
    nested = {"v": [[i, None] for i in range(5000)], "m": [{"a": [i]} for i in range(5000)]}
    data = _parquet({**rows, **nested}, row_group_size=1700, data_page_size=10_000)
    reading = read_documents(put(tmp_path / "a.parquet", data))
    reading.gauge.longest = 1_000_000
    documents = list(reading)
    assert [d.doc_id for d in documents] == rows["id"]
    assert [d.text for d in documents] == rows["text"]
    assert documents[7].fields == {"v": [7, None], "m": {"a": [7]}}


@given(st.text('"\\\\,[a', max_size=40), st.integers(1, 9))
def test_what_separates_values_is_found_outside_of_strings(text: str, window: int) -> None:
    expected, in_string, escaped = 0, False, False
    for char in text:
        if char == '"' and not escaped:
            in_string = not in_string
        elif char in ",[" and not in_string:
            expected += 1
        escaped = char == "\\" and not escaped
    assert count_separators(text, ",[", 100, window) == expected


def test_damaged_parquet_and_zstandard_files_are_named(tmp_path: Path) -> None:
    parquet = _parquet({"id": ["1", "2"], "text": ["river", "bank"], "v": [[1], [2, 3]]})
    refused = 0
    for suffix, data in {".parquet": parquet, ".jsonl.zst": zst(OK * 50)}.items():
        for place in range(len(data)):
            for byte in (data[place] ^ 1, 0xFF):
                path = put(tmp_path / f"b{suffix}", data[:place] + bytes([byte]) + data[place + 1 :])
                try:
                    list(read_documents(path))
                except InputError:  # anything else fails the test
                    refused += 1
    assert refused > 100


def test_a_footer_of_nested_lists_is_damaged(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    footer = b"\x19" * 100_000
    data = b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"
    with pytest.raises(InputError, match="cannot be read as parquet: lists are nested too deeply"):
        list(read_documents(put(tmp_path / "a.parquet", data)))


def test_the_limit_follows_the_budget(tmp_path: Path) -> None:
    """In processes of their own: a limit covers the whole process, and this one has run other tests."""
    path = put(tmp_path / "a.jsonl", OK + ROW % (b"[" + b"1," * 400_000 + b"1]"))
    out = str(tmp_path / "a.coil")
    command = [sys.executable, "-m", "coil", "index", str(path), "--out", out, "--memory"]
    refused = subprocess.run([*command, "400M"], capture_output=True, text=True, check=False, timeout=120)
    assert refused.returncode == 1
    assert "raise --memory" in refused.stderr
    subprocess.run([*command, "2G"], check=True, timeout=120)
