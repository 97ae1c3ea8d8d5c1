"""`coil mcp`: an index as tools for an assistant."""

from __future__ import annotations

import click

from coil.adapters.source import Source
from coil.indexes.opening import open_index


@click.command("mcp")
@click.argument("index")
@click.option("--allow-changes", is_flag=True, help="Also offer tools that add and delete documents.")
@click.option("--model", metavar="FOLDER", help="The index's model folder, if it has moved.")
def command(index: str, allow_changes: bool, model: str | None) -> None:
    """Offer an index as tools of the Model Context Protocol (MCP), over standard input and output.

    INDEX is the folder of an index, or the address of a server (http://127.0.0.1:8080). An assistant that
    speaks MCP starts this command by itself and then has the tools search, explain and document. They only
    read; --allow-changes adds the tools add and delete. What other processes change is seen at once. Needs
    the mcp extra.

    \b
    What to put into the configuration of an assistant:
      {"mcpServers": {"notes": {"command": "coil", "args": ["mcp", "/home/me/notes.coil"]}}}
    """
    given = Source(index).index if model is None else open_index(index, model=model)
    from coil.adapters.mcp import make_server  # takes seconds: what is wrong with the index is told first

    make_server(given, writable=allow_changes).run("stdio")
