"""Principal directions: initial projections that preserve what the language model already knows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from coil.errors import OptionMismatch
from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import wrap
from coil.training.grad_cache import CachedTexts, Forward, lay_out
from coil.training.matching import EncodingModel
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.vectors.torch_model import CoilModel

_SAMPLE = 2048  # number of queries, and of passages, that the directions are computed from
_AT_ONCE = 256  # texts whose states are kept in memory at a time


@torch.no_grad()
def start_at_principal_directions(
    model: EncodingModel, data: PairData, options: TrainingOptions, tokenizer: Tokenizer, device: torch.device
) -> None:
    """Initialize the projections for which the options say so, from a sample of the texts.

    Sentences: the n_c leading principal directions give the best approximation, in n_c dimensions, of all
    products of the language model's own pooled vectors. Tokens: the n_t leading principal directions of the
    states of words around their mean, scaled so that a word's vector has length 1 on average; β then
    determines how much the context can change a match.
    """
    rng = np.random.default_rng([options.seed, 5])
    model.eval()
    pooled = _PooledVectors()
    words = _WordStates()
    for side, store in enumerate((data.queries, data.passages)):
        chosen = np.sort(rng.choice(len(store), size=min(_SAMPLE, len(store)), replace=False))
        for block in np.array_split(chosen, max(1, len(chosen) // _AT_ONCE)):
            texts = [wrap(store[int(i)], tokenizer, options.lengths[side]) for i in block]
            layout = lay_out(texts)
            states = CachedTexts(texts, layout, _states(model), options.micro_batch_tokens, device)
            assert states.vectors is not None
            if states.sentences is not None:
                pooled.add(states.sentences, 1.0 / len(chosen))
            words.add(states.vectors)
    if isinstance(model, CoilModel) and model.cls_proj is not None and options.sentence_init == "principal":
        directions = _leading(pooled.moment, options.n_c, "n-c")
        _set(model.cls_proj, directions, torch.zeros(options.n_c))
    if model.tok_proj is not None and options.token_init == "principal":
        covariance = words.covariance()
        directions = _leading(covariance, options.n_t, "n-t")
        directions /= (directions @ covariance @ directions.T).trace().sqrt()
        _set(model.tok_proj, directions, -directions @ words.mean())


def _states(model: EncodingModel) -> Forward:
    """The language model's own states in place of token vectors, and its pooled vector."""

    def run(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        hidden = model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden, model.pool(hidden, mask) if isinstance(model, CoilModel) else None

    return run


class _PooledVectors:
    """The second moment of pooled vectors."""

    def __init__(self) -> None:
        self.moment = torch.zeros(())  # [width, width] after the first vector

    def add(self, vectors: Tensor, share: float) -> None:
        exact = vectors.detach().double().cpu()
        self.moment = self.moment + share * exact.T @ exact


class _WordStates:
    """Moments of the states of words."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._moment = torch.zeros(())

    def add(self, states: Tensor) -> None:
        exact = states.detach().double().cpu()  # [mentions, width]
        self._count += len(exact)
        self._sum = self._sum + exact.sum(0)
        self._moment = self._moment + exact.T @ exact

    def mean(self) -> Tensor:
        return self._sum / self._count

    def covariance(self) -> Tensor:
        """The covariance of the states, [width, width]."""
        return self._moment / self._count - torch.outer(self.mean(), self.mean())


def _leading(moment: Tensor, number: int, option: str) -> Tensor:
    """The leading eigenvectors, [number, width]."""
    width = len(moment)
    if number > width:
        raise OptionMismatch(
            f"the language model has {width} dimensions, so {number} principal directions are not available",
            f"set --{option} to at most {width}",
        )
    directions: Tensor = torch.linalg.eigh(moment).eigenvectors.flip(1)[:, :number].T
    # Fix the sign, so that it is the same on every machine: the largest entry of each direction is positive.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * largest.sign()


def _set(projection: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    projection.weight.copy_(weight.to(projection.weight))
    projection.bias.copy_(bias.to(projection.bias))
