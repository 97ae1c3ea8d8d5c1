"""`coil mcp` as an assistant sees it: the SDK's own client, over the standard streams of a real process."""

from __future__ import annotations

import asyncio
import json
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from coil.cli.mcp import _whole_characters
from coil.indexes.opening import create, open_index
from coil.service.limits import ServiceOptions
from tests.serving import TOKEN, running

pytest.importorskip("mcp.server.mcpserver")

Call = Callable[..., Awaitable[Any]]
ADDED = {"added": 1, "empty": []}
COMMAND = [sys.executable, "-m", "coil.cli.main", "mcp"]
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "x", "version": "1"},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mcp") / "notes.coil"
    with create(folder) as index:
        index.add(
            [
                {"id": "river", "text": "The bank of the river was steep.", "year": 2020},
                {"id": "money", "text": "The bank raised its interest rates.", "year": 2023},
            ]
        )
    return folder


def talk(arguments: list[str], conversation: Callable[[Any, Call], Awaitable[None]]) -> None:
    """Start the command as an assistant does, and talk to it; `Call` gives what a tool answers."""
    from mcp import Client, StdioServerParameters, stdio_client

    async def main() -> None:
        server = StdioServerParameters(command=COMMAND[0], args=[*COMMAND[1:], *arguments])
        async with Client(stdio_client(server), read_timeout_seconds=120) as client:

            async def call(tool: str, **given: Any) -> Any:
                answer = await client.call_tool(tool, given)
                text = "\n".join(part.text for part in answer.content)
                return text if answer.is_error else answer.structured_content

            await conversation(client, call)

    asyncio.run(main())


def test_an_assistant_reads(folder: Path) -> None:
    index = open_index(folder)

    async def conversation(client: Any, call: Call) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == ["document", "explain", "search"]
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert tools["search"].description.startswith("Find the best passages")
        assert "\n    " not in tools["search"].description
        assert tools["search"].input_schema["required"] == ["query"]

        hits = (await call("search", query="steep river", k=1))["hits"]
        [hit] = index.search("steep river", k=1, plain=True)
        assert [(of["doc_id"], of["score"], of["text"], of["year"]) for of in hits] == [
            (hit.doc_id, hit.score, hit.text, 2020)
        ]
        filtered = await call("search", query="bank", filter="year > 2021", by="bm25")
        assert [of["doc_id"] for of in filtered["hits"]] == ["money"]
        mistaken = await call("search", query="bank", filter="yaer > 2021")
        assert mistaken == {"hits": [], "note": "no document has the field 'yaer'"}
        operated = await call("search", query="bank -river", plain=False)
        assert [of["doc_id"] for of in operated["hits"]] == ["money"]

        explained = await call("explain", query="steep bank bank", doc_id="river")
        words = explained["words"]
        assert [of["word"] for of in words] == ["steep", "bank", "bank"]
        parts = sum(of["adds"] for of in words) + explained["sentence"]
        assert parts == pytest.approx(explained["score"], abs=1e-6)
        assert explained["table"] == str(index.explain("steep bank bank", "river"))

        part = await call("document", doc_id="river", start=4, characters=4)
        assert (part["text"], part["length"], part["fields"]) == ("bank", 32, {"year": 2020})

        assert "no document has the id 'nowhere'" in await call("document", doc_id="nowhere")
        assert "try: write for example" in await call("search", query="bank", filter="year >")
        assert "less than or equal to 100" in await call("search", query="bank", k=1000)
        assert "add" in await call("add", doc_id="x", text="y")  # there is no such tool

        with open_index(folder) as another:
            another.add([{"id": "otter", "text": "Otters sleep in the reeds."}])
        assert (await call("search", query="otters", k=1))["hits"][0]["doc_id"] == "otter"
        with open_index(folder) as another:
            another.delete(["otter"])

    talk([str(folder)], conversation)


def test_an_assistant_sees_an_index_that_was_rebuilt(folder: Path, tmp_path: Path) -> None:
    rebuilt = tmp_path / "notes.coil"
    shutil.copytree(folder, rebuilt)

    async def conversation(_: Any, call: Call) -> None:
        assert (await call("search", query="bank", k=1))["hits"]
        shutil.rmtree(rebuilt)
        with create(rebuilt) as index:
            index.add([{"id": "otter", "text": "Otters sleep on the bank."}])
        assert [of["doc_id"] for of in (await call("search", query="bank"))["hits"]] == ["otter"]
        assert (await call("explain", query="bank", doc_id="otter"))["score"] > 0
        assert (await call("document", doc_id="otter"))["text"] == "Otters sleep on the bank."
        assert await call("add", doc_id="new", text="Kingfishers dive.") == ADDED
        assert (await call("search", query="kingfisher", k=1))["hits"][0]["doc_id"] == "new"

    talk([str(rebuilt), "--allow-changes"], conversation)


