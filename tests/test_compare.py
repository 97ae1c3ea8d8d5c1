"""`coil compare` from end to end: what it writes, what it refuses, and how it continues when interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coil.cli.main import run as coil
from coil.metrics.evaluation import evaluate
from coil.texts.judgements import read_judgements
from coil.texts.runs import read_run
from experiments.record import record
from tests.comparison_data import QRELS, TEXTS, write_beir
from tools.comparison_tables import table_of, table_of_one

pytest.importorskip("bm25s")
pytest.importorskip("matplotlib")

SYSTEMS = ["bm25s:name=BM25", "coil", "coil:by=dense:name=dense", "hybrid", "coil:candidates=BM25:depth=3"]


def arguments(folder: Path, out: Path, systems: list[str] = SYSTEMS, *others: str) -> list[str]:
    return [
        "compare",
        str(folder),
        *(part for s in systems for part in ("--system", s)),
        "--out",
        str(out),
        *others,
    ]


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    write_beir(folder / "tiny")
    assert coil(arguments(folder / "tiny", folder / "out")) == 0
    return folder


def test_what_is_written(compared):
    out = compared / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "per_query.jsonl", "plots", "report.html", "results.json", "runs", "table.md", "work",
    ]  # fmt: skip
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        "bm25-coil.trec", "bm25.trec", "coil.trec", "dense.trec", "hybrid.trec",
    ]  # fmt: skip
    for name in ("latency", "size", "queries"):
        assert (out / "plots" / f"{name}.svg").read_text().startswith("<?xml")
        assert (out / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((out / "results.json").read_text())
    assert [system["label"] for system in results["systems"]] == [
        "BM25",
        "COIL",
        "dense",
        "hybrid",
        "BM25 + COIL",
    ]
    assert results["against"] == "BM25"
    for system in results["systems"]:
        assert set(system["measures"]) == {"nDCG@10", "RR@10", "R@100", "R@1000"}
        assert system["latency_ms"]["p95"] >= system["latency_ms"]["median"] > 0
        assert system["index_bytes"] > 0
        assert set(system["against"]) == (set() if system["label"] == "BM25" else set(system["measures"]))
    assert set(results["systems"][4]["parts_ms"]) == {"encode", "search", "rerank"}
    lines = (out / "per_query.jsonl").read_text().splitlines()
    assert [json.loads(line)["query"] for line in lines] == list(QRELS)


def test_runs_measure_as_the_table_says(compared):
    judgements = read_judgements(compared / "tiny")
    for system in json.loads((compared / "out" / "results.json").read_text())["systems"]:
        name = {"BM25 + COIL": "bm25-coil"}.get(system["label"], system["label"].lower())
        found = evaluate(judgements, read_run(compared / "out" / "runs" / f"{name}.trec"))
        assert found.means == pytest.approx(system["measures"])


def test_the_report_needs_nothing_else(compared):
    page = (compared / "out" / "report.html").read_text()
    assert not re.search(r"""(src|href|srcset)=["'](?!data:image/svg\+xml;base64,|#)""", page)
    assert "@import" not in page
    assert "url(" not in page
    for label in ("BM25", "COIL", "hybrid"):
        assert label in page
    assert "zebra" in page  # the query that dense search gains most on, and BM25 finds nothing for


def test_texts_in_the_report_are_escaped(tmp_path):
    folder = write_beir(tmp_path / "tiny")
    queries = (folder / "queries.jsonl").read_text().replace("river bank", "<script>alert(1)</script> river")
    (folder / "queries.jsonl").write_text(queries)
    systems = ["bm25s", "bm25s:name=<b>bold</b>:k1=0.0:b=0.0"]
    assert coil(arguments(folder, tmp_path / "out", systems)) == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<script>alert" not in page
    assert "<b>bold" not in page
    assert "&lt;b&gt;bold" in page


