"""Building: interrupted and resumed, overlapped, within a budget, and what it says about bad input."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.cli.main import run
from coil.cli.progress import expected_documents
from coil.errors import (
    ChangedCorpus,
    DuplicateId,
    InputError,
    OptionMismatch,
    OutputError,
    TooLittleMemory,
    UnfinishedBuild,
)
from coil.forecast import forecast
from coil.index import Index, create, open_build, open_index
from coil.lists import writer
from coil.lists.intake import Places
from coil.lists.memory import MemoryPlan, parse_size, plan_memory
from coil.texts import opening
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.files import put, stdin
from tests.hash_encoder import HashEncoder, answers
from tests.tiny import WORDS, random_texts

Output = pytest.CaptureFixture[str]
COMMIT_EVERY = 5


class Stop(Exception):
    """What interrupts a build in these tests."""


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WINDOW", 4)


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("coil-")] == []


def write_corpus(path: Path, documents: Iterable[Document]) -> Path:
    lines = (json.dumps({"id": d.doc_id, "text": d.text, **d.fields}) for d in documents)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def some_documents(count: int, seed: int = 0) -> list[Document]:
    texts = random_texts(count, longest=8, seed=seed)
    return [Document(f"d{i}", text, {"number": i}) for i, text in enumerate(texts)]


def build(out: Path, corpus: Path, stop_after: int = 10**9, **options: Any) -> Index:
    """Build or resume; the build is interrupted once more than `stop_after` documents are encoded."""
    index, before = open_build(out, encoder=HashEncoder(), **options)
    encoded = 0

    def hear(count: int, position: int) -> None:
        nonlocal encoded
        encoded += count
        if encoded > stop_after:
            raise Stop

    try:
        index.build(read_documents(corpus), before.on_duplicate, hear, COMMIT_EVERY)
    except BaseException:
        index.close()
        raise
    return index


def everything(index: Index) -> tuple[Any, list[tuple[int, Document]]]:
    """What is found, and what the catalog holds, ordinals included."""
    catalog = index._snapshot.catalog
    ordinals = range(1, catalog.next_ordinal())
    found = [(ordinal, document) for ordinal in ordinals if (document := catalog.find(ordinal)) is not None]
    return answers(index), found


# ---- resuming


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 25), max_size=40),
    mode=st.sampled_from(["update", "skip"]),
    stops=st.lists(st.integers(0, 30), max_size=3),
)
def test_a_resumed_build_equals_one_in_one_go(ids: list[int], mode: str, stops: list[int]) -> None:
    texts = random_texts(len(ids), longest=8, seed=len(ids)) if ids else []
    documents = [Document(f"d{i}", text) for i, text in zip(ids, texts, strict=True)]
    with tempfile.TemporaryDirectory() as scratch:
        corpus = write_corpus(Path(scratch) / "corpus.jsonl", documents)
        whole = build(Path(scratch) / "whole.coil", corpus, on_duplicate=mode)
        out = Path(scratch) / "parts.coil"
        for stop in stops:
            try:
                build(out, corpus, stop, on_duplicate=mode, resume=True).close()
            except Stop:
                continue
            break
        state = open_build(out, encoder=HashEncoder(), resume=True, on_duplicate=mode)[1]
        parts = build(out, corpus, resume=True) if not state.finished else open_index(out, HashEncoder())
        assert everything(parts) == everything(whole)
        parts.verify()
        parts.close()
        whole.close()


def interrupted(tmp_path: Path, documents: list[Document], **options: Any) -> tuple[Path, Path, int]:
    """An index whose building was interrupted, its corpus, and how many documents it had read."""
    corpus, out = write_corpus(tmp_path / "corpus.jsonl", documents), tmp_path / "a.coil"
    with pytest.raises(Stop):
        build(out, corpus, 20, **options)
    with open_index(out, HashEncoder()) as index:
        state = index.build_state()
        assert state is not None
        assert not state.finished
        assert 5 <= state.documents <= 20
        return out, corpus, state.documents


CHANGES: dict[str, Callable[[list[Document]], list[Document]]] = {
    "text": lambda d: [*d[:2], Document(d[2].doc_id, d[2].text + " x", d[2].fields), *d[3:]],
    "field": lambda d: [*d[:2], Document(d[2].doc_id, d[2].text, {"number": 99}), *d[3:]],
    "id": lambda d: [*d[:2], Document("other", d[2].text, d[2].fields), *d[3:]],
    "removed": lambda d: [*d[:2], *d[3:]],
    "inserted": lambda d: [*d[:2], Document("new", "river"), *d[2:]],
    "reordered": lambda d: [*d[:2], d[3], d[2], *d[4:]],
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("mode", ["error", "skip"])
def test_a_corpus_that_changed_is_noticed(tmp_path: Path, change: str, mode: str) -> None:
    documents = some_documents(60)
    out, corpus, read = interrupted(tmp_path, documents, on_duplicate=mode)
    write_corpus(corpus, CHANGES[change](documents))
    where = "line 3 holds" if mode == "error" else f"the first {read} documents are not those"
    with pytest.raises(ChangedCorpus, match=where) as caught:
        build(out, corpus, resume=True)
    assert "--on-duplicate update" in caught.value.remedy
    write_corpus(corpus, documents)  # restored, it goes on
    with build(out, corpus, resume=True) as resumed, build(tmp_path / "b.coil", corpus) as afresh:
        assert everything(resumed) == everything(afresh)


def test_a_corpus_cut_short_is_noticed_and_one_that_grew_is_taken_in(tmp_path: Path) -> None:
    documents = some_documents(60)
    out, corpus, read = interrupted(tmp_path, documents)
    write_corpus(corpus, documents[: read - 1])
    with pytest.raises(ChangedCorpus, match=f"has {read - 1} documents now"):
        build(out, corpus, resume=True)
    more = [*documents[:read], Document("late", "river"), *documents[read + 5 :], Document("end", "bank")]
    write_corpus(corpus, more)
    with build(out, corpus, resume=True) as resumed, build(tmp_path / "b.coil", corpus) as afresh:
        assert everything(resumed) == everything(afresh)


def test_changes_between_the_runs_do_not_confuse_places(tmp_path: Path) -> None:
    documents = some_documents(60)
    out, corpus, _ = interrupted(tmp_path, documents)
    with open_index(out, HashEncoder()) as index:
        index.add([{"id": "mine", "text": "river"}])
        index.delete(["d1"])
    write_corpus(corpus, [*documents, Document("d50", "again")])
    with pytest.raises(DuplicateId, match=r"line 51 and again at .*line 61"):
        build(out, corpus, resume=True)
    write_corpus(corpus, [*documents, Document("mine", "again")])
    with pytest.raises(DuplicateId, match=r"at the index and again at .*line 61"):
        build(out, corpus, resume=True)
    write_corpus(corpus, documents)
    with build(out, corpus, resume=True) as index:
        assert len(index) == 60
        assert index.has("mine")
        assert not index.has("d1")


def test_resuming_says_what_it_cannot_do(tmp_path: Path) -> None:
    documents = some_documents(60)
    out, corpus, _ = interrupted(tmp_path, documents, precision="fp16")
    with pytest.raises(UnfinishedBuild, match="unfinished build") as caught:
        build(out, corpus)
    assert "--resume" in caught.value.remedy
    others: list[dict[str, Any]] = [{"precision": "int8"}, {"long": "truncate"}, {"on_duplicate": "skip"}]
    for other in others:
        with pytest.raises(OptionMismatch, match="was begun with --"):
            build(out, corpus, resume=True, **other)
    index, before = open_build(out, resume=True, encoder=HashEncoder(n_t=8))
    with pytest.raises(OptionMismatch, match="hash-4-3"):
        index.build(read_documents(corpus), before.on_duplicate, None, 5)
    with build(out, corpus, resume=True) as index:
        assert index.inspect().precision == "fp16"
    assert open_build(out, resume=True, encoder=HashEncoder())[1].finished
    create(tmp_path / "plain.coil", encoder=HashEncoder()).close()
    with pytest.raises(OutputError, match="not made by `coil index`"):
        build(tmp_path / "plain.coil", corpus, resume=True)
    with build(tmp_path / "none.coil", corpus, resume=True) as index:
        assert len(index) == 60


def test_a_killed_creation_is_no_obstacle(tmp_path: Path) -> None:
    import sqlite3

    out = tmp_path / "a.coil"
    out.mkdir()
    connection = sqlite3.connect(out / "catalog.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    (out / "writer.lock").write_text("process 1\n")
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(3))
    with build(out, corpus, resume=True) as index:
        assert len(index) == 3


# ---- ids


@pytest.mark.parametrize("count", [3, 30])
def test_a_duplicate_is_named_with_both_places(tmp_path: Path, count: int) -> None:
    """The first may be committed already (a commit every five documents), or be in memory still."""
    documents = [*some_documents(count), Document("d1", "again")]
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents)
    with pytest.raises(DuplicateId, match=rf"corpus.jsonl, line 2 and again at .*line {count + 1}"):
        build(tmp_path / "a.coil", corpus)
    index = create(tmp_path / "b.coil", encoder=HashEncoder())
    with pytest.raises(DuplicateId, match=f"document 2 of those given and again at document {count + 1} of"):
        index.add(documents, commit_every=COMMIT_EVERY)
    first, second = (put(tmp_path / name / "a.txt", "river").parent for name in ("one", "two"))
    with pytest.raises(DuplicateId, match=r"one/a.txt and again at .*two/a.txt"):
        create(tmp_path / "c.coil", encoder=HashEncoder()).add(read_documents(first, second))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60))
def test_places_are_kept_exactly_or_said_to_be_after_another(steps: list[tuple[int, int]]) -> None:
    marks, mark = [], 0
    for file_step, line_step in steps:
        mark += (file_step // 2 << 40) + line_step
        marks.append(mark)
    exact, thinned = Places(), Places(most_runs=4)
    for number, mark in enumerate(marks, start=1):
        exact.note(number, mark)
        thinned.note(number, mark)
    for number, mark in enumerate(marks, start=1):
        assert exact.of(number) == (mark, True)
        found, is_own = thinned.of(number)
        assert found == mark if is_own else found <= mark


# ---- at once


def test_a_segment_is_committed_while_the_next_is_encoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    went_on = threading.Event()
    commits: list[bool] = []
    commit = writer.IndexWriter._commit

    def slow(self: Any, pending: Any, is_build: bool) -> list[str]:
        commits.append(went_on.wait(10) if not commits else True)
        return commit(self, pending, is_build)

    class Watched(HashEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Any:
            if commits or threading.active_count() > before:
                went_on.set()
            return super().encode_documents(texts)

    before = threading.active_count()
    monkeypatch.setattr(writer.IndexWriter, "_commit", slow)
    index = create(tmp_path / "a.coil", encoder=Watched())
    assert index.add(some_documents(40), commit_every=COMMIT_EVERY) == 40
    assert all(commits)
    assert len(index) == 40


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, ZeroDivisionError])
def test_what_goes_wrong_in_any_thread_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(40))
    commit = writer.IndexWriter._commit

    def fails_third(self: Any, pending: Any, is_build: bool) -> list[str]:
        if pending.documents[0][0] > 2 * COMMIT_EVERY:
            raise error("told")
        return commit(self, pending, is_build)

    with monkeypatch.context() as patched:
        patched.setattr(writer.IndexWriter, "_commit", fails_third)
        with pytest.raises(error, match="told"):
            build(tmp_path / "a.coil", corpus)

    def texts() -> Iterator[Document]:
        yield from some_documents(23)
        raise error("told")

    index = create(tmp_path / "b.coil", encoder=HashEncoder())
    with pytest.raises(error, match="told"):
        index.add(texts(), commit_every=COMMIT_EVERY)
    assert 10 <= len(index) <= 23
    index.verify()
    assert index.add(some_documents(40)[len(index) :]) > 0
    broken = put(tmp_path / "broken.jsonl", corpus.read_text() + "{")
    with pytest.raises(InputError, match="line 41"):
        build(tmp_path / "c.coil", broken)
    with open_index(tmp_path / "a.coil", HashEncoder()) as kept:
        assert len(kept) == 2 * COMMIT_EVERY


def test_progress_is_told_as_documents_are_encoded(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(4000))
    documents = read_documents(corpus)
    heard: list[tuple[int, int]] = []
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add(documents, encoded=lambda count, position: heard.append((count, position)))
    assert [count for count, _ in heard] == [4] * 1000
    assert documents.total_bytes() == heard[-1][1] == corpus.stat().st_size
    halfway = heard[500][1] / heard[-1][1]
    assert 0.4 < halfway < 0.65
    assert expected_documents(100, 50, 200) == 400
    assert expected_documents(100, 300, 200) == 100
    assert read_documents("-").total_bytes() is None


# ---- memory


def test_sizes_are_read_and_too_small_ones_are_refused() -> None:
    assert [parse_size(s) for s in ("512M", "4G", "1.5g", "64 MiB", "100")] == [
        512 << 20, 4 << 30, 3 << 29, 64 << 20, 100
    ]  # fmt: skip
    for wrong in ("", "4X", "-1G", "G"):
        with pytest.raises(InputError, match="not a size"):
            parse_size(wrong)
    with pytest.raises(TooLittleMemory, match="150M") as caught:
        plan_memory(200 << 20, 150 << 20, 32)
    assert caught.value.remedy == "allow at least 246M"
    plan_memory(246 << 20, 150 << 20, 32)


@given(st.integers(246, 10_000), st.sampled_from([0, 8, 32, 128]))
def test_a_plan_adds_up(megabytes: int, n_t: int) -> None:
    plan = plan_memory(megabytes << 20, 150 << 20, n_t)
    window = plan.window_characters * ((4 * n_t + 170) / 2 + 6)
    free = (megabytes - 182) << 20
    assert plan.collected * 4.2 + window <= free * 1.001
    assert plan.collected + plan.merged * 6.5 + window <= free * 1.001
    assert plan.window_characters > 10_000


def test_merging_stays_within_memory(tmp_path: Path) -> None:
    def built(merged: int, name: str) -> Index:
        index = create(tmp_path / name, encoder=HashEncoder())
        index._plan = MemoryPlan(1 << 30, 1 << 30, merged, 10**6)
        for begin in range(0, 300, 10):
            index.add(some_documents(300)[begin : begin + 10])
        return index

    roomy, tight = built(1 << 30, "a.coil"), built(5_000, "b.coil")
    sizes = [entry.facts.bytes for entry in tight._snapshot.entries]
    assert max(sizes) <= 5_000 < max(entry.facts.bytes for entry in roomy._snapshot.entries)
    assert len(sizes) <= 20  # of 30: they are merged as far as there is room
    assert answers(roomy) == answers(tight)
    assert tight.compact() > roomy.compact() == 1
    assert answers(roomy) == answers(tight)


def test_a_build_stays_within_its_budget(tmp_path: Path) -> None:
    """A process of its own, because only that has a peak of its own."""
    code = """
