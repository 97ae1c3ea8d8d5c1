"""ColBERT's model: a unit vector for every token of a text, without lists and sentence vector.

    s(q, d) = Σ_i max_j v_i^q · v_j^d    over all tokens of both, [CLS] and [SEP] included

Short queries are padded with mask tokens, whose vectors are scored as well (ColBERT's query augmentation).
Unlike ColBERT, there are no marker tokens [Q] and [D], and punctuation in documents is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coil.errors import OptionMismatch, TokenizerMismatch
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.backbone import BackboneModel, load_backbone
from coil.vectors.config import WIDEST, load_shape, save_shape

SHAPE_FILE = "colbert.json"


@dataclass(frozen=True)
class LateInteractionShape:
    """Width of the vectors, maximum lengths in tokens, and length to which queries are padded (0: none)."""

    n_t: int
    query_length: int
    document_length: int
    fill: int

    def __post_init__(self) -> None:
        if not 0 < self.n_t <= WIDEST:
            raise OptionMismatch(f"n_t is {self.n_t}; expected a number from 1 to {WIDEST:,}")
        if min(self.query_length, self.document_length) < 3 or self.fill < 0:
            raise OptionMismatch("lengths must be at least 3 tokens, and fill at least 0")


class LateInteractionModel(BackboneModel):
    """LM(text) → v_i = (W LM(text, i) + b) / ‖·‖ for every token."""

    def __init__(self, shape: LateInteractionShape, backbone: nn.Module) -> None:
        super().__init__(backbone)
        self.shape = shape
        self.tok_proj = nn.Linear(self.width, shape.n_t)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, None]:
        """[batch, length] ids → token vectors [batch, length, n_t]; there are no sentence vectors."""
        hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        # In fp32: vectors in bfloat16 would not have unit length.
        return nn.functional.normalize(self.tok_proj(hidden).float(), dim=-1), None

    def save_pretrained(self, folder: Path, dtype: torch.dtype = torch.float32) -> None:
        """Write shape and weights; the caller copies the tokenizer."""
        self.save_weights(folder, dtype)
        save_shape(self.shape, folder / SHAPE_FILE)

    @classmethod
    def from_pretrained(cls, folder: Path) -> LateInteractionModel:
        """Read what `save_pretrained` wrote."""
        shape = load_shape(LateInteractionShape, folder / SHAPE_FILE, "a ColBERT model")
        model = cls(shape, load_backbone(folder))
        model.load_heads(folder, SHAPE_FILE)
        return model.float()


def fill_up(ids: NDArray[np.int32], fill: int, tokenizer: Tokenizer) -> NDArray[np.int32]:
    """The tokens of a query, padded with mask tokens to a length."""
    missing = fill - len(ids)
    if missing <= 0:
        return ids
    mask = tokenizer.mask_id
    if mask is None:
        raise TokenizerMismatch(
            f"{tokenizer.where} has no mask token to pad queries with",
            "set --fill 0, or use another model",
        )
    return np.concatenate([ids, np.full(missing, mask, dtype=np.int32)])
