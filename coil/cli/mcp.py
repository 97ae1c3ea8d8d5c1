"""`coil mcp`: an index as MCP tools for an assistant."""

from __future__ import annotations

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

    make_server(given, writable=allow_changes).run("stdio")
