"""What an assistant does with `coil mcp`. Requires: pip install 'coil-ir[mcp]'"""

import asyncio
import sys
import tempfile
from pathlib import Path

from mcp import Client, StdioServerParameters, stdio_client

import coil

NOTES = [
    {"id": "river", "text": "The bank of the river was steep, and kingfishers nested in it."},
    {"id": "money", "text": "The bank raised its interest rates in March."},
]


async def talk(path: Path) -> None:
    """Start the server as a subprocess and call its tools."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "coil.cli.main", "mcp", str(path)])
    async with Client(stdio_client(server)) as client:
        print("tools:", [tool.name for tool in (await client.list_tools()).tools])
        found = await client.call_tool("search", {"query": "where do kingfishers nest?", "k": 1})
        [hit] = found.structured_content["hits"]
        print(f"found: {hit['doc_id']}: {hit['text']}")
        why = await client.call_tool("explain", {"query": "kingfishers nest", "doc_id": hit["doc_id"]})
        print(why.structured_content["table"])


with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "notes.coil"
    with coil.create(path) as index:
        index.add(NOTES)
    asyncio.run(talk(path))
