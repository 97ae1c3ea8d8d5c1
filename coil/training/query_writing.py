"""Training of a query writer: it reads a passage and learns to generate the query that the passage answers.

The loss is the mean of −log p over the tokens of the queries. Negatives are not used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from coil.tokens.tokenizer import Tokenizer
from coil.training.batches import Batch
from coil.training.learner import Setting
from coil.training.token_store import TextTokens
from coil.training.validation import CandidateValidation
from coil.vectors.backbone import read_backbone_config
from coil.vectors.encoder import batches_in_order
from coil.vectors.model_files import TOKENIZER_FILE
from coil.vectors.query_writer import NO_LABEL, QueryWriter, end_of


class QueryWriting:
    """The `Learner` of a query writer."""

    def __init__(self, setting: Setting, model: QueryWriter) -> None:
        self.model, self._setting = model, setting
        setting.processes.start_equal(model)
        self._validation = CandidateValidation(setting.data, setting.options, setting.tokenizer)
        self._end = end_of(setting.tokenizer)

    def learn(self, batch: Batch) -> dict[str, float]:
        """Compute the loss of a batch in micro-batches and accumulate its gradient in the weights."""
        processes = self._setting.processes
        labels = [self._labels(query) for query in batch.queries]
        total = sum(map(len, labels))
        mine = processes.share(len(labels))
        passages = [batch.passages[place] for place in batch.targets]
        loss = torch.zeros((), device=processes.device)
        enabled = self._setting.options.bf16 and processes.device.type == "cuda"
        for micro_batch in self._micro_batches(passages[mine], labels[mine]):
            with torch.autocast(processes.device.type, dtype=torch.bfloat16, enabled=enabled):
                found = self._likelihood(passages[mine], labels[mine], micro_batch)
            part = -found.sum() / total
            torch.autograd.backward(part)
            loss += part.detach()
        processes.sum_gradients(p for p in self.model.parameters() if p.requires_grad)
        value = float(processes.sum(loss))
        return {"loss": value, "likelihood": value}

    def _labels(self, query: TextTokens) -> NDArray[np.int32]:
        """The target: the query, followed by the end token."""
        tokenizer = self._setting.tokenizer
        bare = query.ids[len(tokenizer.prefix) : len(query) - len(tokenizer.suffix)]
        return np.append(bare, np.int32(self._end))

    def _micro_batches(
        self, passages: Sequence[TextTokens], labels: Sequence[NDArray[np.int32]]
    ) -> Iterator[list[int]]:
        """Indexes of pairs of similar length."""
        order = sorted(range(len(passages)), key=lambda i: -len(passages[i]))
        lengths = [len(passages[i]) + len(labels[i]) for i in order]
        for places in batches_in_order(lengths, self._setting.options.micro_batch_tokens):
            yield [order[place] for place in places]

    def _likelihood(
        self, passages: Sequence[TextTokens], labels: Sequence[NDArray[np.int32]], chosen: list[int]
    ) -> Tensor:
        """log p of the chosen queries given their passages, [chosen]."""
        device = self._setting.processes.device
        ids = _padded([passages[i].ids for i in chosen], 0)
        mask = _padded([np.ones(len(passages[i]), dtype=np.int32) for i in chosen], 0)
        targets = _padded([labels[i] for i in chosen], NO_LABEL)
        return self.model.log_likelihood(ids.to(device), mask.to(device), targets.to(device))

    def reciprocal_ranks(self) -> NDArray[np.float64]:
        """The reciprocal rank of each held-out query's positive among its candidates, by likelihood."""
        return self._validation.reciprocal_ranks(self.model, self._scores)

    def _scores(self, queries: Sequence[TextTokens], passages: Sequence[TextTokens]) -> Tensor:
        labels = [self._labels(query) for query in queries]
        scores = torch.zeros(len(queries), device=self._setting.processes.device)
        for micro_batch in self._micro_batches(passages, labels):
            scores[micro_batch] = self._likelihood(passages, labels, micro_batch)
        return scores

    def watched(self) -> dict[str, float]:
        """No numbers in addition to the loss."""
        return {}

    def save(self, folder: Path) -> None:
        """Write the model as a Hugging Face folder, with a tokenizer that other programs can open as well."""
        self.model.save_pretrained(folder, torch.float16 if self._setting.options.half else torch.float32)
        _save_tokenizer(self._setting.tokenizer, folder)


def _save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    tokenizer.save(folder / TOKENIZER_FILE)
    named = {
        "cls_token": tokenizer.prefix[0],
        "bos_token": tokenizer.prefix[0],
        "sep_token": end_of(tokenizer),
        "eos_token": end_of(tokenizer),
        "unk_token": tokenizer.unknown_id,
        "mask_token": tokenizer.mask_id,
        "pad_token": read_backbone_config(folder).pad_token_id,
    }
    tokens = {name: tokenizer.token(number) for name, number in named.items() if number is not None}
    make: Any = PreTrainedTokenizerFast  # the module has no type annotations
    fast = make(tokenizer_file=str(folder / TOKENIZER_FILE), **tokens)
    fast.save_pretrained(folder)


def _padded(rows: Sequence[NDArray[np.int32]], padding: int) -> Tensor:
    filled = np.full((len(rows), max(map(len, rows))), padding, dtype=np.int64)
    for row, values in zip(filled, rows, strict=True):
        row[: len(values)] = values
    return torch.from_numpy(filled)
