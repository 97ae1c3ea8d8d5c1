"""What the base installation weighs: dependencies, megabytes, time to import; and one version everywhere."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import coil

ROOT = Path(__file__).resolve().parent.parent


def needed(name: str) -> list[str]:
    """The packages that a package requires without any extra, on this system."""
    from packaging.requirements import Requirement

    found = [Requirement(line) for line in distribution(name).requires or []]
    return [of.name for of in found if of.marker is None or of.marker.evaluate({"extra": ""})]


def megabytes(name: str) -> float:
    """The files that a package installs; byte code is written by Python later, and is not among them."""
    files = distribution(name).files or []
    return (
        sum(Path(str(f.locate())).stat().st_size for f in files if f.suffix != ".pyc" and f.locate().exists())
        / 1e6
    )


def own_megabytes() -> float:
    """What the wheel contains: the package without PyTorch weights and byte code."""
    left_out = ("model.safetensors", "model.onnx")
    files = [f for f in (ROOT / "coil").rglob("*") if f.is_file() and f.suffix not in (".pyc", ".so")]
    own = sum(f.stat().st_size for f in files if f.name not in left_out)
    native = Path(sys.modules["coil._native"].__file__ or "").stat().st_size
    return (own + native) / 1e6


def base_packages() -> set[str]:
    """All packages of the base installation."""
    waiting, found = needed("coil-ir"), set[str]()
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name not in found:
            found.add(name)
            try:
                waiting += needed(name)
            except PackageNotFoundError as error:
                raise AssertionError(f"{name} is required but not installed") from error
    return found


def test_the_base_installation_is_light() -> None:
    import coil._native

    assert coil._native
    assert len(needed("coil-ir")) <= 12
    packages = base_packages()
    assert not packages & {"torch", "transformers", "fastapi", "pyarrow"}
    sizes = {name: megabytes(name) for name in packages}
    assert sizes["onnxruntime"] > 30, "the files of packages are found"
    total = sum(sizes.values()) + own_megabytes()
    assert 100 < total < 200, sizes


def test_importing_is_quick() -> None:
    """The best of five, since other programs run as well."""
    code = "import time; t = time.perf_counter(); import coil; print(time.perf_counter() - t)"
    times = [float(subprocess.check_output([sys.executable, "-c", code], text=True)) for _ in range(5)]
    assert min(times) < 0.3


def test_one_version_everywhere() -> None:
    assert distribution("coil-ir").version == coil.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {coil.__version__}\n" in citation
    assert "\n## " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_workflow_runs_what_is_run_here() -> None:
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    assert re.findall(r"- run: (.*)", workflow) == ["bash .ci/run"]
    assert "\nmake test\n" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
