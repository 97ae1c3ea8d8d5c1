"""`coil import-checkpoint`: convert a checkpoint of the authors' COIL."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import require


@click.command("import-checkpoint")
@click.argument("checkpoint")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The model folder to create.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER",
    help="Folder or tokenizer.json of the base model, if the checkpoint has no tokenizer.",
)  # fmt: skip
@click.option("--no-cls", is_flag=True, help="The checkpoint was trained with --no_cls (COIL-tok).")
@click.option("--cls-only", is_flag=True, help="The checkpoint was trained with --cls_only (dense).")
@click.option(
    "--query-length", type=click.IntRange(min=3), default=16, show_default=True,
    help="Maximum query length in tokens, including special tokens.",
)  # fmt: skip
@click.option(
    "--document-length", type=click.IntRange(min=3), default=128, show_default=True,
    help="Maximum document length in tokens, including special tokens; 512 in the paper.",
)  # fmt: skip
@click.option(
    "--export/--no-export", default=True, show_default=True,
    help="Also create the ONNX files required for indexing and searching.",
)  # fmt: skip
def command(
    checkpoint: str,
    out: Path,
    tokenizer: Path | None,
    no_cls: bool,
    cls_only: bool,
    query_length: int,
    document_length: int,
    export: bool,
) -> None:
    """Convert a checkpoint of the authors' COIL (github.com/luyug/COIL) to a model folder.

    CHECKPOINT is a folder with config.json, the weights of the language model (model.safetensors or
    pytorch_model.bin) and model.pt, which contains the projections. The model gets the paper's scoring
    profile: one list per word piece, no word weights, no stop words. The default lengths are those of the
    authors' commands.

    Training options are not read from the checkpoint: pass --no-cls or --cls-only if they were used.
    Checkpoints trained with --token_rep_relu or without --no_sep are not supported and give wrong scores. No
    code in the files is executed; args.pt is not loaded. Requires the train extra.

    \b
      coil import-checkpoint hn-checkpoint/ --tokenizer bert-base-uncased/ --out coil-hn/
      coil index collection.tsv --model coil-hn/ --out marco.coil
    """
    for package in ("torch", "transformers", *(["onnx"] if export else [])):
        require(package, "train")
    from coil.adapters.authors_checkpoint import import_checkpoint

    click.echo("loading the checkpoint …", err=True)
    config = import_checkpoint(checkpoint, out, tokenizer, no_cls, cls_only, query_length, document_length)
    if export:
        from coil.vectors.export import export_model

        click.echo("creating the ONNX files …", err=True)
        export_model(out)
    click.echo(f"{out}: {config.kind}, token vectors {config.n_t} wide, sentence vector {config.n_c} wide")
