"""`coil verify`: is every byte what was written?"""

from __future__ import annotations

from pathlib import Path

import click
from tqdm import tqdm

from coil.index import open_index


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
def command(index: Path) -> None:
    """Read every byte of an index and compare it with what was written. Exit status 1 names what is wrong."""
    opened = open_index(index)
    total = opened.inspect().bytes_segments
    with tqdm(total=total, unit="B", unit_scale=True, disable=None, desc="verifying") as bar:
        opened.verify(bar.update)
    click.echo(f"{index} is whole: {len(opened):,} documents, {total / 1e6:.1f} MB of segments")
