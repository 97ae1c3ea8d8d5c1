"""`coil explain`: why a document matches, and why it stands above another."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click

from coil.cli.demo import shade
from coil.explanations.table import WIDTH, format_contrast, format_table
from coil.indexes.opening import open_index

EVERY_MENTION = sys.maxsize


@click.command("explain")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("doc_id")
@click.option("--versus", metavar="DOC_ID", help="Compare with this document, part by part.")
@click.option(
    "--mentions", type=click.IntRange(min=1), default=1, show_default=True,
    help="Mentions to show for each query word, most similar first.",
)  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Show every mention of each query word.")
@click.option("--tok-only", is_flag=True, help="Ignore the sentence vector; count exact matches only.")
@click.option(
    "--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True,
    help="Highlight matches (auto: on a terminal, unless NO_COLOR is set).",
)  # fmt: skip
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print everything, including every mention, as one JSON object."
)
def command(
    index: Path,
    query: str,
    doc_id: str,
    versus: str | None,
    mentions: int,
    every: bool,
    tok_only: bool,
    color: str,
    model: str | None,
    as_json: bool,
) -> None:
    """Break down a score: the sentence part, and the mention that each query word matched.

    Any document of the index can be explained, whether it was found or not. A similarity below 0 is shown but
    adds nothing ("floored"). The last line compares the score with that of the query's own text.

    \b
      coil explain notes.coil "bank of a river" a
      coil explain notes.coil "bank of a river" a --all
      coil explain notes.coil "bank of a river" a --versus b
      coil explain notes.coil "bank of a river" a --color always | less -R
    """
    if versus is not None and (every or mentions > 1):
        raise click.UsageError(
            "--versus shows the best mention of each; it cannot be combined with --mentions or --all."
        )
    opened = open_index(index, model=model)
    explained = opened.explain(query, doc_id, tok_only)
    contrast = explained.versus(opened.explain(query, versus, tok_only)) if versus is not None else None
    if as_json:
        click.echo(json.dumps((contrast or explained).to_json(), ensure_ascii=False))
        return
    coloured = color == "always" or (color == "auto" and wants_colour())
    width = shutil.get_terminal_size((WIDTH, 24)).columns
    if contrast is not None:
        text = format_contrast(contrast, shade if coloured else None, width)
    else:
        shown = EVERY_MENTION if every else mentions
        text = format_table(explained, shade if coloured else None, width, shown)
    click.echo(text, color=coloured)


def wants_colour() -> bool:
    """Whether standard output is a terminal whose user did not ask for plain text (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
