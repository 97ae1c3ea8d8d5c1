"""`coil verify`: checks an index for damage."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import how_many
from coil.indexes.opening import open_index
from coil.progress import BYTES, ProgressBar


@click.command("verify")
@click.argument("index", type=click.Path(path_type=Path))
def command(index: Path) -> None:
    """Read every byte of an index and check it for damage.

    All files have checksums, so every changed byte is detected. Lists, texts and fields are read as a search
    would read them. If a file is damaged, the command names the first one and exits with status 1.
    """
    opened = open_index(index)
    _, total = opened.disk_use()
    with ProgressBar("verifying", BYTES, total) as bar:
        opened.verify(bar.update)
    click.echo(f"{index} is intact: {how_many(len(opened), 'document')}, {total / 1e6:.1f} MB")
