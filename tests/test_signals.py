"""Signals to the command line: SIGTERM keeps what Ctrl-C keeps, and a fatal one leaves a message."""

from __future__ import annotations

import contextlib
import fcntl
import json
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from coil.cli.main import run
from coil.forks import make_lock

COMMAND = [sys.executable, "-m", "coil.cli.main"]
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="waits by /proc")


def _threads(process: subprocess.Popen[bytes]) -> list[tuple[str, int]]:
    """State and processor time of each thread."""
    found = []
    for path in Path(f"/proc/{process.pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            fields = path.read_text().rpartition(")")[2].split()
            found.append((fields[0], int(fields[11]) + int(fields[12])))
    return found


def _wait_until_idle(process: subprocess.Popen[bytes], out: Path) -> None:
    """All that it was given is encoded, and it waits for more: every thread sleeps, for a second. On a busy
    machine a thread may stand still because it gets no processor, but then it does not sleep."""
    assert process.stdin is not None
    unread = bytearray(4)
    deadline, before, since = time.monotonic() + 120, _threads(process), time.monotonic()
    while time.monotonic() - since < 1.0:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
        now = _threads(process)
        fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, unread)
        idle = out.exists() and not any(unread) and now == before and {state for state, _ in now} == {"S"}
        if not idle:
            before, since = now, time.monotonic()


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, b"terminated (SIGTERM)"), (signal.SIGINT, 130, b"interrupted")],
)
def test_a_stopped_build_is_kept_and_resumed(
    tmp_path: Path, number: int, status: int, word: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(json.dumps({"id": str(i), "text": f"river {i}"}) + "\n" for i in range(700))
    corpus, out = tmp_path / "c.jsonl", tmp_path / "a.coil"
    corpus.write_text(lines)
    process = subprocess.Popen(
        [*COMMAND, "index", "-", "--out", str(out)], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(lines.encode())
    process.stdin.flush()  # and not closed: it waits for more
    _wait_until_idle(process, out)
    process.send_signal(number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == status
    [message] = told.splitlines()[-1:]
    assert message.startswith(b"coil: " + word + b"; ")
    assert told.count(b"coil: ") == 1
    kept = int(told.partition(b" documents kept")[0].split()[-1])
    assert 0 < kept < 700
    assert b"--resume" in told
    assert b"Traceback" not in told
    assert run(["verify", str(out)]) == 0
    assert run(["index", str(corpus), "--out", str(out), "--resume"]) == 0
    assert f"{700 - kept} documents added" in capsys.readouterr().err


def test_a_fatal_signal_leaves_a_message() -> None:
    code = (
        "import contextlib, os, signal; from coil.cli.main import main\n"
        "with contextlib.suppress(SystemExit): main(['--version'])\n"
        "os.kill(os.getpid(), signal.SIGBUS)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == -signal.SIGBUS
    assert b"Fatal Python error: Bus error" in done.stderr


INTERRUPTED_IMPORT = """
import os, signal, sys
from coil.cli.main import main
number = int(sys.argv.pop(1))
def interrupt(event, arguments):  # the runtime makes its types: Python is within its compiled code
    if event == "object.__setattr__" and arguments[0].__name__ == "pybind11_type":
        os.kill(os.getpid(), number)
sys.addaudithook(interrupt)
main()
"""


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, "coil: terminated (SIGTERM)"), (signal.SIGINT, 130, "coil: interrupted")],
)
def test_a_signal_while_the_runtime_is_imported_is_no_error(
    tmp_path: Path, number: int, status: int, word: str
) -> None:
    (tmp_path / "a.txt").write_text("river")
    command = [sys.executable, "-c", INTERRUPTED_IMPORT, str(int(number))]
    command += ["index", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a.coil")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr.strip()) == (status, word)


LOST = """
import os, sys
from coil.cli import watching
from coil.cli.main import main
number = int(sys.argv.pop(1))
class Dying:
    def __del__(self):  # Python discards exceptions that are raised here
        os.kill(os.getpid(), number)
real = watching._Listening.wait
def wait(self):
    Dying()
    real(self)
watching._Listening.wait = wait
main()
"""


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [(signal.SIGTERM, 143, "coil: terminated (SIGTERM)"), (signal.SIGINT, 130, "coil: interrupted")],
)
def test_a_signal_in_a_destructor_is_not_lost(tmp_path: Path, number: int, status: int, word: str) -> None:
    (tmp_path / "a.txt").write_text("river")
    command = [sys.executable, "-c", LOST, str(int(number))]
    command += ["index", str(tmp_path / "a.txt"), "--out", str(tmp_path / "a.coil"), "--watch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status
    assert word in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_freed_lock_runs_no_code() -> None:
    """Python would discard what a signal handler raises there."""
    called: list[str] = []
    lock = make_lock()
    sys.setprofile(lambda frame, event, _: called.append(frame.f_code.co_name) if event == "call" else None)
    try:
        del lock
    finally:
        sys.setprofile(None)
    assert called == []
