"""Replace the bundled model with a trained one.

    python -m experiments.bundle MODEL [--root DIR]

The package (`coil/models/default`) gets the int8 ONNX file, and the repository (`models/default`) the PyTorch
weights; both get the files that every encoder needs. The model card is written by hand. A model that was not
trained with `coil train` alone has no recipe.json; the one that is there then stays.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from coil.vectors.export import export_model
from coil.vectors.model_files import BACKBONE_FILE, DEFAULT, ONNX_FILES, SHARED_FILES
from experiments.systems import say

ROOT = Path(__file__).resolve().parent.parent
PACKAGED = (*SHARED_FILES, ONNX_FILES["int8"])
KEPT = (*SHARED_FILES, BACKBONE_FILE)
RECIPE = "recipe.json"


def main() -> None:
    """Export and copy."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--root", type=Path, default=ROOT, help="of the repository")
    arguments = parser.parse_args()
    bundle(arguments.model, arguments.root)


def bundle(made: Path, root: Path = ROOT) -> None:
    """Export a model folder to int8 and copy its files into both folders of the bundled model."""
    [file] = export_model(made, ["int8"])
    say(f"int8: mean cosine {file.token_cosine:.4f} of tokens, {file.sentence_cosine:.4f} of sentences")
    for folder, names in ((root / "coil" / "models" / DEFAULT, PACKAGED), (root / "models" / DEFAULT, KEPT)):
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            shutil.copyfile(made / name, folder / name)
        say(f"wrote {folder}")
    if (made / RECIPE).is_file():
        shutil.copyfile(made / RECIPE, root / "coil" / "models" / DEFAULT / RECIPE)


if __name__ == "__main__":
    main()
