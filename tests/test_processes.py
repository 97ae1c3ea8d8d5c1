"""Processes that end, or fork, while threads search."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coil import compiled
from coil.compiled import Calls, _calls, compiled_code
from coil.errors import ProcessProblem
from coil.indexes.opening import create
from coil.storage.disk import Folder
from coil.storage.document_file import StoredDocument, stored, write_documents
from coil.storage.documents import DocumentReader
from coil.texts.values import Document

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
    calls, entered, go_on = Calls(), threading.Event(), threading.Event()

    def call() -> None:
        with calls.guarded():
            entered.set()
            go_on.wait()

    thread = threading.Thread(target=call)
    thread.start()
    entered.wait()
    ending = threading.Thread(target=calls.end)
    ending.start()
    ending.join(0.1)
    assert ending.is_alive()
    go_on.set()
    ending.join()
    thread.join()
    with pytest.raises(ProcessProblem, match="the process is exiting"), calls.guarded():
        pass


def _call_under_way() -> tuple[Calls, Callable[[], None]]:
    """Calls of which one is under way in another thread, and what ends it."""
    calls, entered, stop = Calls(), threading.Event(), threading.Event()

    def call() -> None:
        with calls.guarded():
            entered.set()
            stop.wait()

    thread = threading.Thread(target=call)
    thread.start()
    entered.wait()

    def end() -> None:
        stop.set()
        thread.join()

    return calls, end


def test_the_end_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.1)
    calls, end_call = _call_under_way()
    calls.end()
    with calls.guarded():
        pass  # the thread that ends the process may still search: others' hooks run after this one
    end_call()


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads by /proc")
def test_no_thread_of_telemetry_is_started() -> None:
    code = (
        "import os, time; from coil.vectors.onnx_encoder import load_onnxruntime\n"
        "before = os.listdir('/proc/self/task'); load_onnxruntime()\n"
        "time.sleep(1)  # the thread that has imported it ends\n"
        "assert os.listdir('/proc/self/task') == before"
    )
    assert _run(code).stderr == ""


FORKING = """
import faulthandler, os, sys, threading, coil
index, busy, times = coil.open(sys.argv[1]), sys.argv[2] == "busy", int(sys.argv[3])
def ask(number=0):
    found = index.search("river bank " * 20, filter=f"id != 'x{number}'"), index.search("a loan", k=3)
    return found, len(index.search("bank", by="bm25")), index.explain("bank", "d7").score
def search():
    for number in range(10**9):
        ask(number)
def write():
    for number in range(10**9):
        index.update([{"id": "z", "text": f"token {number}"}])
index.update([{"id": "z", "text": "token 0"}])  # from now on, writes do not change the statistics
before = ask()
if busy:
    for work in (search, search, search, write):
        threading.Thread(target=work, daemon=True).start()
for _ in range(times):
    child = os.fork()
    if not child:
        faulthandler.dump_traceback_later(30, exit=True)
        sys.exit(0 if ask() == before else 3)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize(("kind", "times"), [("quiet", 2), ("busy", 6)])
def test_a_forked_process_searches(bundled: Path, tmp_path: Path, kind: str, times: int) -> None:
    folder = Path(shutil.copytree(bundled, tmp_path / "a.coil"))
    done = _run(FORKING, folder, kind, times)
    assert (done.returncode, done.stderr) == (0, "")


IMPORTING = """
import faulthandler, os, sys, threading, time, coil
class Slow:  # the module that is looked for is locked meanwhile
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            sys.meta_path.remove(self)
            begun.set()
            time.sleep(0.5)
index, begun = coil.open(sys.argv[1]), threading.Event()
sys.meta_path.insert(0, Slow())
def ask():
    return str(index.explain("river", index.search("river bank", k=1)[0].doc_id))
thread = threading.Thread(target=ask)
thread.start()
assert begun.wait(60)
child = os.fork()
if not child:
    faulthandler.dump_traceback_later(20, exit=True)
    ask()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("module", ["onnxruntime", "coil._native", "coil.explanations.table"])
def test_a_fork_waits_for_modules_that_the_first_search_loads(bundled: Path, module: str) -> None:
    done = _run(IMPORTING, bundled, module)
    assert (done.returncode, done.stderr) == (0, "")


JUST_TAKEN = """
import os, sys, threading, time
from coil.forks import make_lock
sys.setswitchinterval(100)  # the other thread gets the lock below, but does not come back to Python with it
lock = make_lock()
lock.acquire()
started = threading.Event()
def take():
    started.set()
    with lock:
        time.sleep(60)
threading.Thread(target=take, daemon=True).start()
started.wait()
time.sleep(0.1)
lock.release()
until = time.monotonic() + 0.1
while time.monotonic() < until:
    pass
child = os.fork()
if not child:
    os._exit(0 if lock.acquire(timeout=2) else 3)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_lock_that_a_thread_has_just_got_is_free_in_a_forked_process() -> None:
    assert _run(JUST_TAKEN).stderr == ""


