"""`coil import-encoded`: build an index from texts encoded by the authors' code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coil.adapters.authors_index import import_encoded
from coil.errors import how_many
from coil.progress import ProgressBar
from coil.texts.corpora import read_documents


@click.command("import-encoded")
@click.argument("folders", nargs=-1, required=True, metavar="FOLDER...")
@click.option(
    "--corpus", required=True, multiple=True, help="The texts, such as collection.tsv; may be repeated."
)
@click.option(
    "--model", required=True, metavar="FOLDER",
    help="The model that encoded the texts, converted with `coil import-checkpoint`.",
)  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The index to create, NAME.coil.")
@click.option(
    "--precision", type=click.Choice(["int8", "fp16", "fp32", "int8+fp16", "int8+fp32"]), default="fp16",
    show_default=True, help="How vectors are stored; fp16 is lossless for texts encoded with --fp16.",
)  # fmt: skip
def command(folders: tuple[str, ...], corpus: tuple[str, ...], model: str, out: Path, precision: Any) -> None:
    """Build an index from texts encoded by the authors' COIL (github.com/luyug/COIL).

    FOLDER is the output of their `run_marco.py --do_encode`: tok_reps.npy, tok_pids.npy, cls_reps.npy,
    cls_pids.npy and offsets.pkl, or a folder of such folders. Nothing is encoded again, and no code in the
    files is executed. The texts are read from the corpus, whose ids must be the encoded numbers, optionally
    with a leading D. Documents that were not encoded are skipped and counted.

    \b
      coil import-checkpoint hn-checkpoint/ --tokenizer bert-base-uncased/ --out coil-hn/
      coil import-encoded encoded/ --corpus collection.tsv --model coil-hn/ --out marco.coil
      coil search marco.coil "what is a contextualized inverted list"
    """
    with ProgressBar("importing", "documents") as bar:
        counts = import_encoded(folders, read_documents(*corpus), model, out, precision, bar.update)
    for number, noun, what in (
        (counts.not_encoded, "document", "in the corpus but not encoded: skipped"),
        (counts.without_text, "text", "encoded but not in the corpus: skipped"),
        (counts.different, "document", "whose text does not match the encoded tokens: cannot be explained"),
    ):
        if number:
            click.echo(f"coil: {how_many(number, noun)} {what}", err=True)
    click.echo(f"{how_many(counts.documents, 'document')} in {out}")
