"""The cross-encoder: one language model reads query and passage together and returns one score.

    s(q, d) = w · LM([CLS] q [SEP] d [SEP]) + b

It is the most accurate and the slowest model: nothing can be computed before the query is known.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coil.errors import OptionMismatch
from coil.vectors.backbone import BackboneModel, load_backbone
from coil.vectors.config import Pooling, load_shape, save_shape

SHAPE_FILE = "cross_encoder.json"


@dataclass(frozen=True)
class CrossEncoderShape:
    """Shape of a cross-encoder.

    `query_length`: tokens kept of a query; `length`: of both texts; `separator`: the token id between them.
    """

    pooling: Pooling
    query_length: int
    length: int
    separator: int

    def __post_init__(self) -> None:
        if self.query_length < 3 or self.length < self.query_length + 2:
            raise OptionMismatch(
                f"query_length is {self.query_length} and length {self.length}; a query needs at least 3 "
                "tokens and a passage 2 more",
                "raise --document-length",
            )


class CrossEncoder(BackboneModel):
    """A language model with a linear layer that returns one number."""

    def __init__(self, shape: CrossEncoderShape, backbone: nn.Module) -> None:
        super().__init__(backbone)
        self.shape = shape
        self.score = nn.Linear(self.width, 1)
        takes = inspect.signature(backbone.forward).parameters
        kinds = int(getattr(backbone.config, "type_vocab_size", None) or 0)
        self._typed = "token_type_ids" in takes and kinds > 1

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[None, Tensor]:
        """[batch, length] ids of pairs → scores [batch, 1], in place of sentence vectors."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if self._typed:  # 0 up to the first separator, then 1
            ended = (input_ids == self.shape.separator).long()
            inputs["token_type_ids"] = ((ended.cumsum(1) - ended) > 0).long() * attention_mask
        hidden = self.backbone(**inputs).last_hidden_state
        # In fp32, even if the language model runs in bfloat16, which is too coarse for ranking.
        with torch.autocast(hidden.device.type, enabled=False):
            pooled, mask = hidden[:, 0].float(), attention_mask.float()
            if self.shape.pooling == "mean":
                pooled = (hidden.float() * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
            return None, self.score(pooled)

    def save_pretrained(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write shape and weights; the caller copies the tokenizer."""
        self.save_weights(folder, dtype)
        save_shape(self.shape, folder / SHAPE_FILE)

    @classmethod
    def from_pretrained(cls, folder: Path) -> CrossEncoder:
        """Read what `save_pretrained` wrote."""
        shape = load_shape(CrossEncoderShape, folder / SHAPE_FILE, "a cross-encoder")
        model = cls(shape, load_backbone(folder))
        model.load_heads(folder, SHAPE_FILE)
        return model.float()


def join_pair(
    query: NDArray[np.int32], passage: NDArray[np.int32], suffix: Sequence[int], length: int
) -> NDArray[np.int32]:
    """A query with its special tokens, a passage without, truncated so that both fit, and its suffix."""
    room = max(0, length - len(query) - len(suffix))
    return np.concatenate([query, passage[:room], np.array(suffix, dtype=np.int32)]).astype(np.int32)
