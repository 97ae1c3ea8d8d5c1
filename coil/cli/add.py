"""`coil add`: adds documents to an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from coil.cli.columns import column_options
from coil.cli.index import COMMIT_EVERY
from coil.cli.progress import document_bar
from coil.errors import how_many
from coil.indexes.index import tell_left_out
from coil.indexes.opening import open_index
from coil.storage.memory import default_budget, longest_line, parse_size
from coil.texts.corpora import read_documents
from coil.texts.values import EmptyDocuments


@click.command("add")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("corpus", nargs=-1, required=True)
@click.option(
    "--on-duplicate", type=click.Choice(["error", "update", "skip"]), default="error", show_default=True,
    help="What to do with an id that is already in the index.",
)  # fmt: skip
@column_options
@click.option("--memory", metavar="SIZE", help="Memory limit of the whole process, such as 512M or 4G.")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
def command(
    index: Path,
    corpus: tuple[str, ...],
    on_duplicate: Any,
    id_column: str | None,
    text_column: tuple[str, ...],
    title_column: str | None,
    memory: str | None,
    model: str | None,
) -> None:
    """Add documents to an index. They are searchable as soon as they are committed.

    \b
      coil add notes.coil new-notes/
      coil add notes.coil faq.csv --id-column url --text-column question --text-column answer
      echo '{"id": "n1", "text": "hello"}' | coil add notes.coil - --on-duplicate update
    """
    budget = parse_size(memory) if memory is not None else None
    documents = read_documents(
        *corpus, id_column=id_column, text_column=text_column, title_column=title_column
    )
    documents.gauge.longest = longest_line(budget or default_budget())
    opened = open_index(index, memory=budget, model=model)
    found: list[EmptyDocuments] = []
    with document_bar(documents.total_bytes, "adding") as encoded:
        added = opened.add(
            documents, on_duplicate, encoded=encoded, commit_every=COMMIT_EVERY, left_out=found.append
        )
    for empty in found:
        click.echo(f"coil: {tell_left_out(empty)}", err=True)
    click.echo(f"{how_many(added, 'document')} added; {index} now has {len(opened):,}", err=True)
