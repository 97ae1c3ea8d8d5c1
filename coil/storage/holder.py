"""The holder of the current snapshot of an open index, and how a newer state is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coil.errors import CoilError, InputError, ReplacedIndex
from coil.forks import make_lock
from coil.interruptions import let_through
from coil.storage.disk import Folder
from coil.storage.manifest import Manifest
from coil.storage.snapshot import Snapshot, stamp_of


class Holder:
    """The current snapshot of an open index, swapped atomically. An older one never replaces a newer one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._current: Snapshot | None = snapshot
        self._lock = make_lock()
        self._doubts = self._settled = 0

    @contextmanager
    def held(self) -> Iterator[Snapshot]:
        """Hold the current snapshot while reading it."""
        if self._doubts != self._settled:
            self._look_again()
        snapshot = self._take()
        try:
            snapshot.check_files()
            yield snapshot
        finally:
            snapshot.release()

    def _take(self) -> Snapshot:
        with self._lock:  # otherwise, the last holder could release it before we retain it
            while (snapshot := self._current) is not None:
                if snapshot.retain():
                    return snapshot
                if snapshot is self._current:  # not swapped by a signal handler meanwhile
                    break
        raise InputError("the index is closed", "reopen it with coil.open")

    def doubt(self) -> None:
        """Note that a change failed, perhaps after it reached the disk: the next read checks there first."""
        with self._lock:
            self._doubts += 1

    def _look_again(self) -> None:
        """Load the state on disk. If that is not possible yet, the previous state stays current.

        Until it is loaded, other threads look as well: they must not read the previous state, either.
        """
        doubts = self._doubts  # another change may fail meanwhile
        current = self._take()
        try:
            with Folder.open(current.path) as folder:
                newer = newer_state(folder, current)
            if newer is not None:
                self.offer(newer)
            with self._lock:
                self._settled = max(self._settled, doubts)
        except (CoilError, OSError) as error:
            let_through(error)
        finally:
            current.release()

    def offer(self, newer: Snapshot) -> bool:
        """Make this the current snapshot unless the current one is newer; release the other."""
        with self._lock:
            while True:
                older = self._current
                taken = older is not None and newer.version > older.version
                if older is self._current:  # no call from here to the swap: no signal handler runs
                    if taken:
                        self._current = newer
                    break
        (older if taken and older is not None else newer).release()
        return taken

    def close(self) -> None:
        """Release the current snapshot; its present readers are not affected."""
        with self._lock:
            snapshot, self._current = self._current, None
        if snapshot is not None:
            snapshot.release()


def newer_state(folder: Folder, current: Snapshot) -> Snapshot | None:
    """A newer state than `current`, which must be held; None if there is none.

    Raises ReplacedIndex if the folder is another one than the one that was read, or has an earlier state.
    """
    newer = None
    if folder.identity == current.identity:
        stamp = stamp_of(folder)
        if stamp is not None and stamp == current.stamp:
            return None
        newer = Snapshot.open(folder, earlier=current)
        if not _is_another(newer.manifest, current.manifest):
            if newer.version > current.version:
                return newer
            current.stamp = newer.stamp  # the same manifest, now with its stamp
            newer.release()
            return None
        newer.release()
    raise ReplacedIndex(
        f"{folder.path} was replaced by another index or an earlier state",
        "reopen it; until then, the open index keeps its previous state and cannot be written",
    )


def _is_another(found: Manifest, known: Manifest) -> bool:
    if (found.index_id, found.settings) != (known.index_id, known.settings) or found.version < known.version:
        return True
    return found.version == known.version and found.digest != known.digest
