"""Building within a budget, forecasts, and what is said about bad input."""

from __future__ import annotations

import json
import random
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coil.cli.index import tell_times
from coil.cli.main import run
from coil.cli.progress import tell_share
from coil.errors import (
    InputError,
    TooLittleMemory,
)
from coil.indexes.cpu_time import CpuTime
from coil.indexes.forecast import Forecast, forecast
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.lists import rows
from coil.storage import intake, writer
from coil.storage.memory import MemoryPlan, parse_size, plan_memory
from coil.texts import opening
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.builds import COMMIT_EVERY, build, some_documents, write_corpus
from tests.files import put, stdin
from tests.hash_encoder import HashEncoder, answers
from tests.tiny import WORDS

Output = pytest.CaptureFixture[str]


# ---- memory


def test_sizes_are_read_and_too_small_ones_are_refused() -> None:
    assert [parse_size(s) for s in ("512M", "4G", "1.5g", "64 MiB", "100")] == [
        512 << 20, 4 << 30, 3 << 29, 64 << 20, 100
    ]  # fmt: skip
    for wrong in ("", "4X", "-1G", "G"):
        with pytest.raises(InputError, match="not a size"):
            parse_size(wrong)
    for huge in ("9" * 400, "9" * 400 + "T", "1048577T"):
        with pytest.raises(InputError, match="out of range"):
            parse_size(huge)
    with pytest.raises(TooLittleMemory, match="150M") as caught:
        plan_memory(200 << 20, 150 << 20, 32)
    assert caught.value.remedy == "raise --memory to at least 246M"
    plan_memory(246 << 20, 150 << 20, 32)


@given(st.integers(246, 10_000), st.sampled_from([0, 8, 32, 128]))
def test_a_plan_adds_up(megabytes: int, n_t: int) -> None:
    plan = plan_memory(megabytes << 20, 150 << 20, n_t)
    window = plan.window_characters * ((4 * n_t + 170) / 2 + 6)
    free = (megabytes - 182) << 20
    assert plan.collected * 4.2 + window <= free * 1.001
    assert plan.collected + plan.merged * 6.5 + window <= free * 1.001
    assert plan.window_characters > 10_000


def segment_sizes(index: Index) -> list[int]:
    with index._holder.held() as snapshot:
        return [entry.lists.bytes for entry in snapshot.manifest.segments]


def test_merging_stays_within_memory(tmp_path: Path) -> None:
    def built(merged: int, name: str) -> Index:
        index = create(tmp_path / name, encoder=HashEncoder())
        index._plan = MemoryPlan(1 << 30, 1 << 30, merged, 10**6)
        for begin in range(0, 300, 10):
            index.add(some_documents(300)[begin : begin + 10])
        return index

    roomy, tight = built(1 << 30, "a.coil"), built(9_000, "b.coil")
    sizes = segment_sizes(tight)
    assert max(sizes) <= 6_000 < max(segment_sizes(roomy))  # the rest is for keys
    assert len(sizes) <= 20  # of 30: they are merged as far as there is room
    assert answers(roomy) == answers(tight)
    assert tight.compact() > roomy.compact() == 1
    assert answers(roomy) == answers(tight)


