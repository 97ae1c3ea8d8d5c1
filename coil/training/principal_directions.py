"""Principal directions: projections to start from that keep what the language model already knows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from coil.errors import OptionMismatch
from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import wrap
from coil.training.grad_cache import CachedTexts, Forward, lay_out
from coil.training.options import TrainingOptions
from coil.training.pair_data import PairData
from coil.vectors.torch_model import CoilModel

_SAMPLE = 2048  # queries, and as many passages, that the directions are computed from
_AT_ONCE = 256  # texts whose states are held at a time
_LEFT_OUT = 6  # one direction in six: those in which words differ most


@torch.no_grad()
def start_at_principal_directions(
    model: CoilModel, data: PairData, options: TrainingOptions, tokenizer: Tokenizer, device: torch.device
) -> None:
    """Set the projections where the options say so, from a sample of the texts.

    Sentences: the n_c leading principal directions give the best approximation, in n_c dimensions, of all
    products of the language model's own pooled vectors. Tokens: the n_t leading principal directions of
    what the context adds (a word's state less the mean state of its list), outside of those in which words
    differ most from each other: what a word means on its own is the same on both sides of a match. The scale
    is such that a word's vector has length 1 on average, so β says how far a context can move a match.
    """
    rng = np.random.default_rng([options.seed, 5])
    model.eval()
    pooled = _PooledVectors()
    words = _WordStates(data.statistics.n_lists)
    for side, store in enumerate((data.queries, data.passages)):
        chosen = np.sort(rng.choice(len(store), size=min(_SAMPLE, len(store)), replace=False))
        for block in np.array_split(chosen, max(1, len(chosen) // _AT_ONCE)):
            texts = [wrap(store[int(i)], tokenizer, options.lengths[side]) for i in block]
            layout = lay_out(texts)
            states = CachedTexts(texts, layout, _states(model), options.micro_batch_tokens, device)
            assert states.vectors is not None
            assert states.sentences is not None
            pooled.add(states.sentences, 1.0 / len(chosen))
            words.add(states.vectors, torch.from_numpy(layout.lists))
    if model.cls_proj is not None and options.sentence_init == "principal":
        directions = _leading(pooled.moment, options.n_c, "n-c")
        _set(model.cls_proj, directions, torch.zeros(options.n_c))
    if model.tok_proj is not None and options.token_init == "principal":
        directions = words.context_directions(options.n_t)
        directions /= words.length_along(directions)
        _set(model.tok_proj, directions, -directions @ words.mean())


def _states(model: CoilModel) -> Forward:
    """The language model's own states in place of token vectors, and its pooled vector."""

    def run(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        hidden = model.backbone(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden, model.pool(hidden, mask)

    return run


class _PooledVectors:
    """The second moment of pooled vectors."""

    def __init__(self) -> None:
        self.moment = torch.zeros(())  # [width, width] once there is a vector

    def add(self, vectors: Tensor, share: float) -> None:
        exact = vectors.detach().double().cpu()
        self.moment = self.moment + share * exact.T @ exact


class _WordStates:
    """Moments of the states of words, in all and list by list."""

    def __init__(self, n_lists: int) -> None:
        self._counts = torch.zeros(n_lists, dtype=torch.float64)
        self._sums: dict[int, Tensor] = {}  # list → sum of its states
        self._sum = self._moment = torch.zeros(())

    def add(self, states: Tensor, lists: Tensor) -> None:
        exact = states.detach().double().cpu()  # [mentions, width]
        self._sum = self._sum + exact.sum(0)
        self._moment = self._moment + exact.T @ exact
        present, place = torch.unique(lists, return_inverse=True)
        sums = torch.zeros((len(present), exact.shape[1]), dtype=torch.float64).index_add(0, place, exact)
        for number, of_list in zip(present.tolist(), sums, strict=True):
            self._sums[number] = self._sums.get(number, 0.0) + of_list
        self._counts += torch.bincount(lists, minlength=len(self._counts))

    def mean(self) -> Tensor:
        return self._sum / self._counts.sum()

    def context_directions(self, number: int) -> Tensor:
        """The leading directions of states less the mean of their list, without those of the means."""
        counts = self._counts[list(self._sums)][:, None]
        means = torch.stack(list(self._sums.values())) / counts.sqrt()
        of_means = means.T @ means
        within = self._moment - of_means
        total = self._counts.sum()
        between = of_means - total * torch.outer(self.mean(), self.mean())
        width = len(between)
        apart = _leading(between, width // _LEFT_OUT, "n-t")
        others = torch.eye(width, dtype=between.dtype) - apart.T @ apart
        return _leading(others @ within @ others, number, "n-t", width - len(apart))

    def length_along(self, directions: Tensor) -> Tensor:
        """The root of the mean square length of centred states in these directions."""
        spread = self._moment / self._counts.sum() - torch.outer(self.mean(), self.mean())
        return (directions @ spread @ directions.T).trace().sqrt()


def _leading(moment: Tensor, number: int, option: str, most: int | None = None) -> Tensor:
    """The leading eigenvectors, [number, width]; there are `most` that mean something."""
    width = len(moment)
    most = width if most is None else most
    if number > most:
        raise OptionMismatch(
            f"the language model is {width} wide, so it has only {most} principal directions to give, "
            f"not {number}",
            f"set --{option} to at most {most}",
        )
    directions: Tensor = torch.linalg.eigh(moment).eigenvectors.flip(1)[:, :number].T
    # A fixed sign: the largest entry of each direction is positive, on every machine.
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * largest.sign()


def _set(projection: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    projection.weight.copy_(weight.to(projection.weight))
    projection.bias.copy_(bias.to(projection.bias))
