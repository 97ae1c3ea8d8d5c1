"""`coil verify`: is every byte what was written?"""

from __future__ import annotations

from pathlib import Path

import click
from tqdm import tqdm

from coil.errors import how_many
from coil.indexes.opening import open_index


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
def command(index: Path) -> None:
    """Compare every byte of the segments, which hold the vectors, with what was written, and let SQLite check
    the catalog, which holds the texts. Exit status 1 names what is wrong.

    A segment has a digest, so every changed byte is found. SQLite finds a damaged structure, but not every
    changed letter of a text.
    """
    opened = open_index(index)
    _, total = opened.disk_use()
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="verifying") as bar:
        opened.verify(bar.update)
    click.echo(f"{index} is whole: {how_many(len(opened), 'document')}, {total / 1e6:.1f} MB of segments")
