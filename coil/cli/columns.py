"""Options that name the id, text and title columns of a table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def column_options(command: Command) -> Command:
    """--id-column, --text-column and --title-column, for a command that reads a corpus."""
    title = click.option("--title-column", metavar="NAME", help="Column (or JSON key) with the title.")
    text = click.option(
        "--text-column", metavar="NAME", multiple=True,
        help="Column (or JSON key) with the text; if repeated, the texts are joined.",
    )  # fmt: skip
    named = click.option("--id-column", metavar="NAME", help="Column (or JSON key) with the id.")
    return named(text(title(command)))
