"""`coil inspect`: what is in an index."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from coil.errors import how_many
from coil.indexes.opening import open_index

SHOWN = 3  # words of a list


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(index: Path, model: str | None, as_json: bool) -> None:
    """Show sizes, model and settings of an index. The model is needed only to name the longest lists."""
    facts = open_index(index, model=model).inspect()
    if as_json:
        click.echo(json.dumps(asdict(facts)))
        return
    stored = facts.rows + facts.deleted_rows
    share = facts.deleted_rows / stored if stored else 0.0
    deleted = f", and {how_many(facts.deleted_rows, 'deleted row')} ({share:.1%})" if share else ""
    longest = ", ".join(f"{_name(words)} {length:,}" for words, length in facts.longest_lists)
    config = facts.model["config"]
    rows = {
        "documents": f"{facts.documents:,} ({facts.truncated_documents:,} truncated)",
        **({"state": "unfinished; continue with `coil index --resume`"} if facts.unfinished else {}),
        "rows": f"{facts.rows:,} in {how_many(facts.segments, 'segment')}{deleted}",
        "mentions": f"{facts.mentions:,} in {how_many(facts.lists, 'list')}",
        "longest lists": longest or "none",
        "stored as": f"{facts.precision}, {facts.bytes_a_mention:.1f} bytes per mention",
        "lists": f"{facts.bytes_lists / 1e6:.1f} MB on disk",
        "texts": f"{facts.bytes_documents / 1e6:.1f} MB on disk",
        "largest error": f"token vector {facts.token_error:.3g}, sentence vector {facts.sentence_error:.3g}",
        "model": f"{facts.model['model'] or 'bundled'} ({facts.model['fingerprint']})",
        "vectors": f"n_t {config['n_t']}, n_c {config['n_c']}, long documents: {facts.long}",
        "profile": ", ".join(f"{name} {value}" for name, value in config["profile"].items()),
    }
    for name, value in rows.items():
        click.echo(f"{name:>14}  {value}")
    if facts.nameless:
        click.echo(f"coil: the lists have no names: {facts.nameless}", err=True)
        click.echo("  try: coil inspect --model FOLDER", err=True)


def _name(words: tuple[str, ...]) -> str:
    """A list by the words that share it, the commonest few."""
    return "/".join(words[:SHOWN]) + ("/…" if len(words) > SHOWN else "")
