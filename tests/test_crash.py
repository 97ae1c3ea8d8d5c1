"""kill -9 at random moments: whatever was acknowledged is there exactly once, and the index is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coil.indexes.building import open_build
from coil.indexes.opening import create, open_index
from coil.texts.corpora import read_documents
from tests.hash_encoder import HashEncoder, answers

ROUNDS = int(os.environ.get("COIL_CRASH_ROUNDS", "12"))  # of each kind; `make soak` asks for more

# Each writer prints what is committed, one line a commit, until it is killed.
WRITERS = {
    "builder": """
start = len(index)
acked = start
def committed(n):
    global acked
    acked += n
    print("added", acked, flush=True)
index.add(({"id": i, "text": f"river bank {i} " * (1 + i % 5)} for i in range(start, 10**6)),
          committed=committed, commit_every=7)
""",
    "adder": """
i = len(index)
while True:
    index.add([{"id": i, "text": f"river bank {i}"}])
    i += 1
    print("added", i, flush=True)
""",
    "compactor": """
n = len(index)
while True:
    index.update([{"id": n - 1 if n else 0, "text": "money loan"}])
    n = max(n, 1)
    print("added", n, flush=True)
    index.compact()
""",
}
PROLOGUE = """
import sys
from coil.indexes.opening import open_index
from tests.hash_encoder import HashEncoder
index = open_index(sys.argv[1], encoder=HashEncoder())
print("open", flush=True)
"""


# What `coil index --resume` does, with an encoder that loads faster than that of the command line.
BUILD = """
import sys
from coil.indexes.building import open_build
from coil.storage import writer
from coil.texts.corpora import read_documents
from tests.hash_encoder import HashEncoder
writer.WINDOW = 8
encoder = HashEncoder()
print("open", flush=True)
index, before = open_build(sys.argv[1], encoder=encoder, resume=True)
if not before.finished:
    index.build(read_documents(sys.argv[2]), "update", None, 20)
print("done", flush=True)
"""


def rest_of_output(process: subprocess.Popen[str]) -> str:
    """What comes after the first line; `communicate` would not see what was read ahead with that one."""
    assert process.stdout is not None
    with process:
        return process.stdout.read()


def test_a_build_killed_at_any_moment_is_resumed(tmp_path: Path, soaked: Callable[..., None]) -> None:
    rng = random.Random("build")
    corpus = tmp_path / "corpus.tsv"
    ids = [rng.randrange(500) for _ in range(600)]  # some come twice: the later one counts
    corpus.write_text("".join(f"{i}\triver bank {'money ' * (n % 7)}{n}\n" for n, i in enumerate(ids)))
    whole, _ = open_build(tmp_path / "whole.coil", encoder=HashEncoder(), on_duplicate="update")
    whole.build(read_documents(corpus), "update", None, 20)
    kills = 0
    for number in range(ROUNDS):
        folder = tmp_path / f"{number}.coil"
        for _ in range(100):
            process = subprocess.Popen(
                [sys.executable, "-c", BUILD, str(folder), str(corpus)], stdout=subprocess.PIPE, text=True
            )
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            try:
                process.wait(rng.uniform(0.0, 0.5))
            except subprocess.TimeoutExpired:
                process.kill()
                kills += 1
            told = rest_of_output(process)
            status = process.returncode
            if told == "done\n":
                break
            assert status == -signal.SIGKILL
        index = open_index(folder, encoder=HashEncoder())
        index.verify()
        assert len(index) == len(whole)
        assert answers(index) == answers(whole)
        index.close()
        if kills >= ROUNDS:
            break
    assert kills >= min(ROUNDS, 5)
    soaked("processes killed", kills=kills)


@pytest.mark.parametrize("kind", WRITERS)
def test_kill_at_any_moment(kind: str, tmp_path: Path, soaked: Callable[..., None]) -> None:
    rng = random.Random(kind)
    folder = tmp_path / "a.coil"
    create(folder, encoder=HashEncoder()).close()
    promised = 0
    for _ in range(ROUNDS):
        process = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + WRITERS[kind], str(folder)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        time.sleep(rng.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        for line in rest_of_output(process).split("\n")[:-1]:  # the last may have been cut off
            promised = max(promised, int(line.split()[1]))
        index = open_index(folder, encoder=HashEncoder())
        index.verify()
        # Ids are given in order, so the number of documents says that each is there exactly once.
        assert len(index) >= promised
        assert all(index.has(str(i)) for i in range(len(index)))
        hits = index.search("river bank money", k=10**6)
        assert sorted(int(hit.doc_id) for hit in hits) == list(range(len(index)))
        index.close()
    assert promised > 0
    soaked("processes killed", kills=ROUNDS)
