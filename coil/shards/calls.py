"""Calls: a question to some shards at once, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from coil.shards.shard import Shard

Arguments = Callable[[int], tuple[Any, ...]]
"""What the shard of a number is asked with."""


class ShardCalls(Protocol):
    """The shards of an index by their numbers."""

    @property
    def count(self) -> int:
        """The number of shards."""
        ...

    @property
    def is_apart(self) -> bool:
        """Whether the shards run in other processes."""
        ...

    @property
    def waves(self) -> Sequence[Sequence[int]]:
        """Which shards rank first: the results of one wave reduce the work of the next."""
        ...

    def ask(
        self,
        numbers: Sequence[int],
        method: str,
        arguments: Arguments,
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[int, Any]:
        """Call a method of `Shard` on each of these, all at once; returns the answers by shard number.
        `meanwhile` is called while they work in other processes; it may also be skipped.

        If shards do not answer, a MissingShard names all of them.
        """
        ...


class LocalCalls:
    """Shards that are open in this process, asked one after another."""

    is_apart = False

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self.count = len(self.shards)
        self.waves = [[number] for number in range(self.count)]

    def ask(
        self,
        numbers: Sequence[int],
        method: str,
        arguments: Arguments,
        meanwhile: Callable[[], object] | None = None,
    ) -> dict[int, Any]:
        """Call a method of each of these shards; returns the answers by shard number."""
        return {number: getattr(self.shards[number], method)(*arguments(number)) for number in numbers}

    def close(self) -> None:
        """Close all shards."""
        for shard in self.shards:
            shard.close()


def missing_shards(numbers: Sequence[int], count: int) -> str:
    """A message that names the shards that do not answer."""
    shown = ", ".join(str(number) for number in numbers[:10]) + (", …" if len(numbers) > 10 else "")
    return f"{'shard' if len(numbers) == 1 else 'shards'} {shown} of {count} cannot be reached"
