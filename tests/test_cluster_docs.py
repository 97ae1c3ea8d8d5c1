"""The commands of docs/scale.md, followed on a cluster of two nodes."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

pytest.importorskip("ray")

from coil.cli.main import run
from coil.cluster.deploying import deployed
from tests.comparison_data import TEXTS
from tests.test_docs_code import answers, blocks, free_port

if TYPE_CHECKING:
    from tests.ray_cluster import TestCluster

pytestmark = pytest.mark.xdist_group("ray")


def test_the_page_about_scale(
    cluster: TestCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    corpus = "".join(f"{doc_id}\t{text}\n" for doc_id, text in TEXTS.items())
    (tmp_path / "passages.tsv").write_text(corpus, encoding="utf-8")
    port = free_port()
    [(kind, code)] = blocks("docs/scale.md")
    assert kind == "sh"
    for before, after in (
        ("10.0.0.1:6379", cluster.address), ("/share/", f"{tmp_path}/"), (".tsv.gz", ".tsv"),
        ("--shards 8", "--shards 2"), (":8080", f":{port}"),
    ):  # fmt: skip
        assert before in code
        code = code.replace(before, after)
    with ExitStack() as stack:
        for line in code.splitlines():
            name, *arguments = shlex.split(line, comments=True)
            if name in ("pip", "ray"):  # the nodes are there
                continue
            if name == "coil" and arguments[0] == "serve":
                process = stack.enter_context(
                    subprocess.Popen([sys.executable, "-m", "coil", *arguments, "--port", str(port)])
                )
                stack.callback(process.kill)
                until = time.monotonic() + 120
                while not answers(f"http://127.0.0.1:{port}/ready"):
                    assert process.poll() is None
                    assert time.monotonic() < until
                    time.sleep(0.2)
            elif name == "coil":
                assert run(arguments) == (1 if "--resume" in arguments else 0)
            elif name == "curl":
                found = httpx.get(arguments[0]).json()
                assert len(found["versions"]) == 2
                assert found["hits"]
            else:
                assert name == "python"
                shown = subprocess.run(
                    [sys.executable, *arguments],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                assert "Hit(rank=1" in shown.stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert "is finished" in capfd.readouterr().err
    until = time.monotonic() + 30
    while deployed("passages"):  # it has stopped what it deployed
        assert time.monotonic() < until
        time.sleep(0.2)
