"""Descriptions of this machine and of package versions, for measurements."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from coil.vectors.parallel import usable_cores

PACKAGES = ("coil-ir", "numpy", "onnxruntime", "bm25s", "ir-measures", "torch", "transformers")


def describe_machine() -> dict[str, Any]:
    """The processor, cores, memory, and the GPU if PyTorch is loaded."""
    return {
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gib": _memory_gib(),
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": _gpu(),
    }


def versions(*packages: str) -> dict[str, str | None]:
    """The installed version of each package, None if it is not installed."""
    found: dict[str, str | None] = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # None if it was not imported, so that no GPU is in use
    if torch is None or not torch.cuda.is_available():
        return None
    return str(torch.cuda.get_device_name())


def _cpu_model() -> str:
    """The name of the processor and, because virtual machines may hide it, its family and model."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    fields: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())  # of the first core
    name = fields.get("model name", platform.processor())
    return f"{name} (family {fields.get('cpu family', '?')}, model {fields.get('model', '?')})"


def _memory_gib() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, ValueError, OSError):
        return None
