"""`coil doctor` reports what works and what to do about the rest; shells complete commands and options."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from coil.cli.main import VERBS, run
from coil.metrics import health
from coil.metrics.health import damaged_files, examine
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from coil.vectors.model_files import bundled_model
from tests.tiny import PROFILE, make_model

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "SECONDS", 0.01)
    monkeypatch.setattr(health, "DOCUMENTS", 2000)


def test_a_good_installation_passes(capsys: Output) -> None:
    assert run(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    named = [line[8:24].strip() for line in lines]
    assert named == [
        "coil", "machine", "native core", "model", "search", "encoding speed", "search speed", "extras",
    ]  # fmt: skip


def test_json_has_one_object_per_check(capsys: Output) -> None:
    assert run(["doctor", "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {of["name"] for of in found} >= {"native core", "model", "search"}
    assert all(of["ok"] and of["detail"] for of in found)


def test_a_missing_core_fails_with_a_remedy(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    monkeypatch.setitem(sys.modules, "coil._native", None)
    assert run(["doctor"]) == 1
    shown = capsys.readouterr().out
    assert "FAILED  native core     not installed: searches use NumPy" in shown
    assert "try: install a C++ compiler, then reinstall coil-ir" in shown
    assert "ok      search " in shown  # which still works


def test_a_damaged_model_fails_with_a_remedy(tmp_path: Path, capsys: Output) -> None:
    folder = Path(shutil.copytree(bundled_model(), tmp_path / "model"))
    weights = folder / "model.int8.onnx"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert run(["doctor", "--model", str(folder)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED  model" in shown
    assert "cannot be loaded" in shown
    assert "try: " in shown
    assert "encoding speed" not in shown


def test_a_model_that_finds_the_wrong_text_fails(tmp_path: Path) -> None:
    """Random weights load, but a search with them shows what they are worth."""
    model = make_model(tmp_path / "model", ModelConfig(1, 8, "cls", "none", PROFILE), seed=2)
    export_model(model, ["fp32"])
    findings = {of.name: of for of in examine(model)}
    assert findings["model"].ok
    assert not findings["search"].ok
    assert "damaged or not for English" in findings["search"].detail
    assert findings["search"].remedy


def test_checksums_of_an_installed_package_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the records that pip writes for a package."""
    model = tmp_path / "checked" / "models"
    model.mkdir(parents=True)
    lines = []
    for name in ("weights", "tokenizer"):
        (model / name).write_text(f"the {name}")
        digest = hashlib.sha256((model / name).read_bytes()).digest()
        encoded = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        lines.append(f"checked/models/{name},sha256={encoded},{(model / name).stat().st_size}")
    info = tmp_path / "coil_checked-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: coil-checked\nVersion: 1.0\n")
    (info / "RECORD").write_text("\n".join([*lines, "coil_checked-1.0.dist-info/RECORD,,"]) + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert damaged_files(model, "coil-checked") == []
    (model / "weights").write_text("the Weights")
    assert damaged_files(model, "coil-checked") == [model / "weights"]
    (model / "tokenizer").unlink()
    assert damaged_files(model, "coil-checked") == [model / "weights", model / "tokenizer"]
    assert damaged_files(tmp_path / "elsewhere", "coil-checked") is None
    assert damaged_files(model, "no-such-package") is None


# ---- completion


def complete(*words: str, shell: str = "bash") -> list[str]:
    """What a shell is offered for the last of these words."""
    environment = {
        **os.environ,
        "_COIL_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    command = [sys.executable, "-m", "coil.cli.main"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


def test_commands_options_and_values_are_completed() -> None:
    assert complete("coil", "ex") == sorted(verb for verb in VERBS if verb.startswith("ex"))
    assert "--by" in complete("coil", "search", "--b")
    assert complete("coil", "search", "--by", "h") == ["hybrid"]


def test_bash_accepts_the_line_of_the_docs(tmp_path: Path) -> None:
    docs = (Path(__file__).resolve().parent.parent / "docs" / "commands.md").read_text(encoding="utf-8")
    [line] = [line for line in docs.splitlines() if "bash_source" in line]
    program = tmp_path / "coil"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m coil.cli.main "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    asked = "COMP_WORDS=(coil ver) COMP_CWORD=1; _coil_completion coil; echo ${COMPREPLY[@]}"
    script = [line, "complete -p coil", asked]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "complete -o nosort -F _coil_completion coil" in done.stdout
    assert done.stdout.splitlines()[-1] == "verify"
