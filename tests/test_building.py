"""Building: interrupted and resumed, overlapped, within a budget, and what it says about bad input."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import (
    ChangedCorpus,
    DuplicateId,
    IndexLocked,
    InputError,
    OptionMismatch,
    OutputError,
    UnfinishedBuild,
)
from coil.indexes.building import check_build, open_build
from coil.indexes.opening import create, open_index
from coil.storage import writer
from coil.storage.intake import SourcePositions
from coil.storage.lock import writer_lock
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from coil.vectors.token_vectors import TokenVectors
from tests.builds import COMMIT_EVERY, Stop, build, everything, some_documents, write_corpus
from tests.files import put
from tests.hash_encoder import HashEncoder
from tests.tiny import random_texts

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WINDOW", 4)


@pytest.fixture(autouse=True)
def no_stray_threads() -> Iterator[None]:
    yield
    assert [t.name for t in threading.enumerate() if t.name.startswith("coil-")] == []


# ---- resuming


@settings(max_examples=40, deadline=None)
@given(
    ids=st.lists(st.integers(0, 25), max_size=40),
    mode=st.sampled_from(["update", "skip"]),
    stops=st.lists(st.integers(0, 30), max_size=3),
)
def test_a_resumed_build_equals_one_in_one_go(ids: list[int], mode: str, stops: list[int]) -> None:
    texts = random_texts(len(ids), longest=8, seed=len(ids), shortest=0) if ids else []
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


class Impatient(HashEncoder):
    """Somebody presses Ctrl-C while the 30th document is being encoded."""

    def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
        for vectors in super().encode_documents(texts):
            self.encoded = getattr(self, "encoded", 0) + 1
            if self.encoded == 30:
                raise KeyboardInterrupt
            yield vectors


def test_what_was_encoded_before_an_interruption_is_kept(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", some_documents(60))
    out = tmp_path / "a.coil"
    index, _ = open_build(out, encoder=Impatient())
    with pytest.raises(KeyboardInterrupt):
        index.build(read_documents(corpus), "error", None, 10_000)
    index.close()
    with open_index(out, HashEncoder()) as kept:
        assert len(kept) == 29
        state = kept.build_state()
        assert state is not None
        assert (state.documents, state.finished) == (29, False)
    with build(out, corpus, resume=True) as resumed, build(tmp_path / "b.coil", corpus) as whole:
        assert everything(resumed) == everything(whole)


@pytest.mark.parametrize(
    "options", [{}, {"resume": True}, {"resume": True, "precision": "fp32"}], ids=["anew", "resume", "other"]
)
def test_a_build_that_is_still_running_must_not_be_removed(tmp_path: Path, options: dict[str, Any]) -> None:
    out, _, _ = interrupted(tmp_path, some_documents(40))
    with writer_lock(out):
        for start in (open_build, check_build):
            with pytest.raises(IndexLocked, match="is being written by") as raised:
                start(out, **options)
            assert "stop that process" in raised.value.remedy
            assert "remove" not in raised.value.remedy


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
    where = "line 3 has" if mode == "error" else f"the first {read} documents differ from those"
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
    with pytest.raises(ChangedCorpus, match=f"now has {read - 1} documents"):
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
    with pytest.raises(DuplicateId, match=r"line 51 and .*line 61"):
        build(out, corpus, resume=True)
    write_corpus(corpus, [*documents, Document("mine", "again")])
    with pytest.raises(DuplicateId, match=r"the index and .*line 61"):
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
    others: list[dict[str, Any]] = [{"precision": "int8"}, {"long": "truncate"}]
    for other in others:
        with pytest.raises(OptionMismatch, match="was started with --"):
            build(out, corpus, resume=True, **other)
    (tmp_path / "updated").mkdir()
    updated, _, _ = interrupted(tmp_path / "updated", documents, on_duplicate="update")
    with pytest.raises(OptionMismatch, match="was started with --on-duplicate update, not skip"):
        build(updated, corpus, resume=True, on_duplicate="skip")
    index, before = open_build(out, resume=True, encoder=HashEncoder(n_t=8))
    with pytest.raises(OptionMismatch, match="hash-4-3"):
        index.build(read_documents(corpus), before.on_duplicate, None, 5)
    with build(out, corpus, resume=True) as index:
        assert index.inspect().precision == "fp16"
    assert open_build(out, resume=True, encoder=HashEncoder())[1].finished
    create(tmp_path / "plain.coil", encoder=HashEncoder()).close()
    with pytest.raises(OutputError, match="not built by `coil index`"):
        build(tmp_path / "plain.coil", corpus, resume=True)
    with build(tmp_path / "none.coil", corpus, resume=True) as index:
        assert len(index) == 60


def test_a_killed_creation_is_no_obstacle(tmp_path: Path) -> None:
    out = tmp_path / "a.coil"
    out.mkdir()
    (out / "manifest-01234567-1.partial").write_bytes(b"half a")
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
    with pytest.raises(DuplicateId, match=rf"corpus.jsonl, line 2 and .*line {count + 1}"):
        build(tmp_path / "a.coil", corpus)
    index = create(tmp_path / "b.coil", encoder=HashEncoder())
    with pytest.raises(DuplicateId, match=f"document 2 and document {count + 1}"):
        index.add(documents, commit_every=COMMIT_EVERY)
    first, second = (put(tmp_path / name / "a.txt", "river").parent for name in ("one", "two"))
    with pytest.raises(DuplicateId, match=r"one/a.txt and .*two/a.txt"):
        create(tmp_path / "c.coil", encoder=HashEncoder()).add(read_documents(first, second))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1, max_size=60))
def test_places_are_kept_exactly_or_said_to_be_after_another(steps: list[tuple[int, int]]) -> None:
    marks, mark = [], 0
    for file_step, line_step in steps:
        mark += (file_step // 2 << 40) + line_step
        marks.append(mark)
    exact, thinned = SourcePositions(), SourcePositions(most_runs=4)
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

    def slow(self: Any, pending: Any, **others: Any) -> list[str]:
        commits.append(went_on.wait(10) if not commits else True)
        return commit(self, pending, **others)

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

    def fails_third(self: Any, pending: Any, **others: Any) -> list[str]:
        if pending.documents[0][0] > 2 * COMMIT_EVERY:
            raise error("told")
        return commit(self, pending, **others)

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
    least = 0 if error is KeyboardInterrupt else 10  # what is read but not encoded yet is let go of at once
    assert least <= len(index) <= 23
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
    assert read_documents("-").total_bytes() is None


def test_a_build_commits_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the model and however few the documents: a kill costs seconds, not everything."""
    monkeypatch.setattr(writer, "COMMIT_SECONDS", 0.05)
    monkeypatch.setattr(writer, "WINDOW", 512)
    seen: list[int] = []

    class Slow(HashEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
            for vectors in super().encode_documents(texts):
                seen.append(len(index))
                time.sleep(0.02)
                yield vectors

    index, _ = open_build(tmp_path / "a.coil", encoder=Slow(), memory=8 << 30)
    with index:
        index.build(some_documents(40), "error", None, 10**6)
        assert len(index) == 40
    assert len(set(seen)) > 3
    assert 0 < seen[30] < 40


def test_a_window_is_no_longer_than_a_slow_model_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model gives the vectors of a window when all are done: what came before must be safe by then."""
    monkeypatch.setattr(writer, "COMMIT_SECONDS", 0.2)
    monkeypatch.setattr(writer, "WINDOW_SECONDS", 0.1)
    monkeypatch.setattr(writer, "WINDOW", 512)
    read = 0

    class Slow(HashEncoder):
        def encode_documents(self, texts: Iterable[str]) -> Iterator[TokenVectors]:
            nonlocal read
            finished = []
            for vectors in super().encode_documents(texts):
                time.sleep(0.005)
                finished.append(vectors)
                read += 1
                if read == 300:
                    raise Stop
            return iter(finished)

    corpus = write_corpus(tmp_path / "c.jsonl", some_documents(600))
    index, _ = open_build(tmp_path / "a.coil", encoder=Slow(), memory=8 << 30)
    with index, pytest.raises(Stop):
        index.build(read_documents(corpus), "error", None, 10**6)
    with open_index(tmp_path / "a.coil", HashEncoder()) as kept:
        assert len(kept) > 100
