"""`coil verify`: is every byte what was written?"""

from __future__ import annotations

from pathlib import Path

import click
from tqdm import tqdm

from coil.errors import how_many
from coil.indexes.index import open_index


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
def command(index: Path) -> None:
    """Check every byte of the segments (the vectors), and the structure of the catalog (the texts).

    Exits with status 1 and names what is wrong. Segments have checksums, so every changed byte is found.
    SQLite detects a damaged structure, but not every changed letter of a text.
    """
    opened = open_index(index)
    _, total = opened.disk_use()
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="verifying") as bar:
        opened.verify(bar.update)
    click.echo(f"{index} is intact: {how_many(len(opened), 'document')}, {total / 1e6:.1f} MB of segments")
