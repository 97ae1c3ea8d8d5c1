"""What every result file records: the commit, the machine and the versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from coil.metrics.machine import describe_machine, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("coil-ir", "numpy", "onnxruntime", "tokenizers", "safetensors")


def stamp(*packages: str) -> dict[str, Any]:
    """Commit, date, machine and versions, including those of the named packages."""
    return {
        "commit": commit(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **versions(*PACKAGES, *packages)},
    }


def commit() -> dict[str, Any]:
    """The commit that is checked out, and whether tracked files differ from it."""
    try:
        head = _git("rev-parse", "HEAD")
        changed = [line[3:] for line in _git("status", "--porcelain", "-uno").splitlines()]
    except (OSError, subprocess.CalledProcessError):
        return {"id": None, "changed_files": []}
    # Result files change while the benches run one after another; they do not change what is measured.
    return {"id": head, "changed_files": [name for name in changed if not name.startswith("bench/results/")]}


def machine() -> dict[str, Any]:
    """The processor, its cores and memory, and the instruction sets that the native scorer found."""
    try:
        from coil import _native

        sets = list(_native.instruction_sets())
    except ImportError:
        sets = []
    return {
        **describe_machine(),
        "instruction_sets": sets,
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def write_result(name: str, result: dict[str, Any], path: Path | None = None) -> Path:
    """Write bench/results/NAME.json (or another path) atomically."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip("\n")
