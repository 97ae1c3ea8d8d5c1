"""`coil add`: more documents for an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from coil.index import open_index
from coil.texts.corpora import read_documents


@click.command("add")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1, required=True)
@click.option(
    "--on-duplicate", type=click.Choice(["error", "update", "skip"]), default="error", show_default=True,
    help="What to do with an id that is there already.",
)  # fmt: skip
def command(index: Path, corpus: tuple[str, ...], on_duplicate: Any) -> None:
    """Add documents to an index; what is committed can be searched at once.

    \b
      coil add notes.coil new-notes/
      echo '{"id": "n1", "text": "hello"}' | coil add notes.coil - --on-duplicate update
    """
    opened = open_index(index)
    with tqdm(unit=" documents", disable=None, desc="adding") as bar:
        added = opened.add(read_documents(*corpus), on_duplicate=on_duplicate, committed=bar.update)
    click.echo(f"{added:,} documents added; {index} holds {len(opened):,}", err=True)
