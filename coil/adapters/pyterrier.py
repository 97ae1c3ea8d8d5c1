"""Transformers for PyTerrier: a retriever and a reranker. Neither needs Java."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace

from coil.adapters.source import Given, Retrieval, Source
from coil.errors import InputError, require
from coil.hits.hit import Hit
from coil.indexes.reader import IndexReader
from coil.tokens.profile import By, check_by

require("pyterrier", "pyterrier")

import pandas as pd  # noqa: E402
import pyterrier as pt  # noqa: E402

AT_ONCE = 64  # queries per batch


class CoilRetriever(pt.Transformer):
    """Retrieves the k best documents for each query, with docno, score and rank.

    `texts` adds a text column, for rerankers that need the text. The columns of the queries are kept.
    """

    def __init__(
        self,
        index: Given,
        k: int = 1000,
        by: By = "coil",
        filter: str | None = None,
        plain: bool = True,
        texts: bool = False,
    ) -> None:
        self._source = Source(index)
        self._how = Retrieval(k, by, filter, plain=plain)
        self._texts = texts

    def __repr__(self) -> str:
        how = self._how
        filtered = f", filter={how.filter!r}" if how.filter is not None else ""
        return f"CoilRetriever({self._source.address!r}, k={how.k}, by={how.by!r}{filtered})"

    def fuse_rank_cutoff(self, k: int) -> CoilRetriever:
        """The same retriever with at most k results, for `retriever % k`."""
        cut = copy(self)  # which shares the source, and so the open index
        cut._how = self._how if k >= self._how.k else replace(self._how, k=k)
        return cut

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Retrieve results for a frame of queries."""
        pt.validate.query_frame(inp, extra_columns=["query"])
        columns = ["docno", "score", "rank", *(["text"] if self._texts else [])]
        rows: list[int] = []
        found: list[tuple[object, ...]] = []
        for row, hits in enumerate(self._answers(inp["query"].tolist())):
            for place, hit in enumerate(hits, start=pt.model.FIRST_RANK):
                rows.append(row)
                found.append((hit.doc_id, hit.score, place, *([hit.text] if self._texts else [])))
        kept = inp.drop(columns=columns, errors="ignore").iloc[rows].reset_index(drop=True)
        return kept.assign(**_columns(columns, found))

    def _answers(self, queries: Sequence[str]) -> Iterator[Sequence[Hit]]:
        how = self._how
        with self._source.reading() as index:
            for begin in range(0, len(queries), AT_ONCE):
                some = queries[begin : begin + AT_ONCE]
                yield from index.search_many(some, how.k, filter=how.filter, by=how.by, plain=how.plain)


class CoilReranker(pt.Transformer):
    """Rescores the results of any system, as in `bm25 % 100 >> CoilReranker(index)`.

    The scores equal those of a search. Results whose documents are not in the index are dropped with a
    warning.
    """

    def __init__(self, index: Given, by: By = "coil") -> None:
        self._source, self._by = Source(index), check_by(by)

    def __repr__(self) -> str:
        return f"CoilReranker({self._source.address!r}, by={self._by!r})"

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """Rerank a frame of results."""
        pt.validate.result_frame(inp, extra_columns=["query"])
        with self._source.reading() as index:
            if not isinstance(index, IndexReader):
                raise InputError(
                    f"{self._source.address} is a server, and servers do not rerank",
                    "pass the path of the index",
                )
            return self._rerank(inp, index)

    def _rerank(self, inp: pd.DataFrame, index: IndexReader) -> pd.DataFrame:
        wanted = list(dict.fromkeys(inp["docno"].tolist()))
        missing = {doc_id for doc_id in wanted if not index.has(doc_id)}
        if missing:
            _tell_missing(missing, len(wanted), self._source.address)
            inp = inp[~inp["docno"].isin(missing)]
        groups = inp.reset_index(drop=True).groupby("qid", sort=False).indices
        frame = inp.drop(columns=["score", "rank"], errors="ignore").reset_index(drop=True)
        order: list[int] = []
        found: list[tuple[object, ...]] = []
        of_queries = list(groups.values())
        for begin in range(0, len(of_queries), AT_ONCE):
            some = of_queries[begin : begin + AT_ONCE]
            queries = [frame["query"].iloc[places[0]] for places in some]
            doc_ids = [frame["docno"].iloc[places].tolist() for places in some]
            for places, ids, hits in zip(
                some, doc_ids, index.rerank_many(queries, doc_ids, self._by), strict=True
            ):
                place_of = dict(zip(ids, places, strict=True))
                for rank, hit in enumerate(hits, start=pt.model.FIRST_RANK):
                    order.append(place_of[hit.doc_id])
                    found.append((hit.score, rank))
        return frame.iloc[order].reset_index(drop=True).assign(**_columns(["score", "rank"], found))


def _columns(names: Sequence[str], rows: Sequence[tuple[object, ...]]) -> dict[str, pd.Series]:
    """Columns by name, with the same types whether or not there are rows."""
    kinds = {"score": "float64", "rank": "int64"}
    return {
        name: pd.Series([row[place] for row in rows], dtype=kinds.get(name, "object"))
        for place, name in enumerate(names)
    }


def _tell_missing(missing: set[str], wanted: int, address: str) -> None:
    shown = ", ".join(repr(doc_id) for doc_id in sorted(missing)[:3]) + (" …" if len(missing) > 3 else "")
    if len(missing) == wanted:
        raise InputError(
            f"{address} has none of the {wanted:,} candidates, such as {shown}",
            "check that the candidates come from the indexed collection; ids are case-sensitive",
        )
    warnings.warn(f"dropped results that are not in {address}: {shown}", stacklevel=4)
