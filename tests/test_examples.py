"""The examples run, and so does every block of docs/integrations.md, with the real packages."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from coil.cli.main import VERBS, run
from coil.indexes.opening import create
from coil.tokens.profile import PAPER
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from coil.vectors.torch_encoder import TorchEncoder
from tests.authors_files import make_checkpoint, write_encoded
from tests.tiny import PROFILE, make_model

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
INTEGRATIONS = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", INTEGRATIONS, re.S | re.M)
PRINTED = {
    "langchain_prompt.py": ("langchain_core", "[birds.md] The bank of the river was steep"),
    "llama_index_nodes.py": ("llama_index.core", "sources: ['river', 'money']"),
    "haystack_pipeline.py": ("haystack", "[otter] Otters live in holes"),
    "pyterrier_experiment.py": ("pyterrier", "BM25 >> COIL         1.0          1.0"),
    "mteb_task.py": ("mteb", "coil-ir/default: nDCG@10 1.000"),
    "mcp_client.py": ("mcp.server.mcpserver", "found: river: The bank of the river was steep"),
    "authors_checkpoint.py": ("torch", "COIL-full: token vectors 4 wide, sentence vector 6 wide"),
    "anserini_vectors.py": ("onnxruntime", "2 texts"),
}  # of each example: what it needs, and a part of what it prints


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("examples") / "checkpoint")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with token vectors of width 1."""
    folder = make_model(
        tmp_path_factory.mktemp("weights") / "model", ModelConfig(1, 0, "cls", "none", PROFILE)
    )
    export_model(folder, ["fp32"])
    return folder


def test_every_example_is_listed_and_run() -> None:
    named = set(re.findall(r"^\| `(\w+\.py)", (EXAMPLES / "README.md").read_text(encoding="utf-8"), re.M))
    assert {path.name for path in EXAMPLES.glob("*.py")} == named == set(PRINTED)


@pytest.mark.parametrize("name", PRINTED)
def test_examples_run(
    name: str,
    checkpoint: Path,
    weights: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    package, printed = PRINTED[name]
    pytest.importorskip(package)
    given = {"authors_checkpoint.py": [str(checkpoint)], "anserini_vectors.py": [str(weights)]}
    monkeypatch.setattr(sys, "argv", [name, *given.get(name, [])])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    shown = capfd.readouterr().out
    assert printed in shown
    if name == "anserini_vectors.py":  # the products of the file are the scores of a search
        from_file = dict(re.findall(r"^(\d) .* score (\S+)$", shown, re.M))
        for doc_id, score in re.findall(r"^coil search says (\d) (\S+)$", shown, re.M):
            assert float(from_file[doc_id]) == pytest.approx(float(score), abs=0.06)


# ---- docs/integrations.md


def needed(code: str) -> list[str]:
    """The packages of a block."""
    adapters = {
        "llama_index": "llama_index.core",
        "langchain": "langchain_core",
        "mcp": "mcp.server.mcpserver",
    }
    return [adapters.get(name, name) for name in re.findall(r"from coil\.adapters\.(\w+) import", code)]


@pytest.mark.parametrize("number", [n for n, (kind, _) in enumerate(BLOCKS) if kind == "python"])
def test_python_blocks_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = BLOCKS[number][1]
    for package in needed(code):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    makes_it = "coil.create(" in code
    if not makes_it:
        first = next(block for kind, block in BLOCKS if kind == "python")
        exec(compile(first, "docs/integrations.md", "exec"), {})
    exec(compile(code, "docs/integrations.md", "exec"), {})


def test_command_blocks_run(
    checkpoint: Path,
    weights: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a small checkpoint, what it encodes, and an index of weights under the names of the page."""
    from coil.adapters.authors_checkpoint import import_checkpoint

    monkeypatch.chdir(tmp_path)
    shutil.copytree(checkpoint, "hn-checkpoint")
    Path("bert-base-uncased").mkdir()
    Path("hn-checkpoint/tokenizer.json").rename("bert-base-uncased/tokenizer.json")
    import_checkpoint("hn-checkpoint", Path("same"), Path("bert-base-uncased"))
    encoder = TorchEncoder("same")
    assert encoder.config.profile.list_key == PAPER.list_key
    texts = {3: "the bank of the river", 8: "money and loan"}
    encoded = dict(zip(texts, encoder.encode_documents(texts.values()), strict=True))
    write_encoded(Path("encoded/split00"), encoded, encoder)
    Path("collection.tsv").write_text("".join(f"{number}\t{text}\n" for number, text in texts.items()))
    Path("queries.tsv").write_text("q1\tbank of a river\n")
    with create("weights.coil", model=weights) as index:
        index.add([{"id": "a", "text": "the bank of the river"}])
    lines = [line for kind, block in BLOCKS if kind == "sh" for line in block.splitlines()]
    assert len(lines) == 4
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "coil"
        assert run(arguments) == 0, line
    assert "the bank of the river" in capsys.readouterr().out
    assert json.loads(Path("vectors.jsonl").read_text())["id"] == "a"


def test_the_configuration_of_an_assistant_names_a_command() -> None:
    [block] = [block for kind, block in BLOCKS if kind == "json"]
    [server] = json.loads(block)["mcpServers"].values()
    assert server["command"] == "coil"
    assert server["args"][0] in VERBS
