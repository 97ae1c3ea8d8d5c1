"""Building shards: every document once, whatever is killed, and the same answers as one index gives."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import BadLine, ChangedCorpus, CoilError, DuplicateId, OutputError
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.shards import building, windows
from coil.shards.building import ShardBuilder
from coil.shards.encoding import Part, RowRules, WindowEncoder
from coil.shards.index import ShardedIndex
from coil.shards.opening import create_shards, open_shard, open_sharded
from coil.shards.places import FolderPlace, find_place, read_whole
from coil.shards.windows import CorpusFiles, Reached, Window, cut_windows
from coil.storage.intake import OnDuplicate
from coil.texts.corpora import read_documents
from coil.tokens.contexts import USUAL_CONTEXT
from tests.faults import Plan, faulty_folder
from tests.hash_encoder import HashEncoder
from tests.sharded import documents, expect_same, questions

NOTHING = Reached()
RULES = RowRules("int8", "chunk", USUAL_CONTEXT)


class Build:
    """A build in one process, in which anything can be killed."""

    def __init__(self, folder: Path, count: int, corpus: Path, mode: OnDuplicate = "error") -> None:
        self.place, self.count, self.mode = FolderPlace(folder / "many"), count, mode
        self.corpus = CorpusFiles((str(corpus),))
        self.manifest = create_shards(self.place, count, encoder=HashEncoder())
        self.encoder = WindowEncoder(HashEncoder(), RULES, count)
        self.builders = [self.start(number) for number in range(count)]

    def start(self, number: int) -> ShardBuilder:
        return ShardBuilder(open_shard(self.place, self.manifest, number), self.mode)

    def kill(self, number: int) -> None:
        """What was not committed is lost; another one goes on."""
        self.builders[number].close()
        self.builders[number] = self.start(number)

    def run(self, stop_after: int | None = None, before: Reached = NOTHING) -> Reached:
        """Take in all windows, or so many of them; returns how far the corpus was read."""
        reached = before
        next_ordinals = [builder.next_ordinal for builder in self.builders]
        for number, window in enumerate(cut_windows(self.corpus, next_ordinals, before)):
            if number == stop_after:
                return reached
            for part in self.encoder.encode(Window.from_row(window.to_row())):
                self.builders[part.shard].put(Part.from_row(part.to_row()))
            reached = window.reached
            if window.refusal is not None:
                raise window.refusal.error()
        for builder in self.builders:
            builder.finish()
        return reached

    def close(self) -> None:
        for builder in self.builders:
            builder.close()


def write(path: Path, docs: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(document) + "\n" for document in docs))
    return path


def build_one(path: Path, corpus: Path, mode: OnDuplicate) -> Index:
    index = create(path, encoder=HashEncoder())
    index.add(read_documents(corpus), mode, left_out=lambda _: None)
    return index


def whole(build: Build) -> ShardedIndex:
    build.close()
    return open_sharded(build.place, HashEncoder())


@settings(max_examples=20, deadline=None)
@given(
    docs=st.lists(documents(), min_size=1, max_size=40),
    count=st.integers(1, 4),
    mode=st.sampled_from(["update", "skip"]),
    kills=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=4),
    commit=st.sampled_from([1, 3, 1000]),
    asked=st.lists(questions, min_size=1, max_size=3),
)
def test_a_build_that_is_killed_again_and_again_ends_complete(
    docs: list[dict[str, Any]],
    count: int,
    mode: Any,
    kills: list[tuple[int, int]],
    commit: int,
    asked: list[dict[str, Any]],
) -> None:
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "WINDOW", 5)
        patch.setattr(building, "COMMIT_DOCUMENTS", commit)
        path = Path(folder)
        corpus = write(path / "corpus.jsonl", docs)
        build = Build(path, count, corpus, mode)
        reached = Reached()
        for after, number in kills:
            reached = build.run(after, reached)
            build.kill(number % count)
        build.run(None, reached)
        with whole(build) as many, build_one(path / "one.coil", corpus, mode) as one:
            assert len(many) == len(one)
            expect_same(one, many, [{**question, "filter": None, "sort": None} for question in asked])


def test_parts_that_come_twice_are_taken_once(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", [{"id": str(n), "text": f"river {n}"} for n in range(20)])
    build = Build(tmp_path, 2, corpus, "error")
    parts = [part for window in cut_windows(build.corpus, [0, 0]) for part in build.encoder.encode(window)]
    for part in [*parts, *parts]:
        build.builders[part.shard].put(part)
        build.builders[part.shard].commit()
    for part in parts:
        build.builders[part.shard].put(part)
    with whole(build) as many:
        assert len(many) == 20


def test_duplicates_are_errors_unless_told_otherwise(tmp_path: Path) -> None:
    docs = [{"id": "a", "text": "river"}, {"id": "b", "text": "bank"}, {"id": "a", "text": "money"}]
    corpus = write(tmp_path / "c.jsonl", docs)
    build = Build(tmp_path, 2, corpus)
    with pytest.raises(DuplicateId, match="document 1 of the corpus and document 3 of the corpus"):
        build.run()
    build.close()


def test_a_bad_line_is_told_after_what_comes_before_it(tmp_path: Path) -> None:
    corpus = write(tmp_path / "c.jsonl", [{"id": "a", "text": "river"}])
    corpus.write_text(corpus.read_text() + "{broken\n")
    build = Build(tmp_path, 2, corpus)
    with pytest.raises(BadLine, match="line 2"):
        build.run()
    for builder in build.builders:
        builder.finish()
    with whole(build) as many:
        assert "a" in many


def test_a_corpus_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "WINDOW", 4)
    docs = [{"id": str(n), "text": f"river {n}"} for n in range(20)]
    corpus = write(tmp_path / "c.jsonl", docs)
    build = Build(tmp_path, 2, corpus)
    reached = build.run(3)
    assert reached.documents == 12
    write(corpus, [{**docs[0], "text": "other"}, *docs[1:]])
    with pytest.raises(ChangedCorpus, match="first 12 documents"):
        build.run(None, reached)
    write(corpus, docs[:5])
    with pytest.raises(ChangedCorpus, match="5 documents now"):
        build.run(None, reached)
    write(corpus, docs)
    build.run(None, reached)
    with whole(build) as many:
        assert len(many) == 20


@pytest.mark.parametrize("fail_at", [1, 4, 9, 15])
def test_a_full_disk_loses_nothing_that_was_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail_at: int
) -> None:
    monkeypatch.setattr(windows, "WINDOW", 4)
    monkeypatch.setattr(building, "COMMIT_DOCUMENTS", 4)
    corpus = write(tmp_path / "c.jsonl", [{"id": str(n), "text": f"river {n}"} for n in range(60)])
    build = Build(tmp_path, 2, corpus)
    build.run(5)
    before = [builder.next_ordinal for builder in build.builders]
    build.close()
    with monkeypatch.context() as patch:
        patch.setattr("coil.storage.lock.Folder", faulty_folder(Plan(fail_at)))
        build.builders = [build.start(number) for number in range(2)]
        with pytest.raises(OutputError, match="No space left"):
            build.run()
        build.close()
    build.builders = [build.start(number) for number in range(2)]
    after = [builder.next_ordinal for builder in build.builders]
    assert all(now >= then for now, then in zip(after, before, strict=True))
    build.run()
    with whole(build) as many:
        assert len(many) == 60
        for number in range(2):
            with open_index(build.place.folder(f"{number:05}.coil"), HashEncoder()) as shard:
                shard.verify()


def test_a_shard_has_one_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "_LOCK_SECONDS", 0.3)
    build = Build(tmp_path, 1, write(tmp_path / "c.jsonl", [{"id": "a", "text": "river"}]))
    with pytest.raises(CoilError, match="being written"):
        build.start(0)
    build.close()
    assert read_whole(find_place(tmp_path / "many")).whole == build.manifest.whole
