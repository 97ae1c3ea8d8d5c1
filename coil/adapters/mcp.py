"""An index as tools of the Model Context Protocol (MCP)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getdoc
from typing import Annotated, Any

from coil import __version__
from coil.adapters.source import Given, Retrieval, Source
from coil.errors import CoilError, OutputError, require
from coil.indexes.hits import tell_unknown
from coil.indexes.index import Index
from coil.remote.client import RemoteIndex
from coil.texts.values import Document
from coil.tokens.profile import By

require("mcp.server.mcpserver", "mcp")

from mcp.server.mcpserver import MCPServer  # noqa: E402
from mcp.server.mcpserver.exceptions import ToolError  # noqa: E402
from mcp.types import ToolAnnotations  # noqa: E402
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
    server = MCPServer("coil", instructions=_INSTRUCTIONS, version=__version__, log_level="WARNING")
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
        document. For a long document, only the best part is returned; use `document` for the rest.
        """
        with _told():
            found = self._source.find(query, Retrieval(k, by, filter, plain=plain))
            note = {"note": tell_unknown(found.unknown_fields)} if found.unknown_fields else {}
            return {"hits": [{**of.metadata, "text": of.text} for of in found], **note}

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
            document = index.document(doc_id)
            return {
                "doc_id": doc_id,
                "text": document.text[start : start + characters],
                "start": start,
                "length": len(document.text),
                "fields": document.fields,
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


@contextmanager
def _told() -> Iterator[None]:
    """Report errors to the language model, which can correct its call."""
    try:
        yield
    except CoilError as error:
        raise ToolError(str(error)) from error