import sys
from coil.index import open_build
from coil.lists.memory import peak_bytes, resident_bytes
from coil.vectors.token_vectors import TokenVectors
from tests.hash_encoder import HashEncoder
import numpy as np
class Quick(HashEncoder):
    def encode_documents(self, texts):
        rng = np.random.default_rng(0)
        for text in texts:
            ids = rng.integers(5, 90, 400).astype(np.int32)
            vectors = rng.standard_normal((400, 32), dtype=np.float32)
            yield TokenVectors(ids, ids, np.zeros((400, 2), np.int32), vectors, None)
encoder = Quick(n_t=32, n_c=0)
budget = resident_bytes() + (120 << 20)
index, before = open_build(sys.argv[1], encoder=encoder, memory=budget)
index.build(({"id": i, "text": f"river {i}"} for i in range(9000)), "error", None, 65536)
print(peak_bytes() / budget, sum(entry.facts.bytes for entry in index._snapshot.entries) / 2**20)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.coil")], capture_output=True, text=True, check=True
    )
    share, megabytes = (float(part) for part in done.stdout.split())
    assert megabytes > 110  # all of it together would not fit: finishing takes three times that
    assert 0.5 < share < 1.2


def test_the_size_is_told_with_everything_in_one_file(tmp_path: Path) -> None:
    with build(tmp_path / "a.coil", write_corpus(tmp_path / "c.jsonl", some_documents(200))) as index:
        facts = index.inspect()
        assert facts.bytes_catalog >= (tmp_path / "a.coil" / "catalog.sqlite").stat().st_size
    on_disk = sum(path.stat().st_size for path in (tmp_path / "a.coil").rglob("*") if path.is_file())
    assert facts.bytes_catalog + facts.bytes_segments == pytest.approx(on_disk, abs=40_000)