def test_the_table_goes_to_standard_output(compared, capsys):
    assert coil(arguments(compared / "tiny", compared / "out", SYSTEMS, "--against", "hybrid")) == 0
    out, err = capsys.readouterr()
    assert out.startswith("# tiny\n")
    assert "| BM25 + COIL | reranks 3 of BM25 |" in out
    assert "## nDCG@10 against hybrid" in out
    assert "searching" not in err  # all of it was kept
    assert "report.html" in err


def test_several_collections(tmp_path, capsys):
    write_beir(tmp_path / "a")
    write_beir(tmp_path / "b", {"q1": {"d1": 1}})
    systems = [part for name in ("bm25s", "bm25s:k1=2.0") for part in ("--system", name)]
    assert (
        coil(["compare", str(tmp_path / "a"), str(tmp_path / "b"), *systems, "--out", str(tmp_path / "o")])
        == 0
    )
    assert "| system | a | b | mean |" in capsys.readouterr().out
    assert {"a", "b", "report.html", "results.json", "table.md"} <= {
        p.name for p in (tmp_path / "o").iterdir()
    }
    assert 'href="a/report.html"' in (tmp_path / "o" / "report.html").read_text()
    assert (tmp_path / "o" / "b" / "report.html").is_file()
    found = json.loads((tmp_path / "o" / "results.json").read_text())
    assert list(found["collections"]) == ["a", "b"]
    (tmp_path / "two_systems.toml").write_text('title = "two"\n')
    kept = record(tmp_path / "o", tmp_path / "two_systems.toml", tmp_path / "results")
    assert kept.name == "compare-two-systems.json"
    recorded = json.loads(kept.read_text())
    assert {
        name: {key: value for key, value in of_one.items() if key != "commit"}
        for name, of_one in recorded["collections"].items()
    } == found["collections"]
    assert recorded["config"] == ['title = "two"']
    table = table_of(recorded["collections"], "RR@10").splitlines()
    assert table[0] == "| system | a | b | mean | index | training |"
    systems = [one["systems"] for one in found["collections"].values()]
    for row, *of_system in zip(table[2:4], *systems, strict=True):
        values = [one["measures"]["RR@10"] for one in of_system]
        cells = [cell.strip().rstrip("†") for cell in row.split("|")]
        assert cells[1] == of_system[0]["label"]
        assert [float(cell) for cell in cells[2:5]] == pytest.approx([*values, sum(values) / 2], abs=6e-4)


def test_results_inside_the_collection_do_not_change_it(tmp_path, capsys):
    folder = write_beir(tmp_path / "tiny")
    for expected in (True, False):
        assert coil(arguments(folder, folder / "compared", ["bm25s"])) == 0
        assert ("reading" in capsys.readouterr().err) is expected


def test_one_system_alone(tmp_path):
    folder = write_beir(tmp_path / "tiny")
    assert coil(arguments(folder, tmp_path / "out", ["bm25s"], "--measures", "RR@10")) == 0
    assert not (tmp_path / "out" / "plots" / "queries.svg").exists()
    assert "against" not in (tmp_path / "out" / "table.md").read_text()


def test_marco_files_with_windows_line_ends(tmp_path):
    lines = "".join(f"{doc_id}\t{text}\r\n" for doc_id, text in TEXTS.items())
    (tmp_path / "collection.tsv").write_bytes(lines.encode())
    (tmp_path / "queries.dev.small.tsv").write_bytes(b"q1\triver bank\r\nq4\tmountain pass\r\n")
    (tmp_path / "qrels.dev.small.tsv").write_bytes(b"q1\t0\td1\t1\r\nq4\t0\td5\t1\r\n")
    assert coil(arguments(tmp_path, tmp_path / "out", ["bm25s"], "--measures", "RR@10")) == 0
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["systems"][0]["measures"] == {"RR@10": 1.0}


