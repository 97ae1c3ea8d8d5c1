"""The options that say which columns of a table are the id, the text and the title."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def column_options(command: Command) -> Command:
    """--id-column, --text-column and --title-column, for a verb that reads a corpus."""
    title = click.option("--title-column", metavar="NAME", help="The column that is the title.")
    text = click.option(
        "--text-column", metavar="NAME", multiple=True,
        help="The column that is the text; may be repeated, the texts are then joined.",
    )  # fmt: skip
    named = click.option("--id-column", metavar="NAME", help="The column (or JSON key) that is the id.")
    return named(text(title(command)))