def test_a_long_addition_does_not_let_the_write_ahead_file_grow(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    wal = tmp_path / "a.coil" / "catalog.sqlite-wal"
    largest = 0

    def committed(count: int) -> None:
        nonlocal largest
        largest = max(largest, wal.stat().st_size)

    text = "x" * 300_000
    index.add((Document(str(i), text, {}) for i in range(80)), "error", committed, 5)
    assert (tmp_path / "a.coil" / "catalog.sqlite").stat().st_size > 20_000_000
    assert largest < 10_000_000


# ---- forecasts


def test_a_forecast_is_near_what_comes(tmp_path: Path) -> None:
    rng = random.Random(1)
    texts = (" ".join(rng.choices(WORDS, k=rng.choice([3, 10, 40, 300]))) for _ in range(3000))
    documents = [Document(f"d{i}", text, {"year": i}) for i, text in enumerate(texts)]
    encoder = HashEncoder(n_t=16)
    expected = forecast(iter(documents), encoder)
    assert expected == forecast_again(documents, encoder, expected.seconds)
    index = create(tmp_path / "a.coil", encoder=encoder)
    index.add(documents)
    index.fold()
    facts = index.inspect()
    assert expected.documents == facts.documents == 3000
    assert expected.mentions == pytest.approx(facts.mentions, rel=0.25)
    assert expected.bytes_segments == pytest.approx(facts.bytes_segments, rel=0.25)
    assert expected.bytes_catalog == pytest.approx(facts.bytes_catalog, rel=0.25)
    assert expected.sampled == 400
    with pytest.raises(InputError, match="no documents"):
        forecast([], encoder)


def forecast_again(documents: list[Document], encoder: HashEncoder, seconds: float) -> Any:
    """The same sample gives the same forecast; only the time differs."""
    from dataclasses import replace

    return replace(forecast(documents, encoder), seconds=seconds)


def test_a_dry_run_writes_nothing(tmp_path: Path, capsys: Output) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(20))
    assert run(["index", str(corpus), "--out", str(tmp_path / "a.coil"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "20 documents, about" in shown
    assert "20 chosen at random were indexed (100.0% of the text)" in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["corpus.jsonl"]


# ---- bad input, through the command line

BAD: dict[str, tuple[bytes, str]] = {
    "broken JSON": (b'{"id": 1, "text": "a"}\n{"id": 2, "text"\n', "a.jsonl, line 2: broken JSON"),
    "no id": (b'{"id": 1, "text": "a"}\n\n{"text": "b"}\n', "a.jsonl, line 3: no id"),
    "no text": (b'{"id": 1}\n', "a.jsonl, line 1: no text"),
    "twice": (b'{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', "line 1 and again at"),
    "empty": (b"", "holds no documents"),
    "long": (
        b'{"id": 1, "text": "a"}\n{"id": 2, "text": "%s"}\n' % (b"x" * (64 << 20)),
        "a.jsonl, line 2: longer than 58,982,400 bytes",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_with_its_place(kind: str, tmp_path: Path, capsys: Output) -> None:
    content, told = BAD[kind]
    path, out = put(tmp_path / "a.jsonl", content), tmp_path / "a.coil"
    assert run(["index", str(path), "--out", str(out), "--memory", "900M"]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert len(error) < 1000
    put(path, '{"id": 1, "text": "a"}\n')  # mended, it can be built: nothing is in the way
    assert run(["index", str(path), "--out", str(out)]) == 0
    assert "1 documents added" in capsys.readouterr().err


def test_a_very_long_document_is_refused_by_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = put(tmp_path / "a.jsonl", json.dumps({"id": 1, "text": "river bank " * 50_000}) + "\n")
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    with monkeypatch.context() as patched:
        patched.setattr(writer, "MOST_ROWS", 2000)
        with pytest.raises(InputError, match=r"a.jsonl, line 1: .* more than the 2,000 of a segment"):
            index.add(read_documents(corpus))
    index._plan = MemoryPlan(300 << 20, 1 << 20, 1 << 20, 10**6)
    with pytest.raises(InputError, match=r"does not fit into memory: .* 300M in all leave room for 1M"):
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
    assert "1 documents added" in capsys.readouterr().err
    assert "picture.txt is not text, left out" in caplog.text
    assert "nowhere.md is not a file, left out" in caplog.text
    put(folder / "secret.txt", "no")

    class Guarded(opening._CountedFile):
        def __init__(self, path: Path, gauge: opening.Gauge) -> None:
            if path.name == "secret.txt":  # root may read everything, so the rights alone would not do
                raise PermissionError(13, "Permission denied", str(path))
            super().__init__(path, gauge)

    monkeypatch.setattr(opening, "_CountedFile", Guarded)
    assert run(["index", str(folder), "--out", str(tmp_path / "b.coil")]) == 1
    assert "secret.txt may not be read by this user" in capsys.readouterr().err


def test_standard_input_is_resumed_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    lines = b"".join(b'{"id": %d, "text": "river %d"}\n' % (i, i) for i in range(30))
    out = str(tmp_path / "a.coil")
    monkeypatch.setattr("coil.cli.index.COMMIT_EVERY", COMMIT_EVERY)
    stdin(monkeypatch, lines + b"{")
    assert run(["index", "-", "--out", out]) == 1
    assert "standard input, line 31" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out]) == 1
    assert "--resume" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out, "--resume"]) == 0
    assert "going on after them" in capsys.readouterr().err
    stdin(monkeypatch, lines)
    assert run(["index", "-", "--out", out, "--resume"]) == 0
    assert "is finished, 30 documents" in capsys.readouterr().err
    assert run(["index", "-", "--out", str(tmp_path / "b.coil"), "--memory", "100M"]) == 1
    assert "allow at least" in capsys.readouterr().err
