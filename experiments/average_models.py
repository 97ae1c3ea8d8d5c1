"""Averages several trained models with the same starting model, and writes a model folder.

    python -m experiments.average_models MODEL... --out DIR [--start DIR --share 0.2]

With --start, the language model is then moved a share of the way back to the starting model.
"""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import replace
from pathlib import Path

import torch

from coil.vectors.backbone import load_backbone
from coil.vectors.config import ModelConfig
from coil.vectors.torch_model import CoilModel


def main() -> None:
    """Average all weights; of α, β and γ the geometric mean, since their logarithms were trained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--share", type=float, default=0.0, help="of the starting weights")
    arguments = parser.parse_args()
    models = [CoilModel.from_pretrained(folder) for folder in arguments.models]
    states = [model.state_dict() for model in models]
    profiles = [ModelConfig.load(folder).profile for folder in arguments.models]
    means = {
        name: float(f"{math.exp(sum(math.log(getattr(p, name)) for p in profiles) / len(profiles)):.6g}")
        for name in ("alpha", "beta", "gamma")
    }
    mean = models[0]
    mean.config = replace(mean.config, profile=replace(mean.config.profile, **means))
    mean.load_state_dict(
        {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}
    )
    if arguments.start is not None:
        mean.average(dict(load_backbone(arguments.start).named_parameters()), arguments.share)
    mean.save_pretrained(arguments.out, torch.float16)
    for name in ("tokenizer.json", "recipe.json"):
        shutil.copyfile(arguments.models[0] / name, arguments.out / name)


if __name__ == "__main__":
    main()
