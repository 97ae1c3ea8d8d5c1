"""`coil index`: a pile of text in, an index out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from coil.errors import InputError
from coil.index import create, open_index
from coil.texts.corpora import read_documents

COMMIT_EVERY = 4096  # documents; a kill loses at most this many, and --resume takes them up again


@click.command("index")
@click.argument("corpus", nargs=-1, required=True)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The index to make, NAME.coil.")
@click.option("--model", metavar="M", help="A model folder, or a package that carries one.")
@click.option(
    "--precision", type=click.Choice(["int8", "fp16", "fp32"]), default="int8", show_default=True,
    help="How vectors are stored.",
)  # fmt: skip
@click.option(
    "--long", type=click.Choice(["chunk", "truncate"]), default="chunk", show_default=True,
    help="Documents longer than the model takes: cut into overlapping chunks, or cut off.",
)  # fmt: skip
@click.option(
    "--on-duplicate", type=click.Choice(["error", "update", "skip"]), default="error", show_default=True,
    help="What to do with an id that was there before.",
)  # fmt: skip
@click.option("--resume", is_flag=True, help="Go on with an index whose building was interrupted.")
def command(
    corpus: tuple[str, ...],
    out: Path,
    model: str | None,
    precision: Any,
    long: Any,
    on_duplicate: Any,
    resume: bool,
) -> None:
    """Build an index from .jsonl, .tsv, .csv or .parquet files, folders of .txt and .md, BEIR folders, or - .

    \b
      coil index notes/ --out notes.coil
      zcat dump.jsonl.gz | coil index - --out dump.coil
    """
    began = time.monotonic()
    documents = read_documents(*corpus)  # before anything is made: a wrong path must not leave an empty index
    index = open_index(out) if resume else create(out, model, precision, long)
    before = len(index)
    with tqdm(unit=" documents", disable=None, desc="indexing") as bar:
        index.add(
            documents,
            on_duplicate="skip" if resume else on_duplicate,
            committed=bar.update,
            commit_every=COMMIT_EVERY,
        )
    added = len(index) - before
    if not len(index):
        raise InputError(f"{' '.join(corpus)} holds no documents", "check the path and the format")
    facts = index.inspect()
    cut = f", {facts.truncated_documents:,} cut off" if facts.truncated_documents else ""
    size = (facts.bytes_segments + facts.bytes_catalog) / 1e6
    click.echo(
        f"{added:,} documents added in {time.monotonic() - began:.1f} s{cut}; {out} holds "
        f"{facts.documents:,} with {facts.mentions:,} mentions in {size:.1f} MB",
        err=True,
    )
