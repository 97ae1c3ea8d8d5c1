"""What every result file carries: the commit, the machine and the versions that a figure belongs to."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PACKAGES = ("coil-ir", "numpy", "onnxruntime", "tokenizers", "safetensors")


def stamp(*packages: str) -> dict[str, Any]:
    """Commit, date, machine and versions, of the named packages too."""
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
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": _memory_gib(),
        "instruction_sets": sets,
        "system": f"{platform.system()} {platform.machine()}",
        "load_before": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The installed version of each package, None where it is not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def write_result(name: str, result: dict[str, Any], path: Path | None = None) -> Path:
    """Write bench/results/NAME.json (or another path), whole or not at all."""
    path = path or RESULTS / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    unfinished.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip("\n")


def _cpu_model() -> str:
    """The name and, because virtual machines hide it, family and model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields = dict(
        reversed([tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line])
    )
    name = fields.get("model name", platform.processor())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
