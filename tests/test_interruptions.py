"""Time limits of the program itself: what its signal handler raises arrives unchanged; no data is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.interruptions import let_through
from coil.storage.disk import Folder
from coil.storage.overlap import Background
from coil.vectors.onnx_encoder import OnnxEncoder
from tests.hash_encoder import HashEncoder

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="needs signals of the system")


class TimeIsUp(TimeoutError):
    """An OSError, like the errors of a disk."""


class _Limit:
    def raise_it(self, *_: object) -> None:
        raise TimeIsUp

    __call__ = raise_it


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _Limit().raise_it)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as made:
        made.add([{"id": str(number), "text": f"river {number}", "n": number} for number in range(100)])
        yield made


@pytest.mark.parametrize(
    "handler", [_Limit().raise_it, _Limit(), partial(_Limit.raise_it, None), lambda *_: _Limit()()]
)
def test_every_kind_of_handler_is_recognized(handler: Callable[..., None]) -> None:
    signal.signal(signal.SIGALRM, handler)
    try:
        signal.raise_signal(signal.SIGALRM)
    except OSError as error:
        with pytest.raises(TimeIsUp):
            let_through(error)


def test_errors_of_others_are_not_let_through() -> None:
    for kind in (OSError, TimeIsUp):
        try:
            raise kind
        except OSError as error:
            let_through(error)


def test_a_filter_stops_with_the_exception_of_the_program(index: Index) -> None:
    index.add([{"id": f"m{number}", "text": "river", "n": number} for number in range(5000)])
    rng, stopped = random.Random(0), 0
    for number in range(150):
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-3, 2e-2))
            index.search("river", filter=f"n > {number} and n != 7", k=1)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeIsUp:
            stopped += 1
    assert stopped


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "step", ["make", "reserve", "write", "sync_file", "digest", "sync", "replace", "stat", "names", "read"]
)
def test_each_step_of_a_change_stops_with_the_exception_of_the_program(
    index: Index, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    real = getattr(Folder, step)

    def interrupted(*given: Any) -> Any:
        if when == "before":
            signal.raise_signal(signal.SIGALRM)
        found = real(*given)
        signal.raise_signal(signal.SIGALRM)
        return found

    monkeypatch.setattr(Folder, step, interrupted)
    with pytest.raises(TimeIsUp):
        index.update([{"id": "1", "text": "bank"}])
    monkeypatch.undo()
    index.verify()
    assert len(index) == 100
    index.update([{"id": "1", "text": "bank"}])
    assert [hit.doc_id for hit in index.search("bank", by="bm25")] == ["1"]


def test_a_merge_stops_with_the_exception_of_the_program(
    index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "coil.storage.writer.merge_small_segments", lambda *_: signal.raise_signal(signal.SIGALRM)
    )
    with pytest.raises(TimeIsUp):
        index.add([{"id": "new", "text": "bank"}])
    assert index.has("new")  # as after Ctrl-C: the documents were already committed


def test_the_tokenizer_and_the_model_stop_with_the_exception_of_the_program(
    full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = OnnxEncoder(full, precision="fp32", threads=1)

    class Interrupted:
        def __getattr__(self, _: str) -> Any:
            return lambda *_, **__: signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(encoder, "_sessions", {1: Interrupted()})
    with pytest.raises(TimeIsUp):
        list(encoder.encode_queries(["river"]))
    monkeypatch.setattr(encoder.keys._tokenizer, "_rust", Interrupted())
    with pytest.raises(TimeIsUp):
        list(encoder.encode_queries(["bank"]))


def test_no_job_outlives_a_caller_whose_time_is_up() -> None:
    done: list[str] = []

    def job() -> None:
        time.sleep(0.4)
        done.append("job")

    def interrupt() -> None:
        for _ in range(2):
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGALRM)

    with pytest.raises(TimeIsUp), Background[None]() as background:  # noqa: PT012
        background.start(job)
        threading.Thread(target=interrupt).start()
        background.result()
    assert done == ["job"]


def test_another_ctrl_c_does_not_interrupt_the_end_of_the_process() -> None:
    """Libraries that are stopped midway while Python shuts down may abort the process."""
    code = (
        "import atexit, os, signal\n"
        "from coil.cli import main\n"
        "main.run = lambda arguments: 130\n"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), print('ended')))\n"
        "main.main([])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "ended\n", "")
