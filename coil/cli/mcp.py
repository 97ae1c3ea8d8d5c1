"""`coil mcp`: an index as MCP tools for an assistant."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import click

from coil.adapters.source import Source
from coil.indexes.opening import open_index


@click.command("mcp")
@click.argument("index")
@click.option("--allow-changes", is_flag=True, help="Also offer tools that add and delete documents.")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
def command(index: str, allow_changes: bool, model: str | None) -> None:
    """Serve an index to an assistant through the Model Context Protocol (MCP), over stdin and stdout.

    INDEX is an index folder or the address of a server (http://127.0.0.1:8080). The assistant starts this
    command itself and gets the tools search, explain and document, which are read-only; --allow-changes adds
    the tools add and delete. Changes by other processes are visible immediately. Requires the mcp extra.

    \b
    Add this to the configuration of the assistant:
      {"mcpServers": {"notes": {"command": "coil", "args": ["mcp", "/home/me/notes.coil"]}}}
    """
    given = Source(index).index if model is None else open_index(index, model=model)
    from coil.adapters.mcp import make_server  # slow to import: report a wrong index first

    with _ending_input_at_signals():
        make_server(given, writable=allow_changes).run("stdio")


@contextmanager
def _ending_input_at_signals() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM end the standard input, and with it the server.

    The server reads it in a thread that no signal wakes, and would wait for that thread. What is read comes
    through a socket therefore, which can be shut down.
    """
    before = {of: signal.getsignal(of) for of in (signal.SIGINT, signal.SIGTERM)}
    heard: list[int] = []
    if os.name == "nt":  # a socket cannot take the place of a file there
        yield
        return
    given, (read_from, write_to) = os.dup(0), socket.socketpair()

    def pump() -> None:
        with suppress(OSError):
            while part := os.read(given, 1 << 16):
                write_to.sendall(part)
        end()

    def end() -> None:
        with suppress(OSError):
            write_to.shutdown(socket.SHUT_RDWR)

    def hear(number: int, _: object) -> None:
        heard.append(number)
        end()

    os.dup2(read_from.fileno(), 0)
    threading.Thread(target=pump, name="input", daemon=True).start()
    for of, handler in before.items():
        if callable(handler):
            signal.signal(of, hear)
    try:
        yield
    finally:
        for of, handler in before.items():
            signal.signal(of, handler)
    if heard and callable(handler := before[signal.Signals(heard[0])]):
        handler(heard[0], None)
