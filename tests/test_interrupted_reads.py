"""Signal handlers that read the index that they interrupt, or end what it does; changes within changes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from coil.errors import IndexLocked, ProcessProblem
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.shards.local import LocalShards
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from coil.storage.documents import DocumentReader
from tests.hash_encoder import HashEncoder

DOCS = [{"id": f"d{n}", "text": f"river bank {n}", "n": n} for n in range(12)]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "one.coil", encoder=HashEncoder()) as index:
        index.add(DOCS)
        yield index


@pytest.fixture
def many(tmp_path: Path) -> Iterator[LocalShards]:
    create_shards(find_place(tmp_path / "many"), 2, encoder=HashEncoder())
    with open_sharded(find_place(tmp_path / "many"), HashEncoder()) as index:
        index.add(DOCS)
        yield index


def soon(do: Callable[[], Any]) -> Any:
    """What comes back, or the error; a thread that waits forever is a failure."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(do())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it waits for itself"
    return found[0]


def interrupted(
    do: Callable[[], object], where: tuple[str, ...], handler: Callable[[str, int], object]
) -> None:
    """Call `handler` before every line of some modules, in the thread that runs it, as a signal would."""
    inside = False

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal inside
        code = frame.f_code
        if inside or not code.co_filename.endswith(where):
            return None
        if event == "line":
            inside = True
            try:
                handler(code.co_name, frame.f_lineno)
            finally:
                inside = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    finally:
        sys.settrace(before)


# ---- changes within changes


def _both(one: Index, many: LocalShards, do: Callable[[Any], Any]) -> list[Any]:
    return [soon(lambda index=index: do(index)) for index in (one, many)]  # type: ignore[misc]


def test_what_is_missing_may_be_added_at_once(one: Index, many: LocalShards) -> None:
    def delete(index: Any) -> tuple[int, bool]:
        new = [{"id": "new", "text": "water"}]
        return index.delete(["d1", "nobody"], missing=lambda _: index.update(new)), "new" in index

    assert _both(one, many, delete) == [(1, True), (1, True)]


def test_a_change_within_a_change_is_refused(one: Index, many: LocalShards) -> None:
    def add(index: Any) -> Any:
        def documents() -> Iterator[dict[str, str]]:
            yield {"id": "a", "text": "river"}
            index.update([{"id": "new", "text": "water"}])

        return index.update(documents())

    def go_on(index: Any) -> Any:
        return index.update([{"id": "a", "text": "x"}], go_on=lambda: index.delete(["d1"]))

    for change in (add, go_on):
        for refused in _both(one, many, change):
            assert isinstance(refused, IndexLocked)
    for index in (one, many):
        assert index.update([{"id": "a", "text": "river"}]) == 1
        assert len(index) == 13


def test_skipped_documents_may_be_replaced_at_once(one: Index, many: LocalShards) -> None:
    def add(index: Any) -> tuple[int, bool]:
        filled = [{"id": "b", "text": "water"}]
        return index.update([{"id": "b", "text": ""}], left_out=lambda _: index.update(filled)), "b" in index

    assert _both(one, many, add) == [(0, True), (0, True)]


def test_a_callback_may_read_while_the_index_is_changed(one: Index, many: LocalShards) -> None:
    def count(index: Any) -> set[int]:
        seen: set[int] = set()
        index.update([{"id": "a", "text": "x"}], go_on=lambda: seen.add(len(index.search("river", k=99))))
        return seen

    assert _both(one, many, count) == [{12}, {12}]


# ---- reads within reads

READING = (
    "holder.py", "snapshot.py", "documents.py", "connections.py", "shard.py", "ledger.py", "collection.py",
    "local.py", "shards/index.py", "model.py",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["one", "many"])
def test_a_signal_handler_may_read_wherever_it_interrupts(
    request: pytest.FixtureRequest, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coil.storage.connections.Watch.steps", 10)
    index, seen = request.getfixturevalue(kind), set[tuple[str, int]]()

    def handler(name: str, line: int) -> None:
        if (name, line) in seen:
            return
        seen.add((name, line))
        assert len(index) in (12, 13)
        found = index.search("river", k=20, filter=f"n >= 0 and n != {1000 + len(seen)}")
        assert len(found) in (12, 13)
        assert found[-1].text.startswith("river")

    def use() -> None:
        for _ in range(2):
            hits = index.search("river", k=20, filter="n > 3")
            assert [hit.fields["n"] > 3 for hit in hits] == [True] * len(hits)
        assert len(index.search("river", k=20, sort="n")) == 12
        index.update([{"id": "z", "text": "river", "n": 50}])
        assert len(index.search("river", k=20, filter="n > 40")) == 1
        assert len(index.search("river", k=20, filter="n > 3")) == 9

    assert soon(lambda: interrupted(use, READING, handler)) is None
    assert len(seen) > 50


def test_a_handler_that_interrupts_the_filter_of_a_handler_gets_an_error(one: Index) -> None:
    with one.held() as snapshot:
        documents: DocumentReader = snapshot.stored[0].documents

        def filter_within(depth: int) -> list[int]:
            def take(rows: Iterator[tuple[int]]) -> list[int]:
                if depth:
                    filter_within(depth - 1)
                return [ordinal for (ordinal,) in rows]

            return documents._watched(take, "ordinal", "1", (), None)

        assert len(filter_within(1)) == 12
        with pytest.raises(ProcessProblem, match="signal handler"):
            filter_within(2)
        assert len(filter_within(0)) == len(documents.fetch(range(1, 13))) == 12


# ---- reads that are ended


class Stop(Exception):
    """What a signal handler raises."""


def test_an_interrupted_read_keeps_no_state(many: LocalShards) -> None:
    """At every line in turn: none of them leaves a state behind that is kept forever."""
    seen: set[tuple[str, int]] = set()

    def handler(*line: Any) -> None:
        if line not in seen:
            seen.add(line)
            raise Stop

    def search() -> bool:
        many.update([{"id": f"d{n}", "text": f"river {len(seen)}"} for n in range(4)])
        try:
            interrupted(lambda: many.search("river", k=2, by="bm25"), ("shard.py", "local.py"), handler)
        except Stop:
            return False
        return True

    while not search():
        pass
    assert len(seen) > 50
    many.update([{"id": f"d{n}", "text": "river"} for n in range(4)])
    many.search("river")
    assert [len(shard._kept) for shard in many._shards] == [2, 2]
    assert not many._is_pinned()
