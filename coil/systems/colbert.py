"""ColBERT: compares all tokens of a query with all tokens of a document (late interaction), exactly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coil.hits.top_k import top_k
from coil.systems.fitting import fit_model, recipe_of_kind
from coil.systems.pytorch import check_device, model_folder, use_threads
from coil.systems.system import Answered, Say, TrainingData, option, silent
from coil.texts.values import Document, Query
from coil.training.options import TrainingOptions

if TYPE_CHECKING:
    from coil.systems.colbert_encoder import ColBertEncoder


@dataclass(frozen=True)
class ColBert:
    """A unit vector for every token of every document; nothing is pruned or approximated."""

    needs_model: ClassVar[bool] = True

    name: str = "ColBERT"
    model: str | None = None
    n_t: int = option(64, "When trained: dimensions of the token vectors.")
    fill: int = option(
        32, "When trained: length to which shorter queries are padded with mask tokens; 0 disables it."
    )
    device: str = option("cpu", "Where to encode and score: cpu or cuda.")
    threads: int = option(0, "Threads for encoding and scoring; 0 uses every core.")

    def index_inputs(self) -> dict[str, Any]:
        """The index depends only on the model."""
        return {"index": "colbert"}

    def training_inputs(self) -> dict[str, Any]:
        """Only the shape."""
        return {"train": "colbert", "n_t": self.n_t, "fill": self.fill}

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe with the shape of this model."""
        return recipe_of_kind(shared, "colbert", n_t=self.n_t, n_c=0, fill=self.fill)

    def fit(self, data: TrainingData, folder: Path, say: Say = silent) -> None:
        """Train in the shared loop."""
        fit_model(self.recipe(data.recipe), data, folder, say)

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Encode all documents that have a text, truncated to the model's length."""
        from coil.systems.max_sim_index import write_vectors

        use_threads(self.threads)
        write_vectors(folder, self._encoder.encode_documents(d for d in documents if not d.is_empty))

    def search(self, queries: Sequence[Query], k: int, folder: Path) -> Iterator[Answered]:
        """Score every document for one query at a time."""
        from coil.systems.max_sim_index import MaxSimIndex

        use_threads(self.threads)
        index = MaxSimIndex.open(folder, check_device(self.device))
        self._encoder.check_width(index.vectors.shape[1], folder)
        for query in queries:
            began = time.perf_counter()
            vectors = self._encoder.encode_query(query.text)
            encoded = time.perf_counter()
            scores = index.scores(vectors)
            best = top_k(scores, k, without_zero=False)
            doc_ids = [index.doc_ids[place] for place in best.tolist()]
            parts = {"encode": encoded - began, "search": time.perf_counter() - encoded}
            times = {part: 1000 * seconds for part, seconds in parts.items()}
            yield Answered(query.query_id, doc_ids, scores[best].tolist(), times)

    @cached_property
    def _encoder(self) -> ColBertEncoder:
        from coil.systems.colbert_encoder import ColBertEncoder

        return ColBertEncoder(model_folder(self.model, self.name), check_device(self.device))
