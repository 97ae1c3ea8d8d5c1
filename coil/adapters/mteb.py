"""A search model for MTEB, which includes the BEIR retrieval tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from coil.errors import InputError, require
from coil.indexes.index import Index
from coil.indexes.opening import create
from coil.lists.precision import Precision
from coil.tokens.profile import By, check_by
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import DEFAULT
from coil.vectors.onnx_encoder import OnnxEncoder

require("mteb", "mteb")

from mteb.models.model_meta import ModelMeta  # noqa: E402

AT_ONCE = 64  # queries per batch


class CoilSearch:
    """Indexes the corpus of a task and answers its queries: `mteb.evaluate(CoilSearch(), tasks)`.

    `model` is as in `coil.create`; None is the bundled model. The index is built in a temporary folder, which
    is removed when the next corpus is indexed.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        by: By = "coil",
        precision: Precision = "int8",
        encoder: Encoder | None = None,
    ) -> None:
        self._encoder = encoder if encoder is not None else OnnxEncoder(model)
        self._name = Path(model).name if model is not None else DEFAULT
        self._by, self._precision = check_by(by), precision
        self._folder: TemporaryDirectory[str] | None = None
        self._index: Index | None = None

    @property
    def mteb_model_meta(self) -> ModelMeta:
        """The model metadata that MTEB saves with the results."""
        is_bundled = self._name == DEFAULT
        return ModelMeta(
            loader=None,
            name=f"coil-ir/{self._name}",
            revision=self._encoder.fingerprint,
            release_date=None,
            languages=["eng-Latn"] if is_bundled else None,
            n_parameters=None,
            memory_usage_mb=None,
            max_tokens=self._encoder.config.profile.document_length,
            embed_dim=None,
            license="apache-2.0" if is_bundled else None,
            open_weights=True,
            public_training_code=None,
            public_training_data=None,
            framework=["ONNX"],
            similarity_fn_name=None,
            use_instructions=False,
            training_datasets=None,
            model_type=["late-interaction"],
            experiment_kwargs={"by": self._by, "precision": self._precision},
        )

    def close(self) -> None:
        """Remove the index."""
        if self._index is not None:
            self._index.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._index = self._folder = None

    def index(self, corpus: Iterable[Mapping[str, Any]], **task: Any) -> None:
        """Index the corpus of a task: rows with id, text and optionally title."""
        self.close()
        self._folder = TemporaryDirectory(prefix="coil-mteb-", ignore_cleanup_errors=True)
        path = Path(self._folder.name) / "corpus.coil"
        self._index = create(path, precision=self._precision, encoder=self._encoder)
        self._index.add(_document(row) for row in corpus)

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Iterable[str]] | None = None,
        **task: Any,
    ) -> dict[str, dict[str, float]]:
        """query id → document id → score, for the `top_k` best documents, or for those in `top_ranked`."""
        if self._index is None:
            raise InputError("no corpus has been indexed", "call `index` before `search`")
        asked = {str(row["id"]): _query(row) for row in queries}
        if top_ranked is not None:
            return self._rerank(asked, top_ranked, top_k)
        found: dict[str, dict[str, float]] = {}
        names = list(asked)
        for begin in range(0, len(names), AT_ONCE):
            some = names[begin : begin + AT_ONCE]
            answers = self._index.search_many([asked[name] for name in some], top_k, by=self._by, plain=True)
            for name, hits in zip(some, answers, strict=True):
                found[name] = {hit.doc_id: hit.score for hit in hits}
        return found

    def _rerank(
        self, asked: Mapping[str, str], top_ranked: Mapping[str, Iterable[str]], top_k: int
    ) -> dict[str, dict[str, float]]:
        """Empty documents are not in the index; as candidates they score 0."""
        assert self._index is not None
        found = {}
        for name, query in asked.items():
            candidates = list(dict.fromkeys(map(str, top_ranked.get(name, ()))))
            there = [doc_id for doc_id in candidates if self._index.has(doc_id)]
            scores = {hit.doc_id: hit.score for hit in self._index.rerank(query, there, self._by)}
            scores |= {doc_id: 0.0 for doc_id in candidates if doc_id not in scores}
            found[name] = dict(list(scores.items())[:top_k])
        return found


def _document(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": str(row["id"]), "title": row.get("title") or "", "text": row.get("text") or ""}


def _query(row: Mapping[str, Any]) -> str:
    text = row.get("text")
    if not isinstance(text, str):
        raise InputError(
            f"the query {row['id']!r} is a {type(text).__name__}; expected a string",
            "choose a task with text queries; COIL supports neither conversations nor images",
        )
    instruction = row.get("instruction")
    return f"{text} {instruction}" if instruction else text
