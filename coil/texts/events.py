"""Events: wake a waiting thread when something in the watched sources may have changed.

Events only signal when to check (see `looking`). A lost or spurious event does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from coil.errors import require

_QUIET = 200  # milliseconds without a change, after which a burst is over
_LONGEST_BURST = 1_000  # milliseconds
_CHECKED = 500  # milliseconds between two checks whether to stop


class Events:
    """A context manager that listens for changes, except below `ignored` and to hidden files."""

    def __init__(self, sources: Sequence[Path], ignored: Path) -> None:
        self._watchfiles = require("watchfiles", "watch")
        self._ignored = ignored
        self._woken, self._stop = threading.Event(), threading.Event()
        self.failure: str | None = None  # why no more events arrive
        self.is_lost = False  # a folder was removed; a new one at its path would not be watched
        folders = [source for source in sources if source.is_dir()]
        # A file is often replaced by a new one of the same name; only watching its folder detects that.
        parents = list(dict.fromkeys(source.parent for source in sources if not source.is_dir()))
        self._threads = [
            threading.Thread(target=self._listen, args=(paths, recursive), name="coil-events", daemon=True)
            for paths, recursive in ((folders, True), (parents, False))
            if paths
        ]

    def __enter__(self) -> Events:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait(self, seconds: float) -> bool:
        """Wait for an event, at most this long; returns whether there was one."""
        found = self._woken.wait(seconds)
        self._woken.clear()
        return found

    def _listen(self, paths: Sequence[Path], recursive: bool) -> None:
        """Set the event after each change, and once at the start: from then on, no change is missed."""
        folders = set(map(str, paths))
        try:
            is_first = True
            for changes in self._watchfiles.watch(
                *paths,
                watch_filter=lambda _, path: self._matters(paths, Path(path)),
                debounce=_LONGEST_BURST,
                step=_QUIET,
                stop_event=self._stop,
                rust_timeout=_CHECKED,
                yield_on_timeout=True,
                recursive=recursive,
                ignore_permission_denied=True,
            ):
                if any(kind == self._watchfiles.Change.deleted and path in folders for kind, path in changes):
                    self.is_lost = True
                if changes or is_first:
                    self._woken.set()
                is_first = False
        except Exception as error:  # such as too many folders for the system
            self.failure = str(error) or type(error).__name__
            self._woken.set()

    def _matters(self, paths: Sequence[Path], path: Path) -> bool:
        if path == self._ignored or self._ignored in path.parents:
            return False
        below: Any = next((path.relative_to(root) for root in paths if path.is_relative_to(root)), path)
        return not any(part.startswith(".") for part in below.parts)