POOL = """
import multiprocessing, sys, coil
index = coil.open(sys.argv[1])
before = index.search("river bank")
def search(query):
    return index.search(query)
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(search, ["river bank"] * 4, chunksize=1) == [before] * 4
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_pool_of_forked_processes_searches(bundled: Path) -> None:
    assert _run(POOL, bundled).stderr == ""


@pytest.fixture
def documents(tmp_path: Path) -> Iterator[DocumentReader]:
    with Folder.open(tmp_path) as folder:
        written = [stored(ordinal, Document(f"d{ordinal}", "a text", {}), 0) for ordinal in (1, 2)]
        write_documents(folder, "a.documents", written)
        reader = DocumentReader(folder, "a.documents")
        yield reader
        reader.close()


def _fork_begins() -> threading.Thread:
    """A thread that waits for the calls under way, as a fork does, and lets others begin again."""

    def fork() -> None:
        with _calls._forking:
            _calls.pause()
            _calls._only.clear()

    forking = threading.Thread(target=fork)
    forking.start()
    while not _calls._only and forking.is_alive():
        time.sleep(0.001)
    return forking


def test_a_read_that_waits_for_a_fork_holds_up_no_call_that_the_fork_waits_for(
    documents: DocumentReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 5.0)
    with compiled_code():
        forking = _fork_begins()
        reading = threading.Thread(target=documents.fetch, args=([1],))
        reading.start()
        time.sleep(0.1)
        began = time.monotonic()
        assert documents.size_of(2) == len("a text{}")
        assert documents.fetch([2])
        assert time.monotonic() - began < 2
    forking.join()
    reading.join()


def test_a_fork_does_not_wait_for_all_documents_of_a_write(tmp_path: Path) -> None:
    def documents() -> Iterator[StoredDocument]:
        for ordinal in (1, 2, 3):
            forking = _fork_begins()
            forking.join(5)
            assert not forking.is_alive()
            yield stored(ordinal, Document(f"d{ordinal}", "a text", {}), 0)

    with Folder.open(tmp_path) as folder:
        _, count = write_documents(folder, "a.documents", documents())
    assert count == 3


def test_a_fork_in_the_middle_of_a_call_that_does_not_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", 0.1)
    calls, end_call = _call_under_way()
    calls.pause()
    calls.renew()  # what the child does
    calls._only.clear()
    with pytest.raises(ProcessProblem, match="was forked during a call"), calls.guarded():
        pass
    end_call()


INTERRUPTED = """
import os, sys, threading
from coil.compiled import compiled_code
class Stop(Exception): pass
def step(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.endswith("compiled.py") and code.co_name not in before:
        raise Stop  # as a signal handler, at the first step of what runs after a fork
def call():
    with compiled_code():
        called.append(True)
before = ("pause", "_await_others")
sys.unraisablehook = lambda found: None
for _ in range(2):
    called = []
    sys.setprofile(step)
    child = os.fork()
    sys.setprofile(None)
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(5)
    if not child:
        os._exit(0 if called else 3)
    assert os.waitpid(child, 0)[1] == 0
    assert called
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_fork_that_a_signal_interrupts_blocks_no_call_and_no_other_fork() -> None:
    assert _run(INTERRUPTED).stderr == ""


FIRST_SEARCH = """
import importlib.util, signal, sys
from coil.scores.native import import_native
class Finder:  # a signal arrives while the module is executed, whose handler searches
    def find_spec(self, name, path=None, target=None):
        if name != "coil._native":
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        execute = found.loader.exec_module
        def interrupted(module):
            signal.raise_signal(signal.SIGUSR1)
            execute(module)
        found.loader.exec_module = interrupted
        return found
signal.signal(signal.SIGUSR1, lambda *_: seen.append(import_native().instruction_sets()))
seen = []
sys.meta_path.insert(0, Finder())
assert import_native().instruction_sets() == seen[0], seen
"""


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="needs signals of the system")
def test_a_signal_handler_may_search_while_the_first_search_loads_its_modules() -> None:
    assert _run(FIRST_SEARCH).stderr == ""


FORKED_WITHIN = """
import os, sys
from pathlib import Path
from coil.errors import IndexLocked
from coil.shards.opening import create_shards, open_sharded
from coil.shards.places import find_place
from tests.hash_encoder import HashEncoder
place = find_place(Path(sys.argv[1]) / "many")
create_shards(place, 2, encoder=HashEncoder())
index, told = open_sharded(place, HashEncoder()), []
def documents():
    yield {"id": "1", "text": "bank"}
    if not (child := os.fork()):
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    try:
        with place.claim():
            pass
    except IndexLocked as error:
        told.append(error)
    yield {"id": "2", "text": "river"}
assert index.update(documents()) == 2
assert told
with place.claim():
    pass
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_process_forked_within_a_change_releases_its_own_locks_only(tmp_path: Path) -> None:
    assert _run(FORKED_WITHIN, tmp_path).stderr == ""


HELD_BY_A_CHILD = """
import os, sys, time
from pathlib import Path
from coil.storage.lock import file_lock
path = Path(sys.argv[1]) / "a.lock"
with file_lock(path, "it is used") as lock, lock.held():
    child = os.fork()
    if not child:
        time.sleep(60)
with file_lock(path, "it is used"):
    os.kill(child, 9)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_lock_is_released_while_a_process_forked_meanwhile_lives(tmp_path: Path) -> None:
    assert _run(HELD_BY_A_CHILD, tmp_path).stderr == ""
