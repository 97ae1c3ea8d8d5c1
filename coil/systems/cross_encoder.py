"""A cross-encoder that reranks the candidates of another system: the language model reads every pair."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from coil.hits.top_k import top_k
from coil.systems.fitting import fit_model, recipe_of_kind
from coil.systems.pytorch import check_device, model_folder, use_threads
from coil.systems.system import Answered, Say, TrainingData, option, silent
from coil.texts.values import Document, Query
from coil.training.options import TrainingOptions

if TYPE_CHECKING:
    from coil.systems.pair_scorer import PairScorer


@dataclass(frozen=True)
class CrossEncoderReranker:
    """Reranks by reading each query together with each candidate."""

    needs_model: ClassVar[bool] = True

    name: str = "cross-encoder"
    model: str | None = None
    device: str = option("cpu", "Where to score: cpu or cuda.")
    threads: int = option(0, "Threads for scoring; 0 uses every core.")

    def training_inputs(self) -> dict[str, Any]:
        """There is only one shape."""
        return {"train": "cross-encoder"}

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe for this kind of model."""
        return recipe_of_kind(shared, "cross-encoder")

    def fit(self, data: TrainingData, folder: Path, say: Say = silent) -> None:
        """Train in the shared loop."""
        fit_model(self.recipe(data.recipe), data, folder, say)

    def rerank(
        self,
        queries: Sequence[Query],
        candidates: Mapping[str, Sequence[str]],
        documents: Mapping[str, Document],
    ) -> Iterator[Answered]:
        """All candidates of each query, by the score of the pair; ties keep the given order."""
        use_threads(self.threads)
        for query in queries:
            doc_ids = list(candidates[query.query_id])
            texts = [documents[doc_id].text for doc_id in doc_ids]
            began = time.perf_counter()
            scores = self._scorer.scores(query.text, texts) if texts else np.zeros(0, np.float32)
            best = top_k(scores, len(doc_ids), without_zero=False).tolist()
            took = 1000 * (time.perf_counter() - began)
            found = [doc_ids[place] for place in best]
            yield Answered(query.query_id, found, scores[best].tolist(), {"rerank": took})

    @cached_property
    def _scorer(self) -> PairScorer:
        from coil.systems.pair_scorer import PairScorer

        return PairScorer(model_folder(self.model, self.name), check_device(self.device))
