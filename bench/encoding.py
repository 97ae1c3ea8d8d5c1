"""Measures encoding on the CPU: queries, documents, and the first query of a new process.

    python bench/encoding.py [--model DIR] [--output FILE]

Everything is measured in one run, in turn, so that other load affects all alike. The texts are docstrings of
the standard library, which every machine has. Writes bench/results/encoding.json.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.stamp import stamp, write_result
from coil import OnnxEncoder, TorchEncoder
from coil.vectors.export import export_model
from coil.vectors.model_files import ONNX_FILES, resolve_folder, resolve_weights

MODULES = """argparse ast asyncio bisect collections concurrent.futures configparser contextlib csv ctypes
dataclasses datetime decimal difflib email enum fractions functools gzip heapq html http.client inspect io
ipaddress itertools json logging math mimetypes multiprocessing operator os pathlib pickle pprint random re
sched secrets select shelve shutil signal smtplib socket sqlite3 ssl statistics string struct subprocess
tarfile tempfile textwrap threading time timeit tokenize traceback types unittest urllib.request uuid
warnings weakref xml.dom zipfile zlib""".split()
FIXED_BATCH = 32  # texts per batch in input order, as in a plain loop over a data loader

# Run in a new process: from the start of the interpreter to the vectors of one query.
COLD_START = """
import sys, time
from coil import OnnxEncoder
imported = time.time()
encoder = OnnxEncoder(sys.argv[1], precision="int8")
loaded = time.time()
vectors = next(encoder.encode_queries([sys.argv[2]]))
done = time.time()
assert len(vectors) > 0
assert "torch" not in sys.modules and "transformers" not in sys.modules, "torch was imported"
print(imported, loaded, done)
"""


def documents(count: int) -> list[str]:
    """Docstrings of the standard library, in a fixed random order."""
    texts = set()
    for name in MODULES:
        module = importlib.import_module(name)
        for key, value in vars(module).items():
            if key.startswith("_") or not callable(value):
                continue
            members = [(key, value)]
            if inspect.isclass(value):
                members += [(f"{key}.{n}", v) for n, v in vars(value).items() if not n.startswith("_")]
            texts.update(
                f"{name}.{n}\n{doc}"
                for n, v in members
                if (doc := getattr(v, "__doc__", None)) and isinstance(doc, str)
            )
    ordered = sorted(texts)
    random.Random(0).shuffle(ordered)
    return ordered[:count]


def queries(texts: Iterable[str], words: int, count: int) -> list[str]:
    """The first words of the first sentences, as somebody would type them."""
    made = []
    for text in texts:
        found = re.findall(r"[a-z]+", text.split("\n", 1)[1].lower())
        if len(found) >= words:
            made.append(" ".join(found[:words]))
    return made[:count]


def in_turns(jobs: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """The seconds of each job in each round; the jobs take turns, and the first round is discarded."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for turn in range(rounds + 1):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            if turn:
                times[name].append(time.perf_counter() - start)
    return times


def measure_queries(model: Path, texts: list[str], threads: int, rounds: int) -> dict[str, Any]:
    """Milliseconds per query, one query at a time; the median over rounds of the median over queries."""
    import torch

    torch.set_num_threads(threads)
    encoders = {
        "pytorch": TorchEncoder(model),
        "onnx_fp32": OnnxEncoder(model, precision="fp32", threads=threads),
        "onnx_int8": OnnxEncoder(model, precision="int8", threads=threads),
    }
    single: dict[str, list[float]] = {name: [] for name in encoders}

    def job(name: str) -> Callable[[], None]:
        def run() -> None:
            times = []
            for text in texts:
                start = time.perf_counter()
                next(encoders[name].encode_queries([text]))
                times.append(time.perf_counter() - start)
            single[name].append(statistics.median(times) * 1e3)

        return run

    in_turns({name: job(name) for name in encoders}, rounds)
    median = {name: statistics.median(values[1:]) for name, values in single.items()}
    return {
        "threads": threads,
        "ms": {name: round(value, 3) for name, value in median.items()},
        "ms_best_round": {name: round(min(values[1:]), 3) for name, values in single.items()},
        "int8_over_fp32": round(median["onnx_int8"] / median["onnx_fp32"], 3),
        "int8_over_pytorch": round(median["onnx_int8"] / median["pytorch"], 3),
    }


def measure_documents(model: Path, texts: list[str], threads: int, rounds: int) -> dict[str, Any]:
    """Documents per second in int8: sorted by length, and in input order in two ways."""
    bucketed = OnnxEncoder(model, precision="int8", threads=threads)
    input_order = OnnxEncoder(model, precision="int8", threads=threads, bucketed=False)
    fixed = OnnxEncoder(model, precision="int8", threads=threads, bucketed=False, batch_tokens=10**9)

    def in_fixed_batches() -> None:
        for start in range(0, len(texts), FIXED_BATCH):
            _exhaust(fixed.encode_documents(texts[start : start + FIXED_BATCH]))

    times = in_turns(
        {
            "bucketed": lambda: _exhaust(bucketed.encode_documents(texts)),
            "input_order_same_token_budget": lambda: _exhaust(input_order.encode_documents(texts)),
            f"input_order_{FIXED_BATCH}_texts_a_batch": in_fixed_batches,
        },
        rounds,
    )
    speed = {name: len(texts) / statistics.median(values) for name, values in times.items()}
    return {
        "threads": threads,
        "documents_a_second": {name: round(value, 2) for name, value in speed.items()},
        "bucketed_over": {
            name: round(speed["bucketed"] / value, 3) for name, value in speed.items() if name != "bucketed"
        },
    }


