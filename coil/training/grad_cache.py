"""Gradients in micro-batches: the loss needs all texts of a batch at once, the language model does not.

1. Encode all texts one micro-batch at a time, without a graph, and keep only the vectors.
2. Compute the loss on all vectors; its backward gives the gradient of each vector.
3. Encode each micro-batch again, with a graph, and send those gradients through it.
Memory is that of one micro-batch; gradients are those of the whole batch. Random states are restored before
the second encoding, so that dropout is the same. With a single micro-batch, the graph of step 1 is kept and
nothing is encoded twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coil.training.batch_scores import TextVectors
from coil.training.token_store import NO_LIST, TextTokens
from coil.vectors.encoder import batches_in_order

Forward = Callable[[Tensor, Tensor], "tuple[Tensor | None, Tensor | None]"]


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the vectors of each text go, which is known from the tokens before anything is encoded."""

    lists: NDArray[np.int64]  # [mentions] list of each mention, text by text
    rows: NDArray[np.int64]  # [mentions] its text
    positions: NDArray[np.int64]  # [mentions] position of its token in the language model's input
    starts: NDArray[np.int64]  # [texts + 1] first mention of each text

    @property
    def n_texts(self) -> int:
        """The number of texts."""
        return len(self.starts) - 1

    def part(self, texts: slice) -> Layout:
        """The layout of a range of texts."""
        begin, end = self.starts[texts.start], self.starts[texts.stop]
        return Layout(
            self.lists[begin:end],
            self.rows[begin:end] - texts.start,
            self.positions[begin:end],
            self.starts[texts.start : texts.stop + 1] - begin,
        )

    def mentions_of(self, texts: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
        """The mentions of the given texts, in this order."""
        begins, counts = self.starts[texts], self.starts[np.asarray(texts) + 1] - self.starts[texts]
        shift = np.repeat(begins - (np.cumsum(counts) - counts), counts)
        mentions: NDArray[np.int64] = np.arange(int(counts.sum())) + shift
        return mentions


def lay_out(texts: Sequence[TextTokens]) -> Layout:
    """The layout of texts; special tokens have no list and are therefore not mentions."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    rows = np.repeat(np.arange(len(texts)), lengths)
    positions = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    lists = np.concatenate([np.zeros(0, np.int32), *(text.lists for text in texts)])
    listed = lists != NO_LIST
    counts = np.bincount(rows[listed], minlength=len(texts))
    return Layout(
        lists=lists[listed].astype(np.int64),
        rows=rows[listed],
        positions=positions[listed],
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


class _RandomState:
    """The random state before a micro-batch, restored before it is encoded again."""

    def __init__(self, device: torch.device) -> None:
        self._cpu = torch.get_rng_state()
        self._gpu = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    def put_back(self, device: torch.device) -> None:
        torch.set_rng_state(self._cpu)
        if self._gpu is not None:
            torch.cuda.set_rng_state(self._gpu, device)


class CachedTexts:
    """The vectors of texts; their gradients can be propagated through the language model later."""

    def __init__(
        self,
        texts: Sequence[TextTokens],
        layout: Layout,
        forward: Forward,
        micro_batch_tokens: int,
        device: torch.device,
    ) -> None:
        self._texts, self._layout, self._forward, self._device = texts, layout, forward, device
        by_length = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
        lengths = [len(texts[i]) for i in by_length]
        self._micro_batches = [
            [by_length[i] for i in places] for places in batches_in_order(lengths, micro_batch_tokens)
        ]
        self._states: list[_RandomState] = []
        keep_graph = len(self._micro_batches) == 1 and torch.is_grad_enabled()
        vectors: list[Tensor | None] = []
        sentences: list[Tensor | None] = []
        for micro_batch in self._micro_batches:
            self._states.append(_RandomState(device))
            with torch.set_grad_enabled(keep_graph):
                tokens, sentence = self._encode(micro_batch)
            vectors.append(tokens)
            sentences.append(sentence)
        self._graph = (vectors[0], sentences[0]) if keep_graph else None
        order = np.concatenate(self._micro_batches).astype(np.int64)
        self.vectors = self._join(vectors, layout.mentions_of(order))
        self.sentences = self._join(sentences, order)

    def _encode(self, micro_batch: list[int]) -> tuple[Tensor | None, Tensor | None]:
        """One micro-batch → vectors of its mentions [mentions, n_t], sentence vectors [texts, n_c]."""
        width = max(len(self._texts[i]) for i in micro_batch)
        ids = np.zeros((len(micro_batch), width), dtype=np.int64)
        mask = np.zeros((len(micro_batch), width), dtype=np.int64)
        for row, i in enumerate(micro_batch):
            ids[row, : len(self._texts[i])] = self._texts[i].ids
            mask[row, : len(self._texts[i])] = 1
        mentions = self._layout.mentions_of(micro_batch)
        row_of = np.empty(len(self._texts), dtype=np.int64)
        row_of[micro_batch] = np.arange(len(micro_batch))
        flat = row_of[self._layout.rows[mentions]] * width + self._layout.positions[mentions]
        tokens, sentence = self._forward(
            torch.from_numpy(ids).to(self._device), torch.from_numpy(mask).to(self._device)
        )
        if tokens is not None:
            tokens = tokens.flatten(0, 1)[torch.from_numpy(flat).to(self._device)].float()
        return tokens, sentence.float() if sentence is not None else None

    def _join(self, parts: list[Tensor | None], order: NDArray[np.int64]) -> Tensor | None:
        """The results of micro-batches in text order, as a leaf tensor that collects gradients."""
        if parts[0] is None:
            return None
        joined = torch.cat([part.detach() for part in parts if part is not None])
        in_order = torch.empty_like(joined)
        in_order[torch.from_numpy(order).to(self._device)] = joined
        return in_order.requires_grad_()

    def backward(self) -> None:
        """Propagate the gradients collected by the leaf tensors through the language model."""
        after = _RandomState(self._device)
        for number, micro_batch in enumerate(self._micro_batches):
            if self._graph is not None:
                tokens, sentence = self._graph
            else:
                self._states[number].put_back(self._device)
                tokens, sentence = self._encode(micro_batch)
            outputs: list[Tensor] = []
            gradients: list[Tensor] = []
            if tokens is not None and self.vectors is not None and self.vectors.grad is not None:
                order = torch.from_numpy(self._layout.mentions_of(micro_batch)).to(self._device)
                outputs.append(tokens)
                gradients.append(self.vectors.grad[order])
            if sentence is not None and self.sentences is not None and self.sentences.grad is not None:
                outputs.append(sentence)
                gradients.append(self.sentences.grad[torch.tensor(micro_batch, device=self._device)])
            pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
            if pairs:
                torch.autograd.backward([o for o, _ in pairs], [g for _, g in pairs])
        after.put_back(self._device)


def text_vectors(layout: Layout, vectors: Tensor | None, sentences: Tensor | None) -> TextVectors:
    """Vectors with their layout, as input of the scores."""
    either = vectors if vectors is not None else sentences
    assert either is not None
    device = either.device
    if vectors is None:
        vectors = either.new_zeros((len(layout.lists), 0))
    return TextVectors(
        vectors=vectors,
        lists=torch.from_numpy(layout.lists).to(device),
        rows=torch.from_numpy(layout.rows).to(device),
        sentences=sentences,
        n_texts=layout.n_texts,
    )
