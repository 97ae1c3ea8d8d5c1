"""`coil explain`: why a document matches, and why it stands above another."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from coil.cli.demo import shade
from coil.explanations.explanation import Explanation
from coil.explanations.table import format_table
from coil.index import open_index


@click.command("explain")
@click.argument("index", type=click.Path(path_type=Path))
@click.argument("query")
@click.argument("doc_id")
@click.option("--versus", metavar="DOC_ID", help="Compare with this document, part by part.")
@click.option("--json", "as_json", is_flag=True, help="The whole explanation as one JSON object a document.")
def command(index: Path, query: str, doc_id: str, versus: str | None, as_json: bool) -> None:
    """Take a score apart: the sentence part, and for each query word the mention it matched.

    \b
      coil explain notes.coil "bank of a river" a
      coil explain notes.coil "bank of a river" a --versus b
    """
    opened = open_index(index)
    explained = [opened.explain(query, name) for name in (doc_id, versus) if name is not None]
    if as_json:
        for explanation in explained:
            click.echo(json.dumps(explanation.to_json(), ensure_ascii=False))
        return
    colour = shade if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else None
    for explanation in explained:
        click.echo(format_table(explanation, colour))
    if versus is not None:
        click.echo(_difference(*explained))


def _difference(first: Explanation, second: Explanation) -> str:
    """What the one gains on the other with, the largest difference first."""
    parts = (
        {"sentence": (first.sentence or 0.0) - (second.sentence or 0.0)} if first.sentence is not None else {}
    )
    for sign, explanation in ((1, first), (-1, second)):
        for match in explanation.matches:
            name = f"{match.query_token} at character {match.query_span[0]}"
            parts[name] = parts.get(name, 0.0) + sign * match.contribution
    gap = first.score - second.score
    lines = [f"{first.doc_id} scores {abs(gap):.2f} {'more' if gap >= 0 else 'less'} than {second.doc_id}:"]
    for name, value in sorted(parts.items(), key=lambda part: -abs(part[1])):
        lines.append(f"  {value:+8.2f}  {name}")
    return "\n".join(lines)
