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
    """Read every byte of an index and compare it with what was written.

    All files have checksums, so every changed byte is found. Lists, texts and fields are read as a search
    would read them. Exits with status 1 and names the first file that is wrong.
    """
    opened = open_index(index)
    _, total = opened.disk_use()
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="verifying") as bar:
        opened.verify(bar.update)
    click.echo(f"{index} is intact: {how_many(len(opened), 'document')}, {total / 1e6:.1f} MB")
