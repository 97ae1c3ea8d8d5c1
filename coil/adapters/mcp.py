"""An index as tools of the Model Context Protocol (MCP)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from inspect import getdoc
from typing import Annotated, Any

from coil import __version__
from coil.adapters.source import Given, Retrieval, Source, beside
from coil.errors import CoilError, InputError, OutputError, require
from coil.indexes.hits import tell_unknown
from coil.indexes.index import Index
from coil.remote.client import RemoteIndex
from coil.texts.records import MOST_LEVELS
from coil.texts.values import Document
from coil.tokens.profile import By

require("mcp.server.mcpserver", "mcp")

from mcp.server.mcpserver import MCPServer  # noqa: E402
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402
from mcp.types import Tool, ToolAnnotations  # noqa: E402
from pydantic import Field  # noqa: E402

MOST_HITS = 100
CHARACTERS = 20_000  # of a document's text, by default

_SYSTEM = (
    "The scoring system: coil (the model), tokens (without the sentence vector), bm25, dense (the sentence "
    "vector alone), hybrid (bm25 and the sentence vector)."
)
_Query = Annotated[str, Field(description="The query: a question, keywords or a sentence.")]
_By = Annotated[By, Field(description=_SYSTEM)]
_DocId = Annotated[str, Field(description="The id of a document, as returned by `search`.")]
_INSTRUCTIONS = (
    "Search a collection of documents. `search` finds passages, `document` returns the full text of a "
    "document, `explain` shows how much each word of a query contributed to its score."
)


def make_server(index: Given | Source, writable: bool = False) -> MCPServer:
    """A server with the tools search, explain and document, and if `writable` also add and delete."""
    source = index if isinstance(index, Source) else Source(index)
    server = _Server("coil", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
    tools = _Tools(source)
    reads = ToolAnnotations(read_only_hint=True, open_world_hint=False)
    changes = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)
    offered: list[tuple[Callable[..., dict[str, Any]], ToolAnnotations]] = [
        (tools.search, reads),
        (tools.explain, reads),
        (tools.document, reads),
    ]
    if writable:
        offered += [(tools.add, changes), (tools.delete, changes)]
    for tool, hints in offered:
        server.add_tool(tool, description=getdoc(tool), annotations=hints)
    return server


class _Server(MCPServer):
    """Refuses unknown arguments, which the SDK would ignore: they are most likely mistakes."""

    async def list_tools(self) -> list[Tool]:
        """The tools; their schemas say that there are no other arguments."""
        closed = {"additionalProperties": False}
        return [
            tool.model_copy(update={"input_schema": {**tool.input_schema, **closed}})
            for tool in await super().list_tools()
        ]

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """Called by the SDK for each call of a client."""
        for tool in await self.list_tools():
            if tool.name == name:
                with _told():
                    _check_arguments(name, arguments, tool.input_schema["properties"])
        return await super().call_tool(name, arguments, context)


def _check_arguments(tool: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise InputError(
                f"unknown argument {name[:80]!r} of {tool}", f"the arguments are {', '.join(known)}"
            )


class _Tools:
    """The tools; their docstrings are the descriptions that a language model sees."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._changing = threading.Lock()  # assistants call several tools at once; an index has one writer

    def search(
        self,
        query: _Query,
        k: Annotated[int, Field(ge=1, le=MOST_HITS, description="Number of passages.")] = 10,
        by: _By = "coil",
        filter: Annotated[
            str | None, Field(description='A condition on fields, such as: year >= 2020 and lang = "en".')
        ] = None,
        plain: Annotated[
            bool,
            Field(
                description='False: the query may have operators: +word and "a phrase" must be in the text, '
                "-word must not, field:word must be in the field."
            ),
        ] = True,
    ) -> dict[str, Any]:
        """Find the best passages for a query.

        Each passage has doc_id, score, share (the score divided by what the query's own text would score:
        near 1 the texts say the same, near 0 they have almost nothing in common), text, and the fields of its
        document. A field with one of these names, such as text, is returned as `field.text`. For a long
        document, only the best part is returned; use `document` for the rest.
        """
        with _told():
            found = self._source.find(query, Retrieval(k, by, filter, plain=plain))
            notes = [tell_unknown(found.unknown_fields)] if found.unknown_fields else []
            hits = []
            for of in found:
                fields = _readable(of.doc_id, of.metadata, notes)
                hits.append(beside(fields, {"text": of.text}, ("text",)))
            return {"hits": hits, **_noted(notes)}

    def explain(self, query: _Query, doc_id: _DocId, by: _By = "coil") -> dict[str, Any]:
        """Explain the score of a document for a query: what each word contributes, and where it was found.

        The parts sum to the score. Any document can be explained, not only search results.
        """
        with _told(), self._source.reading() as index:
            explained = index.explain(query, doc_id, by, plain=True)
            return {
                "doc_id": doc_id,
                "score": explained.score,
                "words": [{"word": of.query_token, "adds": of.contribution} for of in explained.matches],
                "sentence": explained.sentence,
                "table": str(explained),
            }

    def document(
        self,
        doc_id: _DocId,
        start: Annotated[int, Field(ge=0, description="Index of the first character to return.")] = 0,
        characters: Annotated[int, Field(ge=1, description="Number of characters to return.")] = CHARACTERS,
    ) -> dict[str, Any]:
        """Return the text and the fields of a document; read a long text in several calls."""
        with _told(), self._source.reading() as index:
            document, notes = index.document(doc_id), list[str]()
            fields = _readable(doc_id, document.fields, notes)
            return {
                "doc_id": doc_id,
                "text": document.text[start : start + characters],
                "start": start,
                "length": len(document.text),
                "fields": fields,
                **_noted(notes),
            }

    def add(
        self,
        doc_id: Annotated[str, Field(description="The id; an existing document with this id is replaced.")],
        text: Annotated[str, Field(description="The text.")],
        fields: Annotated[dict[str, Any] | None, Field(description="Other fields, such as a year.")] = None,
    ) -> dict[str, Any]:
        """Add a document, or replace the one with the same id. It is searchable when this returns.

        A document without text is not indexed: `empty` lists it, and a document with the same id is removed.
        """
        document = Document(doc_id, text, fields or {})
        with _told(), self._changing:
            added = _to_change(self._source).update([document])
            return {"added": added, "empty": [doc_id] if document.is_empty else []}

    def delete(
        self, doc_ids: Annotated[list[str], Field(description="The ids of the documents.")]
    ) -> dict[str, Any]:
        """Delete documents; returns how many of the ids existed."""
        with _told(), self._changing:
            return {"deleted": _to_change(self._source).delete(doc_ids)}


