"""Publisher: publishes a new state of an index, first on disk, then to the readers of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coil.arrays import distinct, is_among
from coil.errors import IndexProblem
from coil.interruptions import let_through
from coil.storage.disk import Folder
from coil.storage.holder import Holder
from coil.storage.manifest import (
    SEGMENTS_FOLDER,
    Manifest,
    SegmentEntry,
    check_unchanged,
    is_partial,
    is_segment_file,
    publish,
)
from coil.storage.snapshot import Snapshot


class Publisher:
    """Replaces the manifest of a folder whose writer lock is held."""

    def __init__(self, folder: Folder, holder: Holder) -> None:
        self.folder, self.holder = folder, holder

    def publish(self, current: Snapshot, entries: Sequence[SegmentEntry], **others: Any) -> None:
        """Make these the index's segments, and remove the files of others; their readers can go on.

        The segments are opened first: one that cannot be opened, for example because of the limit on open
        files, does not become part of the index.
        """
        following = self._open(current, current.manifest.changed(entries, **others))
        try:
            following.manifest = publish(self.folder, following.manifest, current.manifest)
        except BaseException:
            following.release()
            self.holder.doubt()
            raise
        self.holder.offer(following)
        kept = {entry.name for entry in entries}
        for entry in current.manifest.segments:
            if entry.name not in kept:
                self.discard(entry)

    def _open(self, current: Snapshot, manifest: Manifest) -> Snapshot:
        try:
            return Snapshot.open(self.folder, manifest, current)
        except IndexProblem as error:
            check_unchanged(self.folder, current.manifest)  # if that has changed, it is the reason
            raise IndexProblem(
                f"nothing was changed, because the new files cannot be opened: {error.reason}",
                error.remedy,
            ) from error

    def discard(self, entry: SegmentEntry) -> None:
        """Remove the files of a segment that no manifest names."""
        self.folder.discard(entry.lists_file)
        self.folder.discard(entry.documents_file)

    def without(self, current: Snapshot, doc_ids: Sequence[str]) -> list[SegmentEntry]:
        """The segments after deleting those of these documents that exist, without segments left empty."""
        gone: dict[int, list[int]] = {}
        for place, ordinal in current.places_of(list(dict.fromkeys(doc_ids))).values():
            gone.setdefault(place, []).append(ordinal)
        entries = []
        for place, entry in enumerate(current.manifest.segments):
            ordinals = gone.get(place, [])
            if not ordinals:
                entries.append(entry)
                continue
            live = current.segments[place]
            documents = live.segment.row_documents
            alive = ~is_among(documents, ordinals)
            if live.alive is not None:
                alive &= live.alive
            if alive.any():  # counted, not derived from the manifest
                entries.append(entry.with_alive(alive, len(distinct(documents[alive]))))
        return entries

    def remove_strays(self) -> None:
        """Remove files that a killed writer had not yet listed in a manifest, or not yet removed.

        Files with names that a writer does not use belong to somebody else, and stay.
        """
        with self.holder.held() as current:
            named = {
                name
                for entry in current.manifest.segments
                for name in (entry.lists_file, entry.documents_file)
            }
        try:
            files, others = self.folder.names(SEGMENTS_FOLDER), self.folder.names(".")
        except OSError as error:  # no file handles left: strays are harmless, and the next writer retries
            let_through(error)
            return
        for name in files:
            if is_segment_file(name) and f"{SEGMENTS_FOLDER}/{name}" not in named:
                self.folder.discard(f"{SEGMENTS_FOLDER}/{name}")
        for name in others:
            if is_partial(name):
                self.folder.discard(name)
