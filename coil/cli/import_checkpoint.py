"""`coil import-checkpoint`: a model folder of a checkpoint of the authors' COIL."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import require


@click.command("import-checkpoint")
@click.argument("checkpoint")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The model folder to create.")
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER",
    help="The base model's folder, or its tokenizer.json, if the checkpoint has no tokenizer.",
)  # fmt: skip
@click.option("--no-cls", is_flag=True, help="The checkpoint was trained with --no_cls (COIL-tok).")
@click.option("--cls-only", is_flag=True, help="The checkpoint was trained with --cls_only (dense).")
@click.option(
    "--query-length", type=click.IntRange(min=3), default=16, show_default=True,
    help="Tokens of a query, special tokens included.",
)  # fmt: skip
@click.option(
    "--document-length", type=click.IntRange(min=3), default=128, show_default=True,
    help="Tokens of a document, special tokens included; the paper has 512.",
)  # fmt: skip
@click.option(
    "--export/--no-export", default=True, show_default=True,
    help="Also create the ONNX files, which searching and indexing need.",
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
    """Make a model folder of a checkpoint of the authors' COIL (github.com/luyug/COIL).

    CHECKPOINT is a folder with config.json, the weights of the language model (model.safetensors or
    pytorch_model.bin) and model.pt, which holds the projections. The model gets the scoring profile of the
    paper: one list per word piece, weight 1, no stop list. The default lengths are those of the authors'
    commands.

    A checkpoint does not say which options it was trained with: give --no-cls or --cls-only if they were
    used. The result is wrong for one that was trained with --token_rep_relu or without --no_sep. Files are
    loaded without running any code that they might contain; args.pt is not read. Needs the train extra.

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

        click.echo("creating the ONNX files, which takes a minute …", err=True)
        export_model(out)
    click.echo(f"{out}: {config.kind}, token vectors {config.n_t} wide, sentence vector {config.n_c} wide")
