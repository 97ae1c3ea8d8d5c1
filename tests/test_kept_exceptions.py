"""Exceptions of signal handlers that the program keeps, as a notebook does: they keep no lock."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.shards.local import LocalShards
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
from tests.test_interrupted_reads import DOCS, Stop, soon

LOCKING = ("contextlib.py", "lock.py", "indexes/index.py", "ledger.py", "local.py", "places.py")
# What a destructor raises, Python tells and forgets.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
READING = ("contextlib.py", "documents.py", "connections.py")


@pytest.fixture(params=["one", "many"])
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Index | LocalShards]:
    if request.param == "one":
        made: Any = create(tmp_path / "one.coil", encoder=HashEncoder())
    else:
        create_shards(find_place(tmp_path / "many"), 2, encoder=HashEncoder())
        made = open_sharded(find_place(tmp_path / "many"), HashEncoder())
    with made:
        made.add(DOCS)
        yield made


def _stopped(do: Callable[[], object], where: tuple[str, ...], number: int) -> Stop | None:
    """Raise at one of the moments in some modules when Python runs signal handlers: at the first step of a
    function, and after a call of compiled code."""
    left = number

    def stop(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in ("call", "c_return") and frame.f_code.co_filename.endswith(where):
            left -= 1
            if left == -1:
                raise Stop

    sys.setprofile(stop)
    try:
        do()
    except Stop as error:
        return error
    finally:
        sys.setprofile(None)
    return None


def _stop_everywhere(do: Callable[[], object], where: tuple[str, ...], check: Callable[[], object]) -> int:
    """Check after every such moment, in another thread, while the exception is kept; returns how many."""
    number = 0
    while (kept := _stopped(do, where, number)) is not None:
        found = soon(check)
        assert not isinstance(found, Exception), (number, kept.__traceback__, found)
        number += 1
    return number


def test_a_kept_exception_keeps_no_index_locked(index: Index | LocalShards) -> None:
    def change() -> None:
        index.delete(["nobody"])

    assert _stop_everywhere(change, LOCKING, change) > 30


def test_a_kept_exception_blocks_no_read(index: Index | LocalShards) -> None:
    numbers = count()

    def read() -> None:
        found = index.search("river", filter=f"n != {100 + next(numbers)}", sort="n", k=3)
        assert found[0].text.startswith("river")
        assert "d7" in index

    assert _stop_everywhere(read, READING, read) > 30