def _to_change(source: Source) -> Index | RemoteIndex:
    index = source.index
    if not isinstance(index, Index | RemoteIndex):
        raise OutputError(f"{source.address} is open for reading only", "pass an index from coil.open")
    return index


def _readable(doc_id: str, fields: dict[str, Any], notes: list[str]) -> dict[str, Any]:
    """The fields without those that are nested too deeply; a note names these.

    Only indexes made before there was a limit have such fields. The SDK's own client does not parse answers
    with 200 levels.
    """
    deep = [name for name, value in fields.items() if _is_deep(value)]
    if deep:
        names = ", ".join(f"{name[:80]!r}" for name in deep[:10])
        notes.append(
            f"the document {doc_id[:200]!r} has fields with more than {MOST_LEVELS} levels, which were left "
            f"out: {names}; to return them, replace it by one with flatter fields"
        )
    return {name: value for name, value in fields.items() if name not in deep}


def _is_deep(value: Any) -> bool:
    """Whether lists and dicts are nested in more than `MOST_LEVELS` levels."""
    level = [value]
    for _ in range(MOST_LEVELS + 1):
        nested = [of for of in level if isinstance(of, dict | list) and of]
        if not nested:
            return False
        level = [inner for of in nested for inner in (of.values() if isinstance(of, dict) else of)]
    return True


def _noted(notes: list[str]) -> dict[str, str]:
    return {"note": "\n".join(notes)} if notes else {}


@contextmanager
def _told() -> Iterator[None]:
    """Report errors to the language model, which can correct its call."""
    try:
        yield
    except CoilError as error:
        raise ToolError(str(error)) from error
