"""`coil delete`: deletes documents from an index."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import InputError, how_many
from coil.indexes.opening import open_index


@click.command("delete")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("doc_ids", nargs=-1, required=True, metavar="DOC_ID...")
def command(index: Path, doc_ids: tuple[str, ...]) -> None:
    """Delete documents from an index. `coil compact` frees their disk space.

    \b
      coil delete notes.coil old-note.md
    """
    opened = open_index(index)
    missing = [doc_id for doc_id in doc_ids if not opened.has(doc_id)]
    if missing:
        raise InputError(
            f"{index} has no document {missing[0]!r}",
            "ids are case-sensitive; copy one from a result (nothing was deleted)",
        )
    click.echo(
        f"{how_many(opened.delete(doc_ids), 'document')} deleted; {index} now has {len(opened):,}", err=True
    )