def test_a_segment_that_is_too_large_to_be_rewritten_is_refused(tmp_path: Path) -> None:
    """Such as one that was built with more memory."""
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    index.add(some_documents(300))
    [size] = segment_sizes(index)
    plan = MemoryPlan(1 << 30, 1 << 30, 1 << 30, 10**6, rewritten=size // 2)
    index._plan = plan
    assert index.compact() == 1  # nothing is deleted
    index.delete([some_documents(1)[0].doc_id])
    before = answers(index)
    with pytest.raises(
        TooLittleMemory, match=r"rewriting a segment of .* the limit of 1024M leaves"
    ) as caught:
        index.compact()
    assert "a larger memory limit" in caught.value.remedy
    assert answers(index) == before
    index._plan = replace(plan, rewritten=MemoryPlan.rewritten)
    assert index.compact() == 1
    assert answers(index) == before


# A process of its own, because only that has a peak of its own.
WITHIN_BUDGET = """
import sys
from coil.indexes.building import open_build
from coil.storage.memory import peak_bytes, resident_bytes
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
import numpy as np
folder, are_distinct = sys.argv[1], sys.argv[4] == "distinct"
n_t, n_documents = int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
class Quick(HashEncoder):
    def encode_documents(self, texts):
        for text in texts:
            words = rng.integers(2**48, 2**49, 400) if are_distinct else rng.integers(5, 90, 400)
            vectors = rng.standard_normal((400, n_t), dtype=np.float32)
            places = np.arange(400, dtype=np.int32)
            keys = tuple(f"w{i:x}" for i in words)
            yield TokenVectors(keys, places, np.zeros((400, 2), np.int32), vectors, None)
budget = resident_bytes() + (120 << 20)
index, before = open_build(folder, encoder=Quick(n_t=n_t, n_c=0), memory=budget)
index.build(({"id": i, "text": f"river {i}"} for i in range(n_documents)), "error", None, 65536)
facts = index.inspect()
print(peak_bytes() / budget, facts.bytes_lists / 2**20, facts.lists)
index.delete(["1", "2"])
index.compact()
print(peak_bytes() / budget)
"""


EMPTY_WITHIN_BUDGET = """
import sys
from coil.indexes.opening import create
from coil.storage.memory import peak_bytes, resident_bytes
from tests.hash_encoder import HashEncoder
encoder = HashEncoder()
index = create(sys.argv[1], encoder=encoder)
index.add([{"id": "river", "text": "river bank"}])
budget = resident_bytes() + (130 << 20)
found = []
with create(sys.argv[2], encoder=encoder, memory=budget) as index:
    empty = ({"id": f"{i:04000}", "text": ""} for i in range(100_000))
    index.add(empty, sys.argv[3], left_out=found.append)
print(peak_bytes() / budget, found[0].total, len(found[0]))
"""


@pytest.mark.parametrize("mode", ["error", "update"])
def test_documents_without_text_stay_within_the_budget(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", EMPTY_WITHIN_BUDGET, str(tmp_path / "a"), str(tmp_path / "b"), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, total, kept = done.stdout.split()
    assert float(peak) <= 1
    assert int(total) == 100_000
    assert 3_000 < int(kept) < 5_000  # 16 MiB of 4,000 bytes each


def _build_within_budget(folder: Path, *arguments: object) -> tuple[float, float, int, float]:
    """The peak of a build and its facts as a share of the budget, megabytes, lists, the peak after merges."""
    command = [sys.executable, "-c", WITHIN_BUDGET, str(folder), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    peak, megabytes, lists, peak_after = done.stdout.split()
    return float(peak), float(megabytes), int(lists), float(peak_after)


def test_a_build_stays_within_its_budget(tmp_path: Path) -> None:
    share, megabytes, _, _ = _build_within_budget(tmp_path / "a.coil", 32, 9000, "few")
    assert megabytes > 110  # all of it together would not fit: finishing takes three times that
    assert 0.5 < share < 1.2


def test_a_build_of_many_distinct_words_stays_within_its_budget(tmp_path: Path) -> None:
    """A word takes much more memory than its bytes on the disk."""
    share, _, lists, with_merges = _build_within_budget(tmp_path / "a.coil", 4, 2000, "distinct")
    assert lists > 790_000
    assert 0.5 < share < 1.2
    assert with_merges < 1.2


LARGE_FIELDS = """
import sys
from coil.indexes.building import open_build
from coil.storage.memory import peak_bytes, resident_bytes
from tests.hash_encoder import HashEncoder
page = sys.argv[2] + "<p>abc</p>" * 100_000
documents = ({"id": i, "text": f"river {i}", "page": page[:-1] + str(i)} for i in range(60))
budget = resident_bytes() + (120 << 20)
index, before = open_build(sys.argv[1], encoder=HashEncoder(), memory=budget)
index.build(documents, "error", None, 65536)
print(peak_bytes() / budget)
"""


@pytest.mark.parametrize("begin", ["", "😀"])
def test_large_fields_stay_within_the_budget(tmp_path: Path, begin: str) -> None:
    """One emoji makes all characters of its string take four bytes."""
    command = [sys.executable, "-c", LARGE_FIELDS, str(tmp_path / "a.coil"), begin]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 1.2


def test_the_size_that_is_told_is_the_size_on_disk(tmp_path: Path) -> None:
    with build(tmp_path / "a.coil", write_corpus(tmp_path / "c.jsonl", some_documents(200))) as index:
        facts = index.inspect()
    on_disk = sum(path.stat().st_size for path in (tmp_path / "a.coil" / "segments").iterdir())
    assert facts.bytes_documents + facts.bytes_lists == on_disk


# ---- forecasts


def test_a_forecast_is_near_what_comes(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=rng.choice([3, 10, 40, 300]))) for _ in range(3000))
    documents = [Document(f"d{i}", text, {"year": i}) for i, text in enumerate(texts)]
    encoder = HashEncoder(n_t=16)
    expected = forecast(iter(documents), encoder)
    assert expected == forecast_again(documents, encoder, expected)
    assert 0 < expected.seconds_alone <= expected.seconds
    assert expected.cpu_seconds > 0
    index = create(tmp_path / "a.coil", encoder=encoder)
    index.add(documents)
    facts = index.inspect()
    assert expected.documents == facts.documents == 3000
    assert expected.mentions == pytest.approx(facts.mentions, rel=0.25)
    assert expected.bytes_lists == pytest.approx(facts.bytes_lists, rel=0.25)
    assert expected.bytes_documents == pytest.approx(facts.bytes_documents, rel=0.25)
    assert expected.sampled == 400
    with pytest.raises(InputError, match="no documents"):
        forecast([], encoder)


def forecast_again(documents: list[Document], encoder: HashEncoder, first: Forecast) -> Forecast:
    """The same sample gives the same forecast; only the times differ."""
    times = ("seconds", "seconds_alone", "cpu_seconds")
    return replace(forecast(documents, encoder), **{name: getattr(first, name) for name in times})


@pytest.mark.parametrize(
    ("used", "alone"),
    [
        (CpuTime(clock=10, ours=17, others=1, idle=2), 10),  # alone
        (CpuTime(clock=10, ours=6, others=14, idle=0), 3),  # others took most of both cores
        (CpuTime(clock=10, ours=10, others=0, idle=10), 10),  # works on one core
        (CpuTime(clock=10, ours=8, others=300, idle=300), 10),  # a large machine with free cores
        (CpuTime(clock=10, ours=0, others=10, idle=0), 10),
    ],
)
def test_the_time_without_other_programs(used: CpuTime, alone: float) -> None:
    assert used.seconds_alone(2) == pytest.approx(alone)


def test_the_time_of_a_dry_run_names_the_load() -> None:
    idle = Forecast(
        1, 0, 1, 1, 1, seconds=1500, seconds_alone=1500, cpu_seconds=2580, sampled=1, sampled_share=1
    )
    assert tell_times(idle) == (
        "about 25.0 minutes on this machine when it is otherwise idle (43.0 minutes of CPU time)"
    )
    assert tell_times(replace(idle, seconds=3060)) == (
        "about 25.0 minutes on this machine when it is otherwise idle, 51.0 minutes if other programs stay "
        "as busy as now (43.0 minutes of CPU time)"
    )


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: Output) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(20))
    assert run(["index", str(corpus), "--out", str(tmp_path / "a.coil"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "20 documents, about" in shown
    assert re.search(r"time: about .* when it is otherwise idle.* of CPU time\)", shown)
    assert "read, and a random sample of 20 was indexed (100.0% of the text)" in shown
    assert [tell_share(share) for share in (0.0, 0.0002, 0.001, 0.0226)] == [
        "0.0%", "under 0.1%", "0.1%", "2.3%"
    ]  # fmt: skip
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]


def test_a_dry_run_refuses_what_a_run_refuses(tmp_path: Path, capsys: Output) -> None:
    def tell(*arguments: str) -> tuple[int, str]:
        status = run(["index", *arguments])
        return status, capsys.readouterr().err

    texts = put(tmp_path / "notes" / "a.md", "river").parent
    twice = write_corpus(
        tmp_path / "c.jsonl", [Document("x", "river"), *some_documents(5), Document("x", "b")]
    )
    for corpus in ([str(twice)], [str(texts), str(texts / "a.md")]):
        real = tell(*corpus, "--out", str(tmp_path / "a.coil"))
        assert real[0] == 1
        assert "duplicate id '" in real[1]
        assert tell(*corpus, "--out", str(tmp_path / "a.coil"), "--dry-run") == real
        skipping = ("--on-duplicate", "skip", "--dry-run")
        assert tell(*corpus, "--out", str(tmp_path / "a.coil"), *skipping)[0] == 0
    good, taken, plain = str(texts), tmp_path / "b.coil", put(tmp_path / "plain", "x")
    assert tell(good, "--out", str(taken), "--precision", "fp16")[0] == 0
    unfinished = tmp_path / "d.coil"
    create(unfinished, build_with="error").close()
    for out, more in (
        (taken, []),
        (unfinished, []),
        (unfinished, ["--resume", "--precision", "fp32"]),
        (texts, []),
        (plain, []),
        (plain / "below.coil", []),
    ):
        real = tell(good, "--out", str(out), *more)
        assert real[0] == 1
        status, told = tell(good, "--out", str(out), "--dry-run", *more)
        assert status == 1, out
        if out != plain / "below.coil":  # there the system's words and ours differ
            assert told == real[1]
    assert tell(good, "--out", str(unfinished), "--resume", "--dry-run")[0] == 0
    assert tell(good, "--out", str(tmp_path / "new" / "e.coil"), "--dry-run")[0] == 0
    assert not (tmp_path / "new").exists()


# ---- bad input, through the command line

BAD: dict[str, tuple[bytes, str]] = {
    "invalid JSON": (b'{"id": 1, "text": "a"}\n{"id": 2, "text"\n', "a.jsonl, line 2: invalid JSON"),
    "no id": (b'{"id": 1, "text": "a"}\n\n{"text": "b"}\n', "a.jsonl, line 3: no id"),
    "no text": (b'{"id": 1}\n', "a.jsonl, line 1: no text"),
    "twice": (b'{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', "line 1 and "),
    "empty": (b"", "contains no documents"),
    "empty texts": (b'{"id": 1, "text": ""}\n{"id": 2, "text": " "}\n', "only 2 empty documents"),
    "long": (
        b'{"id": 1, "text": "a"}\n{"id": 2, "text": "%s"}\n' % (b"x" * (32 << 20)),
        "a.jsonl, line 2: the line exceeds the limit of 29,491,200 bytes",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_with_its_place(
    kind: str, tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests of this process may have filled its memory.
    monkeypatch.setattr("coil.indexes.index.resident_bytes", lambda: 300 << 20)
    content, told = BAD[kind]
    path, out = put(tmp_path / "a.jsonl", content), tmp_path / "a.coil"
    assert run(["index", str(path), "--out", str(out), "--memory", "900M"]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert len(error) < 1000
    put(path, '{"id": 1, "text": "a"}\n')  # mended, it can be built: nothing is in the way
    assert run(["index", str(path), "--out", str(out)]) == 0
    assert "1 document added" in capsys.readouterr().err


def test_a_very_long_document_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = put(tmp_path / "a.jsonl", json.dumps({"id": 1, "text": "river bank " * 50_000}) + "\n")
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    with monkeypatch.context() as patched:
        patched.setattr(rows, "MOST_ROWS", 2000)
        with pytest.raises(InputError, match=r"a.jsonl, line 1: .* exceeds the limit of 2,000"):
            index.add(read_documents(corpus))
    index._plan = MemoryPlan(300 << 20, 1 << 20, 1 << 20, 10**6)
    with pytest.raises(InputError, match=r"needs too much memory: .* the limit of 300M leaves 1M"):
        index.add(read_documents(corpus))
    assert len(index) == 0


def test_odd_ids_are_kept_apart(tmp_path: Path, capsys: Output) -> None:
    ids = ["a", "A", "é", "e\u0301", "x" * 10_000, "x" * 9_999 + "y"]
    corpus = write_corpus(tmp_path / "a.jsonl", [Document(doc_id, "river") for doc_id in ids])
    out = str(tmp_path / "a.coil")
    assert run(["index", str(corpus), "--out", out]) == 0
    assert run(["search", out, "river", "--json"]) == 0
    hits = [json.loads(line)["doc_id"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(hits) == sorted(ids)
    put(corpus, (json.dumps({"id": "x" * 10_000, "text": "a"}) + "\n") * 2)
    assert run(["index", str(corpus), "--out", str(tmp_path / "b.coil")]) == 1
    assert len(capsys.readouterr().err) < 1000


def test_odd_files_of_a_folder(
    tmp_path: Path, capsys: Output, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = put(tmp_path / "notes" / "river.txt", "A river.").parent
    put(folder / "picture.txt", b"\x89PNG\0\0\0")
    (folder / "nowhere.md").symlink_to(folder / "gone")
    out = str(tmp_path / "a.coil")
    assert run(["index", str(folder), "--out", out]) == 0
    assert "1 document added" in capsys.readouterr().err
    assert "picture.txt: not a text file" in caplog.text
    assert "nowhere.md: not a file" in caplog.text
    put(folder / "secret.txt", "no")

    class Guarded(opening._CountedFile):
        def __init__(self, path: Path, gauge: opening.Gauge) -> None:
            if path.name == "secret.txt":  # root may read everything, so the rights alone would not do
                raise PermissionError(13, "Permission denied", str(path))
            super().__init__(path, gauge)

    monkeypatch.setattr(opening, "_CountedFile", Guarded)
    assert run(["index", str(folder), "--out", str(tmp_path / "b.coil")]) == 1
    assert "permission denied" in capsys.readouterr().err


def test_standard_input_is_resumed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    lines = b"".join(b'{"id": %d, "text": "river %d"}\n' % (i, i) for i in range(30))
    out = str(tmp_path / "a.coil")
    monkeypatch.setattr("coil.cli.index.COMMIT_EVERY", COMMIT_EVERY)
    monkeypatch.setattr(writer, "WINDOW", 4)
    stdin(monkeypatch, lines + b"{")
    assert run(["index", "-", "--out", out]) == 1
    assert "standard input, line 31" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out]) == 1
    assert "--resume" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out, "--resume"]) == 0
    assert "resuming after" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out, "--resume"]) == 0
    assert "is already finished (30 documents)" in capsys.readouterr().err
    assert run(["index", "-", "--out", str(tmp_path / "b.coil"), "--memory", "100M"]) == 1
    assert "raise --memory to at least" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["update", "skip"])
def test_a_build_that_a_duplicate_stopped_goes_on_as_the_remedy_says(
    full: Path, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    monkeypatch.setattr("coil.cli.index.COMMIT_EVERY", COMMIT_EVERY)
    monkeypatch.setattr(writer, "WINDOW", 4)
    documents = some_documents(30)
    documents[20] = replace(documents[20], doc_id="d3")
    corpus, out = write_corpus(tmp_path / "c.jsonl", documents), tmp_path / "a.coil"
    command = ["index", str(corpus), "--out", str(out), "--model", str(full)]
    assert run(command) == 1
    told = capsys.readouterr().err
    assert "duplicate id 'd3'" in told
    assert "continue with --resume and --on-duplicate update or skip" in told
    assert run([*command, "--resume"]) == 1, "it is still there"
    assert run([*command, "--resume", "--on-duplicate", mode]) == 0
    assert run([*command[:3], str(tmp_path / "b.coil"), *command[4:], "--on-duplicate", mode]) == 0
    with open_index(out) as resumed, open_index(tmp_path / "b.coil") as at_once:
        assert len(resumed) == 29
        assert answers(resumed) == answers(at_once)
        assert resumed.document("d3") == at_once.document("d3")


@pytest.mark.parametrize(
    "large",
    [
        {"id": "b", "text": "river", "note": "x" * 2000},
        {"id": "b", "text": "river " * 400},
        {"id": "b", "text": "river", "note": "é" * 600},
        {"id": "b" * 2000, "text": "river"},
    ],
)
def test_a_document_too_large_for_its_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: dict[str, str]
) -> None:
    monkeypatch.setattr(intake, "MOST_BYTES", 1000)  # a thousand million would take a while
    with create(tmp_path / "a.coil", encoder=HashEncoder(), long="truncate") as index:
        with pytest.raises(InputError, match=r"document 2: its id.* exceeds the limit of 1,000"):
            index.add([{"id": "a", "text": "river", "note": "é" * 400}, large])
        assert index.add([{"id": "a", "text": "river", "note": "é" * 400}]) == 1


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python does not tell the limit")
def test_the_limit_on_documents_is_one_that_sqlite_takes() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) > intake.MOST_BYTES
