"""Permissions: whoever may read a file may still do so after it has been replaced."""

from __future__ import annotations

import os
from dataclasses import dataclass
from stat import S_IMODE

from coil.interruptions import let_through

PRIVATE = 0o600  # of a new file until its permissions are set
_READ, _GROUP = 0o444, 0o070


@dataclass(frozen=True)
class Permissions:
    """The owner, the group and the permission bits of a file."""

    owner: int
    group: int
    mode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Permissions:
        """Those of an existing file."""
        return cls(found.st_uid, found.st_gid, S_IMODE(found.st_mode) & 0o777)

    def for_file(self) -> Permissions:
        """Of another file that the same users may read, and only its owner may write."""
        return Permissions(self.owner, self.group, PRIVATE | self.mode & _READ)

    def for_folder(self) -> Permissions:
        """Of a folder whose files the same users may read."""
        readable = self.mode & _READ
        return Permissions(self.owner, self.group, 0o700 | readable | readable >> 2)

    def give_to(self, handle: int) -> None:
        """Set them on an open file, as far as the process may.

        Without the right to set the group, the process's own group gets no more than everybody else: its
        members might not have been allowed to read the file. The owner comes last, because only the owner
        may set the rest.
        """
        if not hasattr(os, "fchown"):  # on Windows
            return
        mode, found = self.mode, os.fstat(handle)
        if found.st_gid != self.group and not _set_owner(handle, -1, self.group):
            mode &= ~_GROUP | (mode & 0o007) << 3
        try:
            os.fchmod(handle, mode | S_IMODE(found.st_mode) & 0o7000)  # new files of a folder keep its group
        except OSError as error:  # a file system without permissions
            let_through(error)
        if found.st_uid != self.owner:
            _set_owner(handle, self.owner, -1)


def _set_owner(handle: int, owner: int, group: int) -> bool:
    try:
        os.fchown(handle, owner, group)
    except OSError as error:
        let_through(error)
        return False
    return True