def test_irds_in_the_layout_of_marco(tmp_path):
    """As on a machine that has MS MARCO: pairs come from its train part, queries from dev."""
    pytest.importorskip("ir_datasets")
    home = tmp_path / "home" / "msmarco-passage"
    files = {
        "irds_version.txt": "v2",
        "collection.tsv": "".join(f"{number}\t{text}\n" for number, text in enumerate(TEXTS.values())),
        "dev/small/queries.tsv": "7\triver bank\n",
        "dev/queries.tsv": "7\triver bank\n",
        "dev/small/qrels": "7 0 0 1\n",
        "train/queries.tsv": "1\tkitchen furniture\n2\tunjudged\n",
        "train/qrels": "1 0 2 1\n",
        "train/judged/queries.tsv": "1\tkitchen furniture\n",
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    config = '[training.t]\npairs = ["irds:msmarco-passage/train/judged"]\nbase = "default"\n'
    (tmp_path / "c.toml").write_text(config + '[[system]]\nsystem = "bm25s"\n')
    code = (
        "import sys; from pathlib import Path; from coil.cli.main import run\n"
        "from coil.comparison.config import read_config; from coil.comparison.training import Trainer\n"
        "from coil.comparison.work_folder import WorkFolder; from tests.test_comparison import Quiet\n"
        "config, out = Path(sys.argv[1]), sys.argv[2]\n"
        "arguments = ['compare', 'irds:msmarco-passage/dev/small', '--config', str(config), '--out', out]\n"
        "assert run([*arguments, '--measures', 'RR@10']) == 0\n"
        "trainer = Trainer(WorkFolder(Path(out) / 'work'), Quiet())\n"
        "[path] = trainer._data(read_config(config, {}).trainings['t']).pairs\n"
        "print('PAIRS', path.read_text())\n"
    )
    environment = {
        **os.environ, "IR_DATASETS_HOME": str(home.parent), "IR_DATASETS_TMP": str(tmp_path / "tmp"),
        "IR_DATASETS_DL_TRIES": "1", "https_proxy": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "c.toml"), str(tmp_path / "out")],
        check=False, env=environment, capture_output=True, text=True, timeout=300,
        cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "| BM25 (bm25s) | retrieval | 1.000 |" in done.stdout
    pairs = json.loads(done.stdout.partition("PAIRS ")[2])
    assert pairs == {"query": "kitchen furniture", "positive": TEXTS["d3"]}


def test_lists_and_dry_runs(tmp_path, capsys):
    assert coil(["compare", "--list"]) == 0
    shown = capsys.readouterr().out
    for name in ("bm25s", "coil-full", "hybrid", "k1=0.9", "fusion=zscore"):
        assert name in shown
    folder = write_beir(tmp_path / "tiny")
    (tmp_path / "c.toml").write_text(
        '[training.t]\npairs = ["p.jsonl"]\nbase = "default"\nrecipe = { steps = 300 }\n'
        '[[system]]\nsystem = "coil-tok"\ntraining = "t"\n'
        '[[system]]\nsystem = "coil-tok"\nname = "again"\ntraining = "t"\nby = "bm25"\n'
    )
    assert coil(["compare", str(folder), "--config", str(tmp_path / "c.toml"), "--dry-run"]) == 0
    shown = capsys.readouterr().out
    assert "collection  tiny" in shown
    assert shown.count("training    coil-tok train=coil n_t=32 n_c=0 form=paper: 300 steps of 8 queries") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("others", "status", "reason"),
    [
        (["--system", "bm26", "--out", "o"], 1, "there is no system 'bm26'"),
        (["--system", "bm25s"], 2, "Missing option '--out'"),
        (["--system", "bm25s", "--out", "o", "--set", "a=b"], 2, "--set requires --config"),
        (["--config", "c.toml", "--set", "a"], 2, "not NAME=VALUE"),
        (["--config", "none.toml", "--out", "o"], 1, "cannot be read"),
        (["--system", "bm25s", "--against", "x", "--out", "o"], 1, "label 'x'"),
        (["--system", "bm25s", "--measures", "foo", "--out", "o"], 1, "'foo' is not a supported measure"),
        (["--system", "bm25s", "--split", "dev", "--out", "o"], 1, "no qrels/dev.tsv"),
        (["--system", "coil=nowhere", "--out", "o"], 1, "neither a folder nor an installed package"),
    ],
)
def test_mistakes(tmp_path, monkeypatch, capsys, others, status, reason):
    folder = write_beir(tmp_path / "tiny")
    monkeypatch.chdir(tmp_path)
    assert coil(["compare", str(folder), *others]) == status
    err = capsys.readouterr().err
    assert reason in err
    assert "Traceback" not in err


