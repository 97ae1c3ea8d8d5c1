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
        """How many shards there are."""
        ...

    @property
    def is_apart(self) -> bool:
        """Whether the shards are in other processes."""
        ...

    @property
    def waves(self) -> Sequence[Sequence[int]]:
        """Which shards rank first: what is learned from a wave makes the work of the next one less."""
        ...

    def ask(
        self,
        numbers: Sequence[int],
        method: str,
        arguments: Arguments,
        meanwhile: Callable[[], object] | None = None,
    ) -> Mapping[int, Any]:
        """Call a method of `Shard` on each of these, all at once; the answers by number. `meanwhile` is done
        while they are at work elsewhere; it may also be left undone.

        A shard that does not answer is a MissingShard, which names all that do not.
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
        """Call a method of each of these shards; the answers by number."""
        return {number: getattr(self.shards[number], method)(*arguments(number)) for number in numbers}

    def close(self) -> None:
        """Close all shards."""
        for shard in self.shards:
            shard.close()


def missing_shards(numbers: Sequence[int], count: int) -> str:
    """Which shards do not answer, in words."""
    shown = ", ".join(str(number) for number in numbers[:10]) + (", …" if len(numbers) > 10 else "")
    return f"{'shard' if len(numbers) == 1 else 'shards'} {shown} of {count} cannot be reached"
