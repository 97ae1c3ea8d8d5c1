"""`coil mcp`: an index as MCP tools for an assistant."""

from __future__ import annotations

import io
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from coil.adapters.source import Source, is_address
from coil.cli.token_file import read_token
from coil.errors import InputError
from coil.remote.client import connect

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][\da-fA-F]{2}\\u[dD][c-fC-F][\da-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][\da-fA-F]{2})|.)"
)


@click.command("mcp")
@click.argument("index")
@click.option("--allow-changes", is_flag=True, help="Also offer tools that add and delete documents.")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File with the server's token, which is required for changes.",
)
def command(index: str, allow_changes: bool, model: str | None, token_file: Path | None) -> None:
    """Serve an index to an assistant through the Model Context Protocol (MCP), over stdin and stdout.

    INDEX is an index folder or the address of a server (http://127.0.0.1:8080). The assistant starts this
    command itself and gets the tools search, explain and document, which are read-only; --allow-changes adds
    the tools add and delete. Changes by other processes are visible immediately. A server allows changes only
    with its token: pass --token-file. Requires the mcp extra.

    \b
    Add this to the configuration of the assistant:
      {"mcpServers": {"notes": {"command": "coil", "args": ["mcp", "/home/me/notes.coil"]}}}
    """
    source = _open(index, model, token_file)
    from coil.adapters.mcp import make_server  # slow to import: report a wrong index first

    server = make_server(source, writable=allow_changes)
    with _input_that_ends():
        server.run("stdio")


def _open(index: str, model: str | None, token_file: Path | None) -> Source:
    remote = is_address(index)
    wrong = "--model" if remote and model is not None else None
    wrong = "--token-file" if not remote and token_file is not None else wrong
    if wrong is not None:
        what = "the address of a server" if remote else "an index folder"
        raise InputError(f"{wrong} was given with {what}", f"omit {wrong}")
    if remote:
        return Source(connect(index, token=None if token_file is None else read_token(token_file)))
    source = Source(index, model)
    _ = source.index  # a missing index is reported now
    return source


@contextmanager
def _input_that_ends() -> Iterator[None]:
    """Make Ctrl-C and SIGTERM end standard input. The server reads it in a thread that cannot be stopped and
    would wait for another line; at the end of its input it finishes the running calls and returns."""
    theirs, ours = socket.socketpair()
    received: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        received.append(number)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_WR)

    stdin, numbers = sys.stdin, (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    heard = {number: handler for number, handler in before.items() if callable(handler)}
    for number in heard:
        signal.signal(number, stop)
    file = None if stdin is None else stdin.fileno()  # it is None if it was closed
    threading.Thread(target=_copy, args=(file, ours), daemon=True).start()
    sys.stdin = io.TextIOWrapper(theirs.makefile("rb"), encoding="utf-8")
    try:
        yield
    finally:
        sys.stdin = stdin
        for number, handler in heard.items():
            signal.signal(number, handler)
    for sent in received:
        heard[signal.Signals(sent)](sent, None)


def _copy(file: int | None, to: socket.socket) -> None:
    """Forward the input until either side closes."""
    with suppress(OSError):
        if file is not None:
            with open(file, "rb", closefd=False) as lines:
                for line in lines:
                    to.sendall(_whole_characters(line))
        to.shutdown(socket.SHUT_WR)


def _whole_characters(line: bytes) -> bytes:
    """A JSON line without escapes of lone surrogates, such as of an emoji that was cut in half.

    The SDK would drop the line, and the assistant would wait forever for the answer.
    """
    return _ESCAPE.sub(lambda found: b"\\ufffd" if found["lone"] else found[0], line)