def measure_start(model: Path, query: str, repeats: int) -> dict[str, Any]:
    """Seconds from starting a process to the vectors of its first query, and to `import coil`."""
    whole, importing, loading, encoding, bare = [], [], [], [], []
    for _ in range(repeats):
        start = time.time()
        done = subprocess.run(
            [sys.executable, "-c", COLD_START, str(model), query], capture_output=True, text=True, check=True
        )
        imported, loaded, encoded = map(float, done.stdout.split())
        whole.append(encoded - start)
        importing.append(imported - start)
        loading.append(loaded - imported)
        encoding.append(encoded - loaded)
        timed = "import time; t = time.perf_counter(); import coil; print(time.perf_counter() - t)"
        done = subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True, check=True)
        bare.append(float(done.stdout))
    middle = {
        "start_to_first_query_s": whole,
        "of_which_interpreter_and_imports_s": importing,
        "of_which_loading_the_model_s": loading,
        "of_which_the_query_s": encoding,
        "import_coil_s": bare,
    }
    return {
        "repeats": repeats,
        "torch_imported": False,
        **{name: round(statistics.median(values), 4) for name, values in middle.items()},
        "slowest_start_to_first_query_s": round(max(whole), 4),
    }


def _exhaust(results: Iterable[object]) -> None:
    for _ in results:
        pass


def run(model: Path, quick: bool) -> dict[str, Any]:
    """The whole benchmark on one model folder."""
    result = stamp("torch", "transformers")
    with tempfile.TemporaryDirectory() as scratch:
        # The bundled model is in two folders and has only the int8 file; what is missing is made in a copy.
        folder = Path(scratch) / "model"
        shutil.copytree(resolve_weights(model), folder)
        shutil.copytree(model, folder, dirs_exist_ok=True)
        made = [name for name, file in ONNX_FILES.items() if not (folder / file).is_file()]
        export_model(folder, [name for name in ("fp32", "int8") if name in made])
        encoder = OnnxEncoder(folder, precision="int8")
        profile = encoder.config.profile
        texts = documents(64 if quick else 400)
        asked = queries(documents(4000), words=8, count=16)
        document_lengths = [len(t) for t in encoder.tokenizer.cut(texts, profile.document_length)]
        query_lengths = [len(t) for t in encoder.tokenizer.cut(asked, profile.query_length)]
        result["data"] = {
            "documents": f"{len(texts)} docstrings of the standard library, shuffled with a fixed seed",
            "document_tokens_mean_median_max": [
                round(statistics.mean(document_lengths), 1),
                statistics.median(document_lengths),
                max(document_lengths),
            ],
            "queries": f"the first 8 words of {len(asked)} docstrings",
            "query_tokens_median": statistics.median(query_lengths),
        }
        result["settings"] = {
            "model": model.name,
            "n_t": encoder.config.n_t,
            "n_c": encoder.config.n_c,
            "backbone": json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type"),
            "onnx_made_here": made,
            "bytes": {name: (folder / file).stat().st_size for name, file in ONNX_FILES.items()},
            "batch_tokens": encoder.batch_tokens,
            "query_rounds": 5 if quick else 25,
            "document_rounds": 1 if quick else 3,
        }
        rounds = result["settings"]["query_rounds"], result["settings"]["document_rounds"]
        result["query_latency"] = [measure_queries(folder, asked, n, rounds[0]) for n in (1, 2)]
        result["document_throughput"] = [measure_documents(folder, texts, n, rounds[1]) for n in (1, 2)]
        result["cold_start"] = measure_start(folder, asked[0], 2 if quick else 7)
    return result


def print_tables(result: dict[str, Any]) -> None:
    """Print the figures."""
    print(
        f"\n{'query, ms':28}{'PyTorch':>10}{'ORT fp32':>10}{'ORT int8':>10}{'int8/fp32':>11}{'int8/PyT':>10}"
    )
    for row in result["query_latency"]:
        ms = row["ms"]
        print(
            f"{row['threads']} thread(s), median{'':10}{ms['pytorch']:10.2f}{ms['onnx_fp32']:10.2f}"
            f"{ms['onnx_int8']:10.2f}{row['int8_over_fp32']:11.2f}{row['int8_over_pytorch']:10.2f}"
        )
    print("\ndocuments per second, int8")
    for row in result["document_throughput"]:
        for name, value in row["documents_a_second"].items():
            ratio = row["bucketed_over"].get(name)
            note = f"   bucketed is {ratio:.2f}×" if ratio else ""
            print(f"{row['threads']} thread(s)  {name:34}{value:10.1f}{note}")
    start = result["cold_start"]
    print(
        f"\nprocess start to first query {start['start_to_first_query_s']:.2f} s (slowest "
        f"{start['slowest_start_to_first_query_s']:.2f}), import coil {start['import_coil_s']:.3f} s"
    )


def main() -> None:
    """Read the options, run, write, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="a COIL model folder (default: the bundled one)")
    parser.add_argument("--output", type=Path, help="default: bench/results/encoding.json")
    parser.add_argument("--quick", action="store_true", help="use few texts and rounds, to test the script")
    options = parser.parse_args()
    result = run(resolve_folder(options.model), options.quick)
    print_tables(result)
    print(f"\nwritten to {write_result('encoding', result, options.output)}")


if __name__ == "__main__":
    main()
