"""A compressed file of several parts is read whole, or it is an error: no part is dropped silently."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from coil.errors import InputError, NotText
from coil.texts.corpora import read_documents
from tests.files import COMPRESSORS, put, stdin

ONE, TWO = b'{"id": "1", "text": "river"}\n', b'{"id": "2", "text": "bank"}\n'


def ids(path: Path | str) -> list[str]:
    return [document.doc_id for document in read_documents(path)]


@pytest.mark.parametrize("padding", [4, 8, 4096, 1 << 16, (1 << 17) + 4])
def test_xz_streams_may_be_padded(tmp_path: Path, padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The .xz file format, section 2.2: multiples of four NUL bytes between and after streams."""
    zeros = bytes(padding)
    one, two = lzma.compress(ONE), lzma.compress(TWO)
    for data in (one + zeros + two, one + zeros + two + zeros, one + zeros + zeros + two + zeros):
        assert ids(put(tmp_path / "a.jsonl.xz", data)) == ["1", "2"]
        stdin(monkeypatch, data)
        assert ids("-") == ["1", "2"]
    for data in (zeros + one, one + zeros + b"\0" + two, one + two + zeros + b"\0\0"):
        with pytest.raises(InputError, match=r"truncated|damaged"):
            ids(put(tmp_path / "a.jsonl.xz", data))


def test_gzip_members_may_be_padded(tmp_path: Path) -> None:
    data = gzip.compress(ONE) + bytes(7) + gzip.compress(TWO) + bytes(1000)
    assert ids(put(tmp_path / "a.jsonl.gz", data)) == ["1", "2"]


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_what_follows_a_compressed_stream_is_read_or_an_error(tmp_path: Path, suffix: str) -> None:
    one, two = COMPRESSORS[suffix](ONE), COMPRESSORS[suffix](TWO)
    garbage = [b"x", b"garbage", b"garbage " * 20_000, bytes(8) + b"garbage", TWO]
    flipped = [two[:at] + bytes([two[at] ^ 1 << bit]) + two[at + 1 :] for at in range(3) for bit in range(8)]
    for rest in (*garbage, *flipped, *(two[:kept] for kept in range(1, len(two)))):
        with pytest.raises(InputError, match=r"truncated|damaged") as caught:
            ids(put(tmp_path / f"a.jsonl{suffix}", one + rest))
        assert "again" in caught.value.remedy


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_damaged_stream_is_never_a_shorter_text(tmp_path: Path, suffix: str) -> None:
    """Some bits have no meaning; each of the others makes the file an error."""
    one, two = COMPRESSORS[suffix](ONE), COMPRESSORS[suffix](TWO)
    for place in range(len(two)):
        for bit in (0, 6):
            changed = two[:place] + bytes([two[place] ^ 1 << bit]) + two[place + 1 :]
            try:
                found = ids(put(tmp_path / f"a.jsonl{suffix}", one + changed))
            except InputError:
                continue
            assert len(found) == 2, (place, bit)


@pytest.mark.parametrize("suffix", COMPRESSORS)
def test_a_damaged_file_in_a_folder_is_skipped_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, suffix: str
) -> None:
    data = COMPRESSORS[suffix](b"The river is steep.")
    put(tmp_path / "good.txt", "river")
    damaged = {
        f"short.txt{suffix}": data[:-3],
        f"empty.md{suffix}": b"",
        f"plain.html{suffix}": b"<p>not compressed",
        f"garbage.txt{suffix}": data + b"garbage after it",
    }
    for name, content in damaged.items():
        put(tmp_path / name, content)
    assert ids(tmp_path) == ["good.txt"]
    told = [record.getMessage() for record in caplog.records if record.name == "coil.texts"]
    for name, content in damaged.items():
        what = "truncated" if name.startswith(("short", "empty")) else "damaged"
        assert any(m.startswith(f"skipped {tmp_path / name}: {what}") for m in told), (name, told)
        with pytest.raises(NotText, match=what) as caught:  # given directly, it must be read
            ids(put(tmp_path / name, content))
        assert "again" in caught.value.remedy
    assert told[-1] == "skipped 4 files: 2 .txt, 1 .html, 1 .md"
    whole = put(tmp_path / f"whole.txt{suffix}", data)
    assert ids(tmp_path) == ["good.txt", whole.name]


def test_a_compressed_file_in_a_folder_that_exceeds_the_limit_is_an_error(tmp_path: Path) -> None:
    """Unlike a damaged one, it can be read after all, with more memory."""
    put(tmp_path / "long.txt.xz", lzma.compress(b"river " * 1000))
    reading = read_documents(tmp_path)
    reading.gauge.longest = 2000
    with pytest.raises(InputError, match="exceeds the limit") as caught:
        list(reading)
    assert not isinstance(caught.value, NotText)
