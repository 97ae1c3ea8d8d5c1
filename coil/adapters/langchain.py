"""A retriever for LangChain."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from coil.adapters.source import Given, Passage, Retrieval, Source, check_options
from coil.errors import require
from coil.tokens.profile import By

require("langchain_core", "langchain")

from langchain_core.documents import Document  # noqa: E402
from langchain_core.retrievers import BaseRetriever  # noqa: E402
from pydantic import PrivateAttr, field_serializer  # noqa: E402


class CoilRetriever(BaseRetriever):
    """Retrieves documents from an index: an open one, a `coil.connect` client, a path or a server address.

    All search options can be overridden per call: `retriever.invoke("a query", k=3)`. The metadata of a
    document contain its fields plus doc_id, rank, score, share, chunk and context, and with `explain` the
    explanation.
    """

    index: Any
    k: int = 10
    by: By = "coil"
    filter: str | None = None
    min_share: float | None = None
    plain: bool = True
    whole: bool = False
    explain: bool = False

    _source: Source = PrivateAttr()

    def __init__(self, index: Given, **options: Any) -> None:
        check_options(options, type(self).model_fields)
        super().__init__(index=index, **options)

    def model_post_init(self, context: Any) -> None:
        """Validate the options immediately rather than on the first query."""
        super().model_post_init(context)
        self._source = Source(self.index)
        self._retrieval()

    @field_serializer("index")
    def _address(self, index: Any) -> str:
        return self._source.address

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Whether `langchain_core.load.dumps` supports it; the index is saved by its path or address."""
        return True

    @classmethod
    def get_lc_namespace(cls) -> list[str]:
        """Where `langchain_core.load.loads` finds the class."""
        return cls.__module__.split(".")

    @property
    def lc_attributes(self) -> dict[str, Any]:
        """The values that are saved instead of an open index."""
        return {"index": self._source.address}

    def _retrieval(self) -> Retrieval:
        return Retrieval(self.k, self.by, self.filter, self.min_share, self.plain, self.whole, self.explain)

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **changes: Any) -> list[Document]:
        return _documents(self._source.find(query, self._retrieval().but(**changes)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **changes: Any
    ) -> list[Document]:
        found = asyncio.to_thread(self._source.find, query, self._retrieval().but(**changes))
        return _documents(await found)


def _documents(passages: Sequence[Passage]) -> list[Document]:
    return [Document(id=of.doc_id, page_content=of.text, metadata=of.metadata) for of in passages]
