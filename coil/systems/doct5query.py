"""Document expansion (doc2query, docT5query): a model writes queries that a document answers, for BM25.

The model is any Hugging Face sequence-to-sequence model, or one that `fit` trains on the pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from coil.systems.bm25s import Bm25s
from coil.systems.fitting import fit_model, recipe_of_kind
from coil.systems.pytorch import check_device, model_folder, use_threads
from coil.systems.system import Say, TrainingData, option, silent
from coil.systems.written_queries import WrittenQueries
from coil.texts.values import Document
from coil.training.options import TrainingOptions

if TYPE_CHECKING:
    from coil.systems.query_sampling import Sampler, Sampling


@dataclass(frozen=True)
class DocT5Query(Bm25s):
    """BM25 over documents and the queries written for them."""

    needs_model: ClassVar[bool] = True

    name: str = "DocT5Query"
    model: str | None = None
    queries: int = option(10, "Number of queries generated per document.")
    top: int = option(10, "Sample each token from this many of the most likely ones.")
    longest: int = option(32, "Maximum length of a generated query in tokens.")
    length: int = option(256, "Maximum number of document tokens that are read.")
    seed: int = option(13, "Random seed for sampling.")
    at_once: int = option(32, "Number of documents per batch.")
    cache: str = option("", "Cache folder for generated queries (default: MODEL.queries).")
    device: str = option("cpu", "Where to generate: cpu or cuda.")
    threads: int = option(0, "Threads for generating; 0 uses every core.")

    def index_inputs(self) -> dict[str, Any]:
        """The options of the written queries, and those of BM25."""
        written = {name: getattr(self, name) for name in ("queries", "top", "longest", "length", "seed")}
        counted = {name: getattr(self, name) for name in ("k1", "b", "stemmer", "stopwords", "method")}
        return {"index": "doct5query", **written, **counted}

    def training_inputs(self) -> dict[str, Any]:
        """There is only one shape."""
        return {"train": "seq2seq"}

    def recipe(self, shared: TrainingOptions) -> TrainingOptions:
        """The shared recipe for this kind of model."""
        return recipe_of_kind(shared, "seq2seq", teacher="none")

    def fit(self, data: TrainingData, folder: Path, say: Say = silent) -> None:
        """Train a model that writes queries, in the shared loop."""
        fit_model(self.recipe(data.recipe), data, folder, say)

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Write queries for every document, then count the words of both."""
        super().index(self.expand(documents), folder)

    def expand(self, documents: Iterable[Document]) -> Iterator[Document]:
        """Each document with its queries appended to its text."""
        use_threads(self.threads)
        stream = iter(documents)
        while window := list(islice(stream, self.at_once)):
            read = [document for document in window if not document.is_empty]
            written = self._written.of(
                [document.text for document in read],
                lambda texts: self._sampler.write(texts, self._sampling),
            )
            added = dict(zip((document.doc_id for document in read), written, strict=True))
            for document in window:
                queries = added.get(document.doc_id, [])
                yield replace(document, text=" ".join([document.text, *queries]))

    @cached_property
    def _sampling(self) -> Sampling:
        from coil.systems.query_sampling import Sampling

        return Sampling(self.queries, self.top, self.longest, self.length, self.seed)

    @cached_property
    def _sampler(self) -> Sampler:
        from coil.systems.query_sampling import Sampler

        return Sampler(model_folder(self.model, self.name), check_device(self.device))

    @cached_property
    def _written(self) -> WrittenQueries:
        from coil.systems.query_sampling import fingerprint

        folder = model_folder(self.model, self.name)
        kept = Path(self.cache) if self.cache else folder.with_name(f"{folder.name}.queries")
        return WrittenQueries(kept, fingerprint(folder, self._sampling))
