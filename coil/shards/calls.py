"""Calls: a question to some shards at once, wherever they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from coil.shards.shard import Shard

Arguments = Callable[[int], tuple[Any, ...]]
"""What the shard of a number is asked with."""


Vector = tuple[int | None, ...]
"""The version of each shard; None for one that is missing."""


class Held(NamedTuple):
    """The states that are kept, newer ones in the place of those that are gone; and how to let go of them."""

    versions: Vector
    let_go: Callable[[], object]


class ShardCalls(Protocol):
    """The shards of an index by their numbers."""

    @property
    def count(self) -> int:
        """How many shards there are."""
        ...

    @property
    def waves(self) -> Sequence[Sequence[int]]:
        """Which shards rank first: what is learned from a wave makes the work of the next one less."""
        ...

    def ask(self, numbers: Sequence[int], method: str, arguments: Arguments) -> Mapping[int, Any]:
        """Call a method of `Shard` on each of these, all at once; the answers by number.

        A shard that does not answer is a MissingShard, which names all that do not.
        """
        ...

    def hold(self, versions: Vector) -> Held:
        """Have the shards keep these states while they are read, where they can know for how long."""
        ...


class LocalCalls:
    """Shards that are open in this process, asked one after another."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self.shards = list(shards)
        self.count = len(self.shards)
        self.waves = [[number] for number in range(self.count)]

    def ask(self, numbers: Sequence[int], method: str, arguments: Arguments) -> dict[int, Any]:
        """Call a method of each of these shards; the answers by number."""
        return {number: getattr(self.shards[number], method)(*arguments(number)) for number in numbers}

    def hold(self, versions: Vector) -> Held:
        """Have the shards keep these states until they are let go of."""
        held = [
            (shard, shard.hold(version))
            for shard, version in zip(self.shards, versions, strict=True)
            if version is not None
        ]

        def let_go() -> None:
            for shard, version in held:
                shard.let_go(version)

        found = {shard.number: version for shard, version in held}
        return Held(tuple(found.get(number) for number in range(self.count)), let_go)

    def close(self) -> None:
        """Close all shards."""
        for shard in self.shards:
            shard.close()


def missing_shards(numbers: Sequence[int], count: int) -> str:
    """Which shards do not answer, in words."""
    shown = ", ".join(str(number) for number in numbers[:10]) + (", …" if len(numbers) > 10 else "")
    return f"{'shard' if len(numbers) == 1 else 'shards'} {shown} of {count} cannot be reached"