def test_no_collection(capsys):
    assert coil(["compare", "--system", "bm25s", "--out", "o"]) == 2
    assert "Pass a COLLECTION" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written(tmp_path, capsys):
    folder = write_beir(tmp_path / "tiny")
    (tmp_path / "file").write_text("")
    assert coil(arguments(folder, tmp_path / "file" / "out", ["bm25s"])) == 1
    assert "cannot be created" in capsys.readouterr().err


# ---- interruptions

SLOW = """
import sys, time
from coil.systems import bm25s
from coil.cli.main import main
search = bm25s.Bm25s.search
def slowly(self, queries, k, folder):
    for answer in search(self, queries, k, folder):
        time.sleep(0.3)
        yield answer
bm25s.Bm25s.search = slowly
main(sys.argv[1:])
"""


def answered(out: Path) -> int:
    files = list((out / "work" / "runs").glob("*/content/answers.jsonl"))
    return sum(path.read_bytes().count(b"\n") for path in files)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interruption_keeps_what_is_done(tmp_path, number, status):
    folder, out = write_beir(tmp_path / "tiny"), tmp_path / "out"
    command = [sys.executable, "-c", SLOW, *arguments(folder, out, ["bm25s"])]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while answered(out) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == status
    if number == signal.SIGINT:
        assert err.count("coil: ") == 1
        assert "coil: interrupted; finished work is kept in " in err
        assert "to continue, run the same command" in err
    assert "Traceback" not in err
    before = answered(out)
    assert 2 <= before < len(QRELS)
    assert not (out / "report.html").exists()
    assert coil(arguments(folder, out, ["bm25s"])) == 0
    assert answered(out) == len(QRELS)
    assert (out / "report.html").exists()
    assert not list((out / "work").glob("*/*.unfinished"))


def test_figures_of_one_collection_are_recorded(tmp_path):
    write_beir(tmp_path / "a")
    systems = [part for name in ("bm25s", "bm25s:k1=2.0") for part in ("--system", name)]
    assert coil(["compare", str(tmp_path / "a"), *systems, "--out", str(tmp_path / "o")]) == 0
    (tmp_path / "one.toml").write_text('title = "one"\n')
    kept = record(tmp_path / "o", tmp_path / "one.toml", tmp_path / "results")
    found = json.loads(kept.read_text())["collections"]["a"]
    assert set(found.pop("commit")) == {"id", "changed_files"}
    assert found == json.loads((tmp_path / "o" / "results.json").read_text())
    table = table_of_one(found).splitlines()
    assert table[0] == "| system | nDCG@10 | RR@10 | R@100 | R@1000 | index | training |"
    for row, system in zip(table[2:4], found["systems"], strict=True):
        cells = [cell.strip().rstrip("†") for cell in row.split("|")]
        assert cells[1] == system["label"]
        assert [float(cell) for cell in cells[2:6]] == pytest.approx(
            list(system["measures"].values()), abs=6e-4
        )


def test_collections_compared_separately_are_recorded_together(tmp_path):
    systems = ["--system", "bm25s"]
    config = tmp_path / "two.toml"
    config.write_text('[[collection]]\nsource = "{data}/a"\n\n[[collection]]\nsource = "{data}/b"\n')
    for name in "ab":
        write_beir(tmp_path / name)
    for name in ("b", "a", "b"):
        out = str(tmp_path / "o")
        assert coil(["compare", str(tmp_path / name), *systems, "--out", out]) == 0
        kept = record(tmp_path / "o", config, tmp_path / "results")
    assert list(json.loads(kept.read_text())["collections"]) == ["a", "b"]
    config.write_text(config.read_text() + "k = 10\n")  # figures of another config are not mixed with these
    kept = record(tmp_path / "o", config, tmp_path / "results")
    assert list(json.loads(kept.read_text())["collections"]) == ["b"]
