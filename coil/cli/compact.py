"""`coil compact`: rewrites an index without its deleted documents."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import how_many
from coil.indexes.opening import open_index


@click.command("compact")
@click.argument("index", type=click.Path(path_type=Path))
def command(index: Path) -> None:
    """Rewrite an index in as few segments as possible, without its deleted documents.

    Hits and scores do not change.
    """
    opened = open_index(index)
    segments_before, bytes_before = opened.disk_use()
    segments = opened.compact()
    saved = (bytes_before - opened.disk_use()[1]) / 1e6
    click.echo(
        f"compacted {how_many(segments_before, 'segment')} into {segments}; {saved:.1f} MB freed", err=True
    )
