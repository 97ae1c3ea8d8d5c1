"""The scores of a cross-encoder for a query with each of several texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coil.systems.pytorch import batch_tokens, pad_ids
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.cross_encoder import CrossEncoder, join_pair
from coil.vectors.encoder import equal_batches, padded_length
from coil.vectors.model_files import TOKENIZER_FILE


class PairScorer:
    """The model of a folder on a device."""

    def __init__(self, folder: Path, device: str) -> None:
        self._device = torch.device(device)
        self._model = CrossEncoder.from_pretrained(folder).to(self._device).eval()
        self._tokenizer = Tokenizer.from_file(folder / TOKENIZER_FILE)

    def scores(self, query: str, texts: Sequence[str]) -> NDArray[np.float32]:
        """The scores of the texts, [texts]; a text that does not fit with the query is truncated."""
        shape, tokenizer = self._model.shape, self._tokenizer
        [asked] = tokenizer.cut([query], shape.query_length)
        pairs = []
        for tokens in tokenizer.cut(texts, shape.length):
            bare = tokens.input_ids[tokens.first : tokens.first + len(tokens.spans)]
            pairs.append(join_pair(asked.input_ids, bare, tokenizer.suffix, shape.length))
        found = np.zeros(len(texts), dtype=np.float32)
        lengths = [padded_length(len(pair), shape.length) for pair in pairs]
        for batch in equal_batches(lengths, batch_tokens(self._device)):
            found[batch] = self._forward([pairs[i] for i in batch])
        return found

    @torch.inference_mode()
    def _forward(self, pairs: list[NDArray[np.int32]]) -> NDArray[np.float32]:
        ids, mask = pad_ids(pairs, self._device)
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._device.type == "cuda"):
            _, scores = self._model(ids, mask)
        return np.asarray(scores[:, 0].float().cpu().numpy(), dtype=np.float32)
