"""Damaged and hostile files: a named error or a right answer, never a traceback, a signal or much memory."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coil.indexes.opening import create
from tests.hash_encoder import HashEncoder
from tests.tiny import random_texts

COUNT = int(os.environ.get("COIL_MUTATIONS", "60"))  # files in all; `make soak` asks for more
MEMORY = 4 << 30  # of addresses: a size that a file merely claims must not be allocated


@pytest.mark.parametrize("precision", ["int8", "fp32", "int8+fp16"])
def test_no_damage_does_harm(tmp_path: Path, precision: Any, soaked: Callable[..., None]) -> None:
    template = tmp_path / "template.coil"
    documents = [
        {"id": f"d{i}", "text": text, "year": i}
        for i, text in enumerate(random_texts(120, longest=30, seed=4))
    ]
    with create(template, encoder=HashEncoder(), precision=precision) as index:
        index.add(documents)
        index.add([{"id": "long", "text": "river bank " * 200, "year": 1}])
        index.delete(["d1", "d2"])
    code = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))\n"
    code += "import sys; from tests.mutations import main; main(*sys.argv[1:])\n"
    code += "from coil.storage.memory import peak_bytes; print(peak_bytes(), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, str(template), str(tmp_path), str(len(precision)), str(-(-COUNT // 3))],
        capture_output=True, text=True, timeout=60 + COUNT, check=False,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout.splitlines()[-1:]} {done.returncode} {done.stderr[-3000:]}"
    found = Counter(line.split(": ")[1] for line in done.stdout.splitlines())
    assert sum(found.values()) == -(-COUNT // 3)
    assert found["DamagedSegment"] > found.total() / 10
    assert int(done.stderr.splitlines()[-1]) < 2 << 30
    soaked("mutated files", files=found.total(), whole=found["whole"], refused=found.total() - found["whole"])
