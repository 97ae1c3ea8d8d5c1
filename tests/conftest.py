"""Settings and fixtures for all tests."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.ray_cluster import TestCluster

# The models of the tests are tiny: more threads than one only get in each other's way.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# For the frameworks that the adapters are tested with: no telemetry, no downloads.
os.environ.setdefault("HAYSTACK_TELEMETRY_ENABLED", "False")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Ray would replace 127.0.0.1 by the address of this machine, where the nodes of the tests do not listen.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["COLUMNS"] = "120"  # what a terminal of the usual width would show

if built := os.environ.get("COIL_TEST_NATIVE"):  # another build of the extension, see `make sanitize`
    import importlib.util

    [found] = Path(built).glob("_native*.so")
    spec = importlib.util.spec_from_file_location("coil._native", found)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["coil._native"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["coil._native"])

from coil.cli.main import run
from tests.tiny import PROFILE, WORDS, make_base, make_model

# The same examples in every run, so that a red run is due to the change at hand. `make soak` and
# `pytest --hypothesis-profile=random` look for new ones.
settings.register_profile("random")
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")

# Tests with real processes, connections and clocks, which a stalled machine can fail. `make test` runs a
# failed one once more and names it ("RERUN"); `make soak` does not.
REAL_TIME = (
    "test_adapters_mcp", "test_building", "test_cluster", "test_crash", "test_deadline", "test_demo",
    "test_page", "test_processes", "test_service", "test_signals", "test_state", "test_swaps",
    "test_threads", "test_traffic",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "COIL_SOAK_REPORT" not in os.environ:
        for item in items:
            if item.path.name.startswith(REAL_TIME):
                item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def full(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported COIL-full folder that most tests use; they must not change it."""
    from coil.vectors.config import ModelConfig
    from coil.vectors.export import export_model

    folder = make_model(tmp_path_factory.mktemp("full") / "model", ModelConfig(8, 8, "mean", "unit", PROFILE))
    export_model(folder)
    return folder


@pytest.fixture(scope="session")
def sharp(full: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The full model with large weights. Fresh weights are so small that a text's embeddings pass almost
    unchanged, and even three-valued weights would look good; here the layers decide, as after training."""
    import torch

    from coil.vectors.export import export_model
    from coil.vectors.torch_model import CoilModel

    folder = tmp_path_factory.mktemp("sharp") / "model"
    model = CoilModel.from_pretrained(full)
    with torch.no_grad():
        for name, weight in model.backbone.named_parameters():
            if name.endswith("weight") and "LayerNorm" not in name and "embeddings" not in name:
                weight.mul_(10)
    model.save_pretrained(folder)
    shutil.copy(full / "tokenizer.json", folder)
    export_model(folder)
    return folder


@pytest.fixture
def copy(full: Path, tmp_path: Path) -> Path:
    """A folder that a test may damage."""
    return Path(shutil.copytree(full, tmp_path / "model"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="session")
def base_with_dropout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base"), dropout=0.2)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, rng, files = tmp_path_factory.mktemp("pairs"), random.Random(5), []
    for name in ("first", "second"):
        path = folder / f"{name}.jsonl"
        with path.open("w") as file:
            for _ in range(24):
                words = [rng.choice(WORDS) for _ in range(25)]
                file.write(json.dumps({"query": " ".join(words[3:8]), "positive": " ".join(words)}) + "\n")
        files.append(path)
    return files


@pytest.fixture(scope="session")
def negatives(pairs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("mined") / "negatives.jsonl"
    assert run(["mine", "--out", str(out), *(a for p in pairs for a in ("--pairs", str(p)))]) == 0
    return out


@pytest.fixture(scope="session")
def cluster() -> Iterator[TestCluster]:
    """A Ray cluster of two nodes; tests that use it are of the group `ray`, so that one process has it."""
    pytest.importorskip("ray")
    from tests.ray_cluster import TestCluster

    found = TestCluster()
    yield found
    found.stop()


@pytest.fixture
def soaked() -> Callable[..., None]:
    """Tell what a test did, for the table of `make soak`; without one, nobody listens."""

    def tell(what: str, **counts: int) -> None:
        if report := os.environ.get("COIL_SOAK_REPORT"):
            with open(report, "a", encoding="utf-8") as file:
                file.write(json.dumps({"what": what, **counts}) + "\n")

    return tell
