"""`coil export`: creates the ONNX files of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import click

from coil.vectors.onnx_encoder import Precision


@click.command()
@click.argument("model_dir", type=click.Path(path_type=Path))
@click.option(
    "--precision",
    type=click.Choice(["fp32", "int8", "both"]),
    default="both",
    show_default=True,
    help="Files to create: model.onnx (fp32), model.int8.onnx (int8).",
)
@click.option(
    "--check/--no-check", default=True, show_default=True, help="Compare each file with PyTorch first."
)
def command(model_dir: Path, precision: str, check: bool) -> None:
    """Create the ONNX files of the trained model in MODEL_DIR, which search and indexing require.

    Each file is compared with PyTorch before it is saved: model.onnx must agree within 0.0001.
    model.int8.onnx, which is about four times smaller and two to three times faster, must reach a mean
    cosine of 0.99.

    \b
    Example:
      coil export runs/my-model
    """
    from coil.vectors.export import export_model

    wanted = ["fp32", "int8"] if precision == "both" else [precision]
    for file in export_model(model_dir, [cast("Precision", name) for name in wanted], check):
        line = f"{file.path}  {file.bytes / 1e6:.1f} MB"
        if file.max_error is not None:
            line += (
                f"  largest difference {file.max_error:.1e}"
                f"  mean cosine {file.token_cosine:.4f} tokens, {file.sentence_cosine:.4f} sentences"
            )
        click.echo(line)
