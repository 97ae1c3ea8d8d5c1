"""Texts → ColBERT's token vectors, encoded in batches of equal length, returned in input order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coil.errors import WrongShape
from coil.systems.pytorch import batch_tokens, pad_ids
from coil.texts.values import Document
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.encoder import equal_batches, padded_length
from coil.vectors.late_interaction import LateInteractionModel, fill_up
from coil.vectors.model_files import TOKENIZER_FILE

_WINDOW = 1024  # documents that are sorted by length together


class ColBertEncoder:
    """The model of a folder on a device."""

    def __init__(self, folder: Path, device: str) -> None:
        self._folder, self._device = folder, torch.device(device)
        self._model = LateInteractionModel.from_pretrained(folder).to(self._device).eval()
        self._tokenizer = Tokenizer.from_file(folder / TOKENIZER_FILE)

    def check_width(self, width: int, index: Path) -> None:
        """Refuse an index whose vectors have another width: it belongs to another model."""
        if width and width != self._model.shape.n_t:
            raise WrongShape(
                f"{index} has vectors of width {width}, but the model in {self._folder} has width "
                f"{self._model.shape.n_t}",
                "search with the model that the index was built with",
            )

    def encode_query(self, text: str) -> NDArray[np.float32]:
        """The vectors of a query, [tokens, n_t], including mask tokens."""
        shape = self._model.shape
        [tokens] = self._tokenizer.cut([text], shape.query_length)
        return self._forward([fill_up(tokens.input_ids, shape.fill, self._tokenizer)])[0]

    def encode_documents(self, documents: Iterable[Document]) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """The ids and vectors [tokens, n_t] of documents, in order."""
        stream, length = iter(documents), self._model.shape.document_length
        while window := list(islice(stream, _WINDOW)):
            texts = [tokens.input_ids for tokens in self._tokenizer.cut([d.text for d in window], length)]
            found: list[NDArray[np.float32]] = [np.zeros((0, 0), np.float32)] * len(window)
            lengths = [padded_length(len(ids), length) for ids in texts]
            for batch in equal_batches(lengths, batch_tokens(self._device)):
                vectors = self._forward([texts[i] for i in batch])
                for place, of_text in zip(batch, vectors, strict=True):
                    found[place] = of_text
            yield from zip((document.doc_id for document in window), found, strict=True)

    @torch.inference_mode()
    def _forward(self, texts: list[NDArray[np.int32]]) -> list[NDArray[np.float32]]:
        ids, mask = pad_ids(texts, self._device)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            vectors, _ = self._model(ids, mask)
        rows = vectors.float().cpu().numpy()
        return [rows[row, : len(text)] for row, text in enumerate(texts)]
