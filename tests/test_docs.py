"""The docs cannot lie: code runs and prints what is shown, made parts are fresh, named paths exist."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

import coil
from coil.cli.main import VERBS
from tools.api import SECTIONS
from tools.make_docs import FILES, renewed

ROOT = Path(__file__).resolve().parent.parent
NUMBER = re.compile(r"-?\d+\.?\d*")


def test_the_readme_quickstart_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words exactly, numbers to 5 %: int8 kernels round differently from processor to processor."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code, shown = re.search(r"```python\n(.*?)```\n+```text\n(.*?)```", readme, re.S).groups()  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    bars = re.compile("[█▏▎▍▌▋▊▉]+ *")
    for expected, got in zip(shown.splitlines(), printed.getvalue().splitlines(), strict=True):
        assert NUMBER.sub("#", bars.sub("", expected)) == NUMBER.sub("#", bars.sub("", got))
        for a, b in zip(NUMBER.findall(expected), NUMBER.findall(got), strict=True):
            assert float(b) == pytest.approx(float(a), rel=0.05, abs=0.5)


@pytest.mark.parametrize("name", FILES)
def test_made_parts_are_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert renewed(text) == text, "run `make docs`"


def test_every_verb_is_documented() -> None:
    text = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert all(f"## coil {verb}\n" in text for verb in VERBS)


@pytest.mark.parametrize("name", ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "experiments/README.md"])
def test_named_paths_exist(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    named = re.findall(r"`((?:coil|native|tests|bench|docs|examples|experiments|tools)/[\w./-]*)`", text)
    named += [link for link in re.findall(r"\]\(([\w./-]+)\)", text) if not link.startswith("http")]
    assert named
    base = (ROOT / name).parent
    missing = [path for path in named if not (ROOT / path).exists() and not (base / path).exists()]
    assert not missing


def test_architecture_names_every_module() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    modules = [path.relative_to(ROOT).as_posix() for path in (ROOT / "coil").rglob("*.py")]
    small = {
        "coil/__init__.py",
        "coil/__main__.py",
        "coil/explanations/snippet.py",
        "coil/demo/members.py",
        "coil/demo/demo.py",
    }
    left = [m for m in modules if m not in text and not m.endswith("__init__.py") and "/cli/" not in m]
    assert set(left) <= small


def test_the_public_surface_is_what_it_says() -> None:
    assert sorted(coil.__all__) == sorted(set(coil.__all__))
    for name in coil.__all__:
        assert getattr(coil, name) is not None
    assert set(dir(coil)) == {*coil.__all__, "__version__"}
    mentioned = set(re.findall(r"`coil\.(\w+)", (ROOT / "docs" / "data.md").read_text(encoding="utf-8")))
    assert {"read_documents"} <= mentioned <= set(coil.__all__)
    with pytest.raises(AttributeError, match="no attribute"):
        _ = coil.nothing_of_that_name


def test_the_reference_has_every_public_name() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(coil.__all__)
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in coil.__all__:
        assert re.search(rf"^- `coil\.{name}\b", text, re.M), name
    assert "  - `search(query, k=10, filter=None, " in text


def test_import_loads_nothing_heavy() -> None:
    heavy = ("numpy", "torch", "onnxruntime", "transformers")
    code = f"import sys, coil; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
