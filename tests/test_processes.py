"""Processes that end, or fork, while threads search."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from coil import compiled
from coil.compiled import CompiledCode
from coil.errors import CoilError
from coil.indexes.opening import create

DOCUMENTS = [{"id": f"d{i}", "text": f"a loan from the bank by river {i}"} for i in range(300)]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index made with the bundled model: searches go through every library there is."""
    folder = tmp_path_factory.mktemp("bundled") / "a.coil"
    with create(folder) as index:
        index.add(DOCUMENTS)
    return folder


def _run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "faulthandler", "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


SEARCHING = """
import atexit, sys, threading, time, coil
index = coil.open(sys.argv[1])
atexit.register(lambda: print(len(index.search("river bank", k=3))))
before = index.search("river bank")
def search():
    while True:
        assert index.search("river bank") == before
for _ in range(4):
    threading.Thread(target=search, daemon=True).start()
time.sleep(0.2)
"""


@pytest.mark.parametrize("attempt", range(3))
def test_a_process_may_end_while_its_threads_search(bundled: Path, attempt: int) -> None:
    done = _run(SEARCHING, bundled)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_the_end_waits_for_calls_and_refuses_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.5)
    code, entered, go_on = CompiledCode(), threading.Event(), threading.Event()

    def call() -> None:
        with code:
            entered.set()
            go_on.wait()

    thread = threading.Thread(target=call)
    thread.start()
    entered.wait()
    ending = threading.Thread(target=code.end)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    go_on.set()
    ending.join()
    thread.join()
    with pytest.raises(CoilError, match="the process is ending"), code:
        pass


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.1)
    code, stop = CompiledCode(), threading.Event()

    def call() -> None:
        with code:
            stop.wait()

    thread = threading.Thread(target=call)
    thread.start()
    code.end()
    with code:  # the thread that ends the process may still search: others' hooks run after this one
        pass
    stop.set()
    thread.join()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by /proc")
def test_no_thread_of_telemetry_is_started() -> None:
    code = (
        "import os; from coil.vectors.onnx_encoder import load_onnxruntime\n"
        "before = os.listdir('/proc/self/task'); load_onnxruntime()\n"
        "assert os.listdir('/proc/self/task') == before"
    )
    assert _run(code).stderr == ""
