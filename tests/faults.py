"""A folder whose disk fails: at the n-th step, or by losing what was never synced when the power goes."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coil.permissions import Permissions
from coil.storage.disk import FileFacts, Folder

Event = tuple[str, Any, Any]


@dataclass
class Plan:
    """What happens to the steps of all folders, counted through; `fail_at` None: nothing does."""

    fail_at: int | None = None
    error: int = errno.ENOSPC
    skips: Callable[[str, str], bool] = lambda step, name: False  # steps that are only pretended
    steps: int = 0
    failed: str = ""
    events: list[Event] = field(default_factory=list)

    def step(self, kind: str, name: str) -> None:
        self.steps += 1
        if self.fail_at is not None and self.steps == self.fail_at:
            self.failed = f"{kind} {name}"
            raise OSError(self.error, os.strerror(self.error))

    def acknowledge(self, ids: Iterable[str]) -> None:
        """From here on these documents, and no others, must be there."""
        self.events.append(("acknowledged", frozenset(ids), None))


def faulty_folder(plan: Plan) -> type[Folder]:
    """A folder on the disk of a plan."""

    class Faulty(Folder):
        def make(self, subfolder: str, permissions: Permissions | None = None) -> None:
            if subfolder in os.listdir(self.path_of(".")):
                return
            plan.step("make", subfolder)
            super().make(subfolder, permissions)
            plan.events.append(("name", subfolder, "folder"))
            plan.events.append(("synced", ".", None))

        def reserve(self, name: str, permissions: Permissions | None = None) -> None:
            plan.step("reserve", name)
            super().reserve(name, permissions)
            plan.events.append(("name", name, "file"))

        def write(
            self, name: str, parts: Iterable[bytes | memoryview], permissions: Permissions | None = None
        ) -> FileFacts:
            plan.step("write", name)
            plan.events.append(("name", name, "file"))
            facts = super().write(name, parts, permissions)
            self._content(name)
            return facts

        def _put(self, handle: int, block: memoryview) -> int:
            plan.step("put", "")
            return super()._put(handle, block)

        def _sync_handle(self, handle: int) -> None:
            plan.step("sync", "")
            super()._sync_handle(handle)

        def sync_file(self, name: str) -> None:
            super().sync_file(name)
            self._content(name)

        def _content(self, name: str) -> None:
            if not plan.skips("content", name):
                plan.events.append(("content", name, Path(self.path_of(name)).read_bytes()))

        def sync(self, subfolder: str = ".") -> None:
            plan.step("sync", subfolder)
            super().sync(subfolder)
            if not plan.skips("sync", subfolder):
                plan.events.append(("synced", subfolder, None))

        def replace(self, old: str, new: str) -> None:
            plan.step("replace", new)
            super().replace(old, new)
            plan.events.append(("renamed", old, new))

        def discard(self, name: str) -> None:
            there = os.path.exists(self.path_of(name))
            super().discard(name)
            if there:
                plan.events.append(("removed", name, None))

    return Faulty


class Disk:
    """What is on a disk for certain, and what may be or may not, after a number of events."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}  # name → file
        self._pending: list[Event] = []  # changes of names that no sync has confirmed
        self._now: dict[str, int] = {}
        self._contents: dict[int, bytes | None] = {}
        self._folders: set[str] = set()

    def take(self, event: Event) -> None:
        kind, name, other = event
        if kind == "name" and other == "folder":
            self._folders.add(name)
        elif kind == "name":
            self._now[name] = number = len(self._contents)
            self._contents[number] = None
            self._pending.append(("name", name, number))
        elif kind == "content":
            self._contents[self._now[name]] = other
        elif kind == "renamed":
            self._now[other] = self._now.pop(name)
            self._pending.append(event)
        elif kind == "removed":
            self._now.pop(name, None)
            self._pending.append(event)
        elif kind == "synced":
            left: list[Event] = []
            for change in self._pending:
                (self._apply(self._names, change) if _folder_of(change[1]) == name else left.append(change))
            self._pending = left

    @staticmethod
    def _apply(names: dict[str, int], change: Event) -> None:
        kind, name, other = change
        if kind == "name":
            names[name] = other
        elif kind == "renamed" and name in names:
            names[other] = names.pop(name)
        elif kind == "removed":
            names.pop(name, None)

    def write(self, folder: Path, rng: random.Random, share: float) -> None:
        """One of the states that a power failure may leave: each unconfirmed change is there or not."""
        names = dict(self._names)
        for change in self._pending:
            if rng.random() < share:
                self._apply(names, change)
        folder.mkdir()
        for subfolder in self._folders:
            (folder / subfolder).mkdir()
        for name, number in names.items():
            content = self._contents[number]
            # What was never synced may be anything.
            (folder / name).write_bytes(rng.randbytes(rng.randrange(200)) if content is None else content)


def _folder_of(name: str) -> str:
    return name.rpartition("/")[0] or "."
