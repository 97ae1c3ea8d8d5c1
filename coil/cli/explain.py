"""`coil explain`: shows why a document matches, and why it ranks above another."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import click

from coil.cli.demo import shade
from coil.cli.search import by_option
from coil.explanations.figures import WIDTH
from coil.explanations.table import format_contrast, format_table
from coil.indexes.opening import open_index
from coil.tokens.profile import By

EVERY_MENTION = sys.maxsize


@click.command("explain")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("doc_id")
@click.option("--versus", metavar="DOC_ID", help="Compare with this document, part by part.")
@click.option(
    "--mentions", type=click.IntRange(min=1), default=1, show_default=True,
    help="Number of mentions to show for each query word, best fit first.",
)  # fmt: skip
@click.option(
    "--all", "every", is_flag=True, help="Show every mention of each query word, and every sentence."
)
@by_option
@click.option("--plain", is_flag=True, help="Treat operators in the query as plain text.")
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
    by: By,
    plain: bool,
    color: str,
    model: str | None,
    as_json: bool,
) -> None:
    """Break down a score: what each query word matched in a document, and how much it adds.

    Each line is a word: where the document contains it, how many texts of the index contain it ("texts with
    it": the fewer, the higher its weight), how often this text contains it ("here"), how well its context
    fits that of the query ("fit": below 1 it counts less, above 1 more), and what it adds: weight × fit.
    The line "sentence" is the contribution of the texts as a whole; below it are the sentences of the
    document that contribute to it. All parts add up to the score, which the last line compares with the score
    of the query's own text.

    Columns without information are omitted: bm25 does not compare contexts, and a model without word weights
    shows similarities instead. A word whose context does not fit at all adds 0, never less ("floored"). You
    can explain any document of the index, whether or not it is a hit.

    \b
      coil explain notes.coil "bank of a river" a
      coil explain notes.coil "bank of a river" a --by bm25
      coil explain notes.coil "bank of a river" a --all
      coil explain notes.coil "bank of a river" a --versus b
      coil explain notes.coil "bank of a river" a --color always | less -R
    """
    if versus is not None and (every or mentions > 1):
        raise click.UsageError(
            "--versus shows only the best mentions; it cannot be combined with --mentions or --all."
        )
    opened = open_index(index, model=model)
    explained = opened.explain(query, doc_id, by, plain)
    contrast = explained.versus(opened.explain(query, versus, by, plain)) if versus is not None else None
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
    """Whether standard output is a terminal and NO_COLOR is not set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
