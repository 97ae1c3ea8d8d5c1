"""A retriever component for Haystack."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from coil.adapters.source import Given, Passage, Retrieval, Source
from coil.errors import require
from coil.tokens.profile import By

require("haystack", "haystack")

from haystack import Document, component, default_from_dict, default_to_dict  # noqa: E402


@component
class CoilRetriever:
    """Retrieves documents from an index: an open one, a `coil.connect` client, a path or a server address.

    The `meta` of a document contains its fields plus doc_id, rank, score, share, chunk and context, and
    with `explain` the explanation. A saved pipeline contains the path or address of the index.
    """

    def __init__(
        self,
        index: Given,
        k: int = 10,
        by: By = "coil",
        filter: str | None = None,
        min_share: float | None = None,
        plain: bool = True,
        whole: bool = False,
        explain: bool = False,
    ) -> None:
        self.source = Source(index)
        self.retrieval = Retrieval(k, by, filter, min_share, plain, whole, explain)

    def to_dict(self) -> dict[str, Any]:
        """Serialize the component."""
        saved: dict[str, Any] = default_to_dict(self, index=self.source.address, **asdict(self.retrieval))
        return saved

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CoilRetriever:
        """Deserialize a component; its index is opened on first use."""
        made: CoilRetriever = default_from_dict(cls, data)
        return made

    def warm_up(self) -> None:
        """Open the index before the first query."""
        _ = self.source.index

    @component.output_types(documents=list[Document])
    def run(self, query: str, k: int | None = None, filter: str | None = None) -> dict[str, list[Document]]:
        """The best documents for a query; `k` and `filter` override the component's own."""
        return _answer(self.source.find(query, self.retrieval.but(k=k, filter=filter)))

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, k: int | None = None, filter: str | None = None
    ) -> dict[str, list[Document]]:
        """The same, in a separate thread."""
        how = self.retrieval.but(k=k, filter=filter)
        return _answer(await asyncio.to_thread(self.source.find, query, how))


def _answer(passages: Sequence[Passage]) -> dict[str, list[Document]]:
    found = [Document(id=of.doc_id, content=of.text, meta=of.metadata, score=of.score) for of in passages]
    return {"documents": found}
