"""Sharded indexes between two steps: of threads that read, of a change that fails halfway, and of a fork."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from collections.abc import ItemsView, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest

from coil.errors import IndexLocked, PartlyChanged
from coil.service.limits import ServiceOptions
from coil.shards import shard as shard_module
from coil.shards.collection import WholeStatistics
from coil.shards.exchange import ShardState
from coil.shards.ledger import Ledger
from coil.shards.local import LocalShards
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from coil.storage.lock import writer_lock
from tests.hash_encoder import HashEncoder
from tests.serving import TOKEN, running

DOCS = [{"id": f"d{n}", "text": f"river bank {n}"} for n in range(12)]
NEW = [{"id": f"d{n}", "text": "water"} for n in range(12)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    create_shards(find_place(tmp_path / "many"), 3, encoder=HashEncoder())
    return tmp_path / "many"


@pytest.fixture
def many(folder: Path) -> Iterator[LocalShards]:
    with open_sharded(find_place(folder), HashEncoder()) as opened:
        opened.add(DOCS)
        yield opened


@pytest.mark.parametrize("step", range(1, 16))
def test_statistics_are_whole_whenever_another_thread_counts_them(many: LocalShards, step: int) -> None:
    """Two first questions about a new state: before any line of one of them, the other one is answered."""
    with many.pinned() as still:
        statistics = WholeStatistics(still._state)
        other = threading.Thread(target=statistics.learn, args=[()])
        lines = 0

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal lines
            if frame.f_code is not WholeStatistics.learn.__code__:
                return None
            lines += event == "line"
            if lines == step and other.ident is None:
                other.start()
                other.join(0.2)  # it waits where this thread has the lock
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            found = statistics.learn(())
        finally:
            sys.settrace(before)
        if other.ident is not None:
            other.join()
        assert (found.n_rows, found.n_mentions) == (12, 36)


def test_a_reader_sees_all_of_a_change_or_nothing_of_it(many: LocalShards) -> None:
    ledger = Ledger(many._whole.calls)
    before, seen = ledger.versions(), list[Any]()

    class Read(dict[int, ShardState]):
        """The states after a change; whoever notes them is interrupted by a reader."""

        def items(self) -> ItemsView[int, ShardState]:
            def each() -> Iterator[tuple[int, ShardState]]:
                for number in self:
                    yield number, self[number]
                    seen.append(ledger.versions())

            return each()  # type: ignore[return-value]

    later = {n: replace(state, version=state.version + 1) for n, state in ledger._states.items()}
    ledger._note(Read(later))
    assert seen == [before] * 3
    assert ledger.versions() == tuple(state.version for state in later.values())


@pytest.mark.parametrize("before", ["a long read", "a quiet minute"])
def test_a_search_between_two_shards_of_a_change_sees_nothing_of_it(
    many: LocalShards, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The first shard has made the change, the last one has not."""
    with ExitStack() as reads:
        if before == "a long read":
            reads.enter_context(many.pinned())
            many.update(DOCS)
        else:
            clock = time.monotonic
            monkeypatch.setattr(shard_module, "time", SimpleNamespace(monotonic=lambda: clock() + 3600))
        last, found = many._shards[-1], list[Any]()
        put = last.put

        def search_and_put(*how: Any) -> Any:
            with many.pinned() as still:
                found.append({hit.doc_id: hit.text for hit in still.search("river water", k=20)})
            return put(*how)

        monkeypatch.setattr(last, "put", search_and_put)
        many.update(NEW)
    assert found == [{document["id"]: document["text"] for document in DOCS}]
    assert all(many[document["id"]].text == "water" for document in NEW)


def test_a_fork_during_a_change_can_make_changes(many: LocalShards) -> None:
    """The thread that makes the change does not exist in the new process."""
    status: list[int] = []

    def fork() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            threading.Timer(20, os._exit, [2]).start()
            try:
                os._exit(0 if Ledger.delete(many._ledger, ["d1"]).deleted == 1 else 1)
            except BaseException:
                os._exit(1)
        status.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    def documents() -> Iterator[dict[str, str]]:
        yield NEW[0]
        forking = threading.Thread(target=fork)
        forking.start()
        forking.join()
        yield NEW[2]

    many.update(documents())
    assert status == [0]


def test_a_change_that_is_made_in_part_says_so(many: LocalShards, folder: Path) -> None:
    """If one shard fails after another one was changed, it is not true that nothing was."""
    outcomes = []
    for number in range(3):
        many.update(DOCS)
        with writer_lock(folder / f"0000{number}.coil"), pytest.raises((IndexLocked, PartlyChanged)) as told:
            many.update(NEW)
        changed = sum(many[document["id"]].text == "water" for document in NEW)
        outcomes.append((told.type, bool(changed)))
        assert changed < 12
        many.update(NEW)  # again, as the error says
        assert all(many[document["id"]].text == "water" for document in NEW)
    assert outcomes.count((IndexLocked, False)) == 1, "the first shard: nothing was changed"
    assert outcomes.count((PartlyChanged, True)) == 2


def test_a_server_says_that_a_change_was_made_in_part(folder: Path) -> None:
    body = "\n".join(map(json.dumps, NEW))
    write = {"content": body, "headers": {"Authorization": f"Bearer {TOKEN}"}}
    told = []
    with running([folder], ServiceOptions(token=TOKEN), HashEncoder()) as server:
        for number in range(3):
            with writer_lock(folder / f"0000{number}.coil"):
                answer = server.client.post("/v1/indexes/many/documents", **write)  # type: ignore[arg-type]
            told.append((answer.status_code, answer.json()["detail"].partition(":")[0]))
    assert sorted(told) == [
        (409, "another process is writing this index"),
        (507, "the change was made only in part"),
        (507, "the change was made only in part"),
    ]