def test_an_assistant_writes_only_where_that_is_allowed(folder: Path) -> None:
    async def conversation(client: Any, call: Call) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert sorted(tools) == ["add", "delete", "document", "explain", "search"]
        assert tools["delete"].annotations.destructive_hint
        assert await call("add", doc_id="new", text="Kingfishers dive.", fields={"year": 2025}) == ADDED
        assert (await call("search", query="kingfisher", k=1))["hits"][0]["doc_id"] == "new"
        assert await call("delete", doc_ids=["new", "nowhere"]) == {"deleted": 1}

    talk([str(folder), "--allow-changes"], conversation)
    with open_index(folder) as index:
        assert "new" not in index


def test_an_assistant_is_told_of_a_document_without_text(folder: Path) -> None:
    async def conversation(_: Any, call: Call) -> None:
        assert await call("add", doc_id="new", text="Kingfishers dive.") == ADDED
        assert await call("add", doc_id="new", text=" \n") == {"added": 0, "empty": ["new"]}
        assert "no document has the id" in await call("document", doc_id="new")

    talk([str(folder), "--allow-changes"], conversation)


def test_an_assistant_may_change_several_documents_at_once(folder: Path) -> None:
    async def conversation(_: Any, call: Call) -> None:
        names = [f"new{n}" for n in range(6)]
        added = await asyncio.gather(*(call("add", doc_id=name, text="Kingfishers dive.") for name in names))
        assert added == [ADDED] * 6
        deleted = await asyncio.gather(*(call("delete", doc_ids=[name]) for name in names))
        assert deleted == [{"deleted": 1}] * 6

    talk([str(folder), "--allow-changes"], conversation)


def test_an_assistant_changes_a_server_with_its_token(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)

    async def conversation(_: Any, call: Call) -> None:
        assert await call("add", doc_id="new", text="Kingfishers dive.") == ADDED
        assert await call("delete", doc_ids=["new"]) == {"deleted": 1}

    with running([folder], ServiceOptions(token=TOKEN)) as server:
        talk([server.url, "--allow-changes", "--token-file", str(tmp_path / "token")], conversation)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["http://127.0.0.1:1", "--model", "m"], "--model was given with the address of a server"),
        (["notes.coil", "--token-file", "token"], "--token-file was given with an index folder"),
    ],
)
def test_options_that_do_not_fit_the_index_are_refused(given: list[str], told: str) -> None:
    done = subprocess.run([*COMMAND, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert told in done.stderr


def test_a_missing_index_ends_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [*COMMAND, str(tmp_path / "none.coil")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no index" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("sent", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
@pytest.mark.parametrize("has_begun", [False, True])
def test_one_signal_ends_it(folder: Path, sent: str, status: int, has_begun: bool) -> None:
    """While standard input is open, and nothing comes from there."""
    begin = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler); "
    begin += "runpy.run_module('coil.cli.main', run_name='__main__')"
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", begin, "mcp", str(folder)], stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(json.dumps(HELLO) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            if has_begun:
                process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n{"jso')
                process.stdin.flush()
            process.send_signal(getattr(signal, sent))
            assert process.wait(30) == status
            told = process.stderr.read()
            assert told.strip().splitlines()[-1].startswith("coil: ")
            assert "Traceback" not in told
        finally:
            process.kill()


def test_a_cut_emoji_in_a_call_is_answered(folder: Path) -> None:
    """The SDK drops a line with a lone surrogate: an assistant waited forever."""
    asked = [
        r"steep \ud83d",
        r"steep \ud83d\ude00",
        r"\ude00\ud83d steep",
        r"steep \\ud83d",
        r"steep \\\ud83d\"",
        r"steep \ud83d\ud83d\ude00",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, str(folder)], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(HELLO) + "\n")
            process.stdin.write('{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            for number, query in enumerate(asked, 2):
                call = f'{{"name": "search", "arguments": {{"query": "{query}", "k": 1}}}}'
                message = f'{{"jsonrpc": "2.0", "id": {number}, "method": "tools/call", "params": {call}}}\n'
                process.stdin.write(message)
                process.stdin.flush()
                if not select.select([process.stdout], [], [], 30)[0]:
                    pytest.fail(f"no answer to {query}")
                answer = json.loads(process.stdout.readline())
                assert answer["id"] == number
                assert "river" in json.dumps(answer["result"])
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (rb"a \ud83d b", rb"a \ufffd b"),
        (rb"\uD83D\uDE00", rb"\uD83D\uDE00"),
        (rb"\ude00\ud83d", rb"\ufffd\ufffd"),
        (rb"\\ud83d", rb"\\ud83d"),
        (rb"\\\ud83d", rb"\\\ufffd"),
        (rb"\ud83d\ud83d\ude00", rb"\ufffd\ud83d\ude00"),
        (rb"\u00e9\n\"\\", rb"\u00e9\n\"\\"),
        ("é😀 \\".encode(), "é😀 \\".encode()),
    ],
)
def test_lone_surrogates_are_replaced_and_nothing_else(line: bytes, whole: bytes) -> None:
    assert _whole_characters(line) == whole
