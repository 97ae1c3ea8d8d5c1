"""Claims: which watched file has which ids. The first file with an id owns it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from coil.errors import TooLittleMemory
from coil.storage.memory import LONGEST_LINE_SHARE, WATCHED_SHARE, show_size
from coil.texts.looking import Signature, SourceFile
from coil.texts.opening import name_of

_ID_BYTES = 200  # in the lists and sets of ids, without its characters


def size_of(doc_id: str) -> int:
    """The bytes that an id takes in memory."""
    return sys.getsizeof(doc_id) + _ID_BYTES


class Claims:
    """The ids found in the files that were read."""

    def __init__(self, longest: int) -> None:
        """`longest`: the longest line that can be read within the memory, of which ids get a share too."""
        self._sizes: dict[SourceFile, int] = {}  # of the ids of each file in memory
        self._size = 0  # of all
        self._room = int(longest * WATCHED_SHARE / LONGEST_LINE_SHARE)
        self.signatures: dict[SourceFile, Signature | None] = {}  # None: to be read again
        self._ids: dict[SourceFile, Sequence[str]] = {}
        self._unknown: set[SourceFile] = set()  # files of records that have never been readable
        self._owners: dict[str, SourceFile] = {}
        self._others: dict[str, set[SourceFile]] = {}  # the files with an id that another one owns

    def take(self, file: SourceFile, doc_ids: Sequence[str], signature: Signature | None) -> set[str]:
        """Record the ids of a file, each once; return those that another file owns."""
        size = sum(map(size_of, doc_ids))
        self._size += size - self._sizes.get(file, 0)
        self._ids[file], self._sizes[file], self.signatures[file] = doc_ids, size, signature
        self._unknown.discard(file)
        lost = {doc_id for doc_id in doc_ids if self._owners.setdefault(doc_id, file) != file}
        for doc_id in lost:
            self._others.setdefault(doc_id, set()).add(file)
        return lost

    def check_room(self, file: SourceFile, size: int) -> None:
        """Raise TooLittleMemory if ids of this size (see `size_of`) from a file exceed the limit."""
        if self._size - self._sizes.get(file, 0) + size > self._room:
            raise TooLittleMemory(
                f"--watch keeps the ids of all records in memory, and those of {name_of(file.path)} and the "
                f"files before it exceed the limit of {show_size(self._room)}",
                "raise --memory, or index without --watch and update with `coil add --on-duplicate update`",
            )

    def keep(self, file: SourceFile, signature: Signature | None) -> None:
        """Keep the ids of a file that cannot be read, until its signature changes and it is read again."""
        if file in self._ids and file not in self._unknown:
            self.take(file, self._ids[file], signature)
        elif file.doc_id is not None:
            self.take(file, [file.doc_id], signature)
        else:
            self.take(file, [], signature)
            self._unknown.add(file)

    def release(self, file: SourceFile) -> Sequence[str]:
        """Release the ids of a file that is gone or will be read again; return them."""
        ids = self._ids.get(file, ())
        for doc_id in ids:
            if self._owners.get(doc_id) == file:
                del self._owners[doc_id]
            elif file in self._others.get(doc_id, ()):
                self._others[doc_id].remove(file)
                if not self._others[doc_id]:
                    del self._others[doc_id]
        return ids

    def forget(self, file: SourceFile) -> None:
        """Forget a file that is gone, after its release."""
        self._unknown.discard(file)
        self.signatures.pop(file, None)
        self._ids.pop(file, None)
        self._size -= self._sizes.pop(file, 0)

    def unclaimed(self, doc_ids: Iterable[str]) -> tuple[set[str], bool]:
        """Those of the ids that no file has.

        An id that other files share with its former owner is left to them: they will be read again, and the
        second value says whether there are any.
        """
        free = {doc_id for doc_id in doc_ids if doc_id not in self._owners}
        left = free & self._others.keys()
        for doc_id in left:
            self.signatures.update(dict.fromkeys(self._others[doc_id]))
        return free - left, bool(left)

    def has_unknown(self, source: Path) -> bool:
        """Whether a file of the source may have unknown ids."""
        return any(file.source == source for file in self._unknown)
