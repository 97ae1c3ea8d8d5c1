"""A retriever for LlamaIndex."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from coil.adapters.source import OWN_KEYS, Given, Passage, Retrieval, Source
from coil.errors import require
from coil.tokens.profile import By

require("llama_index.core", "llama-index")

from llama_index.core.base.base_retriever import BaseRetriever  # noqa: E402
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode  # noqa: E402


class CoilRetriever(BaseRetriever):
    """Retrieves nodes from an index: an open one, a `coil.connect` client, a path or a server address.

    The metadata of a node contain the fields of its document plus doc_id, rank, score, share, chunk and
    context, and with `explain` the explanation. Language models and embeddings see only the fields.
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
        **options: Any,
    ) -> None:
        """`options` are passed to the base class of LlamaIndex, such as callback_manager."""
        self.source = Source(index)
        self.retrieval = Retrieval(k, by, filter, min_share, plain, whole, explain)
        super().__init__(**options)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self.source.find(query_bundle.query_str, self.retrieval))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await asyncio.to_thread(self.source.find, query_bundle.query_str, self.retrieval))


def _nodes(passages: Sequence[Passage]) -> list[NodeWithScore]:
    hidden = list(OWN_KEYS)
    return [
        NodeWithScore(
            node=TextNode(
                id_=of.doc_id,
                text=of.text,
                metadata=of.metadata,
                excluded_llm_metadata_keys=hidden,
                excluded_embed_metadata_keys=hidden,
            ),
            score=of.score,
        )
        for of in passages
    ]
