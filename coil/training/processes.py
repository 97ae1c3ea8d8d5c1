"""Training in several processes: each encodes its share of the batch, and all see all vectors.

Every process computes the loss of the whole batch and the gradients of its own vectors; the gradients of the
weights are then summed. So negatives are shared across devices, and the result is the same as with one
process.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast
from torch import Tensor, nn

from coil.errors import OptionMismatch


class Processes:
    """A thin layer over accelerate: the rank of this process, its share of the work, gather and sum."""

    def __init__(self, device: str | None = None) -> None:
        self._accelerator = Accelerator(cpu=device == "cpu")
        if device is not None and device != "cpu" and self._accelerator.device.type != "cuda":
            raise OptionMismatch(f"the device {device!r} cannot be used here", "use --device cpu")
        self.device: torch.device = self._accelerator.device
        self.rank: int = self._accelerator.process_index
        self.count: int = self._accelerator.num_processes

    @property
    def first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, n: int) -> slice:
        """The part of n texts that this process encodes."""
        return slice(n * self.rank // self.count, n * (self.rank + 1) // self.count)

    def gather(self, mine: Tensor, sizes: list[int]) -> Tensor:
        """Concatenate the rows of all processes (`sizes` of each); its own rows keep their gradient."""
        if self.count == 1:
            return mine
        padded = mine.new_zeros((max(sizes), *mine.shape[1:]))
        padded[: len(mine)] = mine.detach()
        everyone = self._accelerator.gather(padded[None])
        parts = [everyone[rank, :size] for rank, size in enumerate(sizes)]
        parts[self.rank] = mine
        return torch.cat(parts)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Sum the gradients of the weights over all processes."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad = self._accelerator.reduce(parameter.grad, reduction="sum")

    def sum(self, value: Tensor) -> Tensor:
        """The sum of a number over all processes."""
        return value if self.count == 1 else self._accelerator.reduce(value, reduction="sum")

    def start_equal(self, model: nn.Module) -> None:
        """Copy the weights of the first process to all others: GPUs may have rounded differently before."""
        if self.count > 1:
            for weight in (*model.parameters(), *model.buffers()):
                weight.data.copy_(broadcast(weight.data))

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process, so that all of them stop after the same step."""
        if self.count == 1:
            return flag
        mine = torch.tensor([float(flag)], device=self.device)
        return bool(self._accelerator.reduce(mine, reduction="sum").item())

    def wait(self) -> None:
        """Wait until all processes have reached this point."""
        self._accelerator.wait_for_everyone()
