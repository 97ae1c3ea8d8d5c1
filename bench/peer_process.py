"""The peers' side of `bench.peers`: their virtual environment, and one process for each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.stamp import ROOT
from coil.errors import CoilError

WORKER = ROOT / "bench" / "peer_worker.py"
PACKAGES = {
    "bm25s": ("bm25s==0.3.16", "numba==0.68.1", "PyStemmer==3.1.0", "snowballstemmer==3.1.1"),
    "faiss": ("faiss-cpu==1.15.1",),
    # It pins torch to the last digit: its compiled part crashes with any other, a CPU build of 2.13 included.
    "plaid": ("fast-plaid==1.7.0.2110",),
}
# What the libraries under the peers read to know how many threads to start.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
_CHECK = """
import importlib.metadata, sys
for wanted in sys.argv[1:]:
    name, version = wanted.split("==")
    if importlib.metadata.version(name) != version: sys.exit(1)
"""


class PeerFailed(CoilError):
    """A peer could not be installed, or stopped working."""


def prepare_environment(folder: Path, system: str) -> Path:
    """The Python of the environment, with the packages of one system in it; it is made where it is not."""
    if ROOT in folder.resolve().parents:
        raise CoilError(f"{folder} is inside the project", "name a folder outside it for --venv")
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", str(folder)], f"{folder} cannot be made a virtual environment")
    wanted = PACKAGES[system]
    if subprocess.run([python, "-I", "-c", _CHECK, *wanted], capture_output=True, check=False).returncode:
        print(f"installing {', '.join(wanted)} into {folder}", file=sys.stderr, flush=True)
        _run([str(python), "-m", "pip", "install", "-q", *wanted], f"{wanted[0]} cannot be installed")
    return python


def _run(command: list[str], reason: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerFailed(f"{reason}: {_last_lines(done.stderr)}", "install it by hand to see why")


def _last_lines(text: str) -> str:
    return " / ".join(line for line in text.splitlines()[-5:] if line.strip())


class Peer:
    """One system in a process of its own, with so many threads."""

    def __init__(self, python: Path, system: str, work: Path, threads: int) -> None:
        self._name = f"{system} with {threads} threads"
        self._log_path = work / f"{system}-{threads}.log"
        self._log = self._log_path.open("w+")
        self._process = subprocess.Popen(
            [str(python), "-I", str(WORKER), system, str(work), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, str(threads)),
        )
        self.facts = self._read()
        self.cores: list[float] = []  # that each request kept busy: says whether one thread was one

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # it ends when there is nothing more to read
        self._process.wait(60)
        self._log.close()

    def ask(self, queries: list[int], k: int, setting: dict[str, Any]) -> dict[str, Any]:
        """Milliseconds and hits of some queries."""
        assert self._process.stdin is not None
        request = {"queries": queries, "k": k, "setting": setting}
        with suppress(BrokenPipeError):  # it has ended; reading tells why
            print(json.dumps(request), file=self._process.stdin, flush=True)
        answer = self._read()
        self.cores.append(answer["cores"])
        return answer

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()
            told = _last_lines(self._log_path.read_text(errors="replace"))
            raise PeerFailed(f"{self._name} ended with the status {status}: {told}")
        answer: dict[str, Any] = json.loads(line)
        return answer
