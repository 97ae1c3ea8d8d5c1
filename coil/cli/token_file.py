"""Reads the token that allows changes from a file. On the command line, other users could see it."""

from __future__ import annotations

import stat
from pathlib import Path

import click

from coil.errors import InputError


def read_token(path: Path) -> str:
    """Read the token from a file: its only line."""
    try:
        token = path.read_text(encoding="utf-8").strip()
        mode = path.stat().st_mode
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not a text file", "the file must contain the token on a single line"
        ) from error
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", "check the path and its permissions"
        ) from error
    if not token or len(token.split()) > 1:
        raise InputError(
            f"{path} {'is empty' if not token else 'contains spaces'}; expected one token without spaces",
            f"create one with: openssl rand -hex 32 > {path}",
        )
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        click.echo(f"warning: other users of this machine can read {path}; run chmod 600 {path}", err=True)
    return token
