"""A disk that fails at any step, and a power failure after any step: what was acknowledged is there."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from coil.errors import CoilError, IndexProblem, MissingIndex, OutputError
from coil.indexes.building import open_build
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.storage import disk, lock
from tests.faults import Disk, Plan, faulty_folder
from tests.hash_encoder import HashEncoder

POINTS = int(os.environ.get("COIL_FAULT_POINTS", "25"))  # of each kind; `make soak` asks for more


def ids_of(index: Index) -> set[str]:
    return {hit.doc_id for hit in index.search("river", k=10_000)}


@contextmanager
def disk_of(plan: Plan) -> Iterator[None]:
    """Every folder that is opened meanwhile is on the disk of a plan."""
    faulty, real = faulty_folder(plan), disk.Folder
    homes = [lock, disk]
    for home in homes:
        home.Folder = faulty  # type: ignore[misc]
    try:
        yield
    finally:
        for home in homes:
            home.Folder = real  # type: ignore[misc]


def work(folder: Path, plan: Plan) -> None:
    """Create, build, add, update, delete and compact; the plan hears what is promised after each commit."""
    there: set[str] = set()

    def told(ids: set[str]) -> None:
        nonlocal there
        there = ids
        plan.acknowledge(ids)

    index, _ = open_build(folder, encoder=HashEncoder(), on_duplicate="error")
    with index:
        told(set())
        index.build([{"id": f"b{i}", "text": "river"} for i in range(4)], "error", None, 100)
        told(there | {f"b{i}" for i in range(4)})
        for number in range(9):  # the eighth commit merges
            index.add([{"id": f"a{number}", "text": f"river bank {number}"}])
            told(there | {f"a{number}"})
        index.update([{"id": "a1", "text": "river money"}, {"id": "u", "text": "river"}])
        told(there | {"u"})
        index.delete(["a2", "b0", "nobody"])
        told(there - {"a2", "b0"})
        index.compact()
        told(there)
        index.delete(sorted(there))
        told(set())
        index.compact()
        index.add([{"id": "last", "text": "river"}])
        told({"last"})


def promises(plan: Plan) -> list[frozenset[str]]:
    return [event[1] for event in plan.events if event[0] == "acknowledged"]


def all_events(tmp_path: Path, **options: object) -> Plan:
    plan = Plan(**options)  # type: ignore[arg-type]
    with disk_of(plan):
        work(tmp_path / "whole.coil", plan)
    return plan


def check_power_failure(plan: Plan, after: int, folder: Path, rng: random.Random, share: float) -> None:
    state, promised, coming = Disk(), None, None
    for event in plan.events[:after]:
        if event[0] == "acknowledged":
            promised = event[1]
        else:
            state.take(event)
    coming = next((event[1] for event in plan.events[after:] if event[0] == "acknowledged"), promised)
    state.write(folder, rng, share)
    try:
        index = open_index(folder, HashEncoder())
    except MissingIndex:
        assert promised is None, "an index that was made is gone"
        return
    with index:
        index.verify()
        assert ids_of(index) in (promised, coming)
        index.add([{"id": "after", "text": "river"}])
        assert index.has("after")


def test_a_power_failure_after_any_step_loses_nothing(tmp_path: Path, soaked: Callable[..., None]) -> None:
    plan = all_events(tmp_path)
    rng = random.Random(0)
    points = list(range(len(plan.events) + 1))
    for number, after in enumerate(points if len(points) < POINTS else rng.sample(points, POINTS)):
        for share in (0.0, 0.5, 1.0):
            check_power_failure(plan, after, tmp_path / f"{number}-{share}", rng, share)
    soaked("power failures", states=3 * (number + 1))


@pytest.mark.parametrize(
    ("step", "name"), [("sync", "segments"), ("sync", "."), ("content", "lists"), ("content", "documents")]
)
def test_a_promise_that_is_not_kept_is_noticed(tmp_path: Path, step: str, name: str) -> None:
    """The same test with a disk that only pretends to sync: it must fail."""
    plan = all_events(tmp_path, skips=lambda kind, what: kind == step and what.endswith(name))
    rng = random.Random(0)
    with pytest.raises((AssertionError, IndexProblem)):  # noqa: PT012  any of them
        for after in range(len(plan.events) + 1):
            check_power_failure(plan, after, tmp_path / str(after), rng, 0.5)


def test_an_error_at_any_step_leaves_a_whole_index(tmp_path: Path, soaked: Callable[..., None]) -> None:
    whole = all_events(tmp_path)
    steps, states = whole.steps, promises(whole)
    rng = random.Random(1)
    for number in range(POINTS):
        plan = Plan(fail_at=rng.randrange(1, steps + 1), error=rng.choice([errno.ENOSPC, errno.EIO]))
        folder = tmp_path / str(number)
        with disk_of(plan), suppress(OutputError):
            work(folder, plan)
        assert plan.failed, "the error was injected"
        promised = promises(plan)
        if not promised:
            with suppress(CoilError):
                open_index(folder, HashEncoder()).close()
            continue
        with open_index(folder, HashEncoder()) as index:
            index.verify()
            assert ids_of(index) in (promised[-1], states[min(len(promised), len(states) - 1)]), plan.failed
            index.update([{"id": "after", "text": "river"}])
            index.compact()
            index.verify()
    soaked("write errors", injected=POINTS)


def test_an_error_while_creating_leaves_a_free_place(tmp_path: Path) -> None:
    for fail_at in range(1, 20):
        plan = Plan(fail_at=fail_at)
        folder = tmp_path / f"{fail_at}.coil"
        with disk_of(plan):
            if not plan_fails(folder):
                break
        with suppress(OutputError):  # the manifest may be there already
            create(folder, encoder=HashEncoder()).close()
        with open_index(folder, HashEncoder()) as index:
            assert len(index) == 0
    assert fail_at > 3


def plan_fails(folder: Path) -> bool:
    try:
        create(folder, encoder=HashEncoder()).close()
    except OutputError:
        return True
    return False
