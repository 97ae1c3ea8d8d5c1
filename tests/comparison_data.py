"""A collection small enough to compare systems on in a test, and systems that misbehave."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coil.systems.system import Answered, option
from coil.texts.values import Document, Query

TEXTS = {
    "d1": "The bank of the river was steep and the water was deep.",
    "d2": "The bank lends money at a low rate of interest.",
    "d3": "A cabinet of oak stood in the kitchen.",
    "d4": "The cabinet of the government met the minister.",
    "d5": "The mountain pass was closed because of snow.",
    "d6": "Show your boarding pass at the airport lounge.",
    "d7": "Money in an account earns interest.",
    "d8": "Deep water flows slowly in this river.",
}
QUERIES = {
    "q1": "river bank",
    "q2": "interest rate of a bank",
    "q3": "kitchen cabinet",
    "q4": "mountain pass",
    "q5": "zebra",
    "unjudged": "nobody judged this",
}
QRELS = {
    "q1": {"d1": 2, "d8": 1, "d2": 0},
    "q2": {"d2": 1, "d7": 1},
    "q3": {"d3": 1},
    "q4": {"d5": 1},
    "q5": {"d6": 1},
}


def write_beir(folder: Path, qrels: Mapping[str, Mapping[str, int]] = QRELS) -> Path:
    """The collection as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    lines = (json.dumps({"_id": doc_id, "text": text}) + "\n" for doc_id, text in TEXTS.items())
    (folder / "corpus.jsonl").write_text("".join(lines))
    lines = (json.dumps({"_id": query_id, "text": text}) + "\n" for query_id, text in QUERIES.items())
    (folder / "queries.jsonl").write_text("".join(lines))
    rows = (f"{q}\t{d}\t{r}\n" for q, judged in qrels.items() for d, r in judged.items())
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(rows))
    return folder


CALLS: list[str] = []
"""What the systems below were asked to do, one entry a call or query."""


@dataclass(frozen=True)
class Counting:
    """Finds documents in their order, counts what it is asked, and may stop in the middle or lie."""

    name: str = "counting"
    stop_at: str = option("", "The query at which it is interrupted.")
    lie: str = option("", "What is wrong with its answers.")
    finds: int = option(3, "How many documents it finds.")

    def index_inputs(self) -> dict[str, Any]:
        """Of no option."""
        return {"index": "counting"}

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Keep the ids."""
        CALLS.append("index")
        (folder / "ids.json").write_text(json.dumps([document.doc_id for document in documents]))

    def search(self, queries: Sequence[Query], k: int, folder: Path) -> Iterator[Answered]:
        """The same documents for every query."""
        ids = json.loads((folder / "ids.json").read_text())[: min(k, self.finds)]
        for query in queries:
            if query.query_id == self.stop_at and "go on" not in CALLS:
                raise KeyboardInterrupt
            CALLS.append(query.query_id)
            yield self._answer(query, ids)

    def rerank(
        self,
        queries: Sequence[Query],
        candidates: Mapping[str, Sequence[str]],
        documents: Mapping[str, Document],
    ) -> Iterator[Answered]:
        """The longest text first."""
        for query in queries:
            CALLS.append(f"rerank {query.query_id}")
            ids = candidates[query.query_id]
            best = sorted(ids, key=lambda doc_id: (-len(documents[doc_id].text), doc_id))
            yield Answered(
                query.query_id, best, [float(len(documents[doc_id].text)) for doc_id in best], {"rerank": 2.0}
            )

    def _answer(self, query: Query, ids: list[str]) -> Answered:
        scores = [float(-number) for number in range(len(ids))]
        lies: dict[str, Answered] = {
            "query": Answered("other", ids, scores, {"search": 1.0}),
            "lengths": Answered(query.query_id, ids, scores[1:], {"search": 1.0}),
            "twice": Answered(query.query_id, ids[:1] * 3, scores, {"search": 1.0}),
            "nan": Answered(query.query_id, ids, [float("nan")] * len(ids), {"search": 1.0}),
            "rising": Answered(query.query_id, ids, scores[::-1], {"search": 1.0}),
            "timeless": Answered(query.query_id, ids, scores, {}),
        }
        return lies.get(self.lie, Answered(query.query_id, ids, scores, {"search": 1.0}))
