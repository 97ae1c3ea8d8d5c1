"""Publisher: publishes a new state of an index, first on disk, then to the readers of this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coil.arrays import distinct, is_among
from coil.errors import IndexProblem
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
    """Replaces manifests of a folder whose writer lock is held."""

    def __init__(self, folder: Folder, holder: Holder) -> None:
        self.folder, self.holder = folder, holder

    def publish(self, current: Snapshot, entries: Sequence[SegmentEntry], **others: Any) -> None:
        """Make these the index's segments, and remove the files of others; who has them open keeps them.

        They are opened first: what cannot be opened, such as one segment more than the system allows open
        files for, does not become part of the index.
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
            check_unchanged(self.folder, current.manifest)  # or that is the reason
            raise IndexProblem(
                f"nothing was changed, because the new files cannot be opened: {error.reason}",
                error.remedy,
            ) from error

    def discard(self, entry: SegmentEntry) -> None:
        """Remove the files of a segment that no manifest names."""
        self.folder.discard(entry.lists_file)
        self.folder.discard(entry.documents_file)

    def without(self, current: Snapshot, doc_ids: Sequence[str]) -> list[SegmentEntry]:
        """The segments with those documents deleted that are there; one that has no other is left out."""
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
            if alive.any():  # counted, not computed from what the manifest says
                entries.append(entry.with_alive(alive, len(distinct(documents[alive]))))
        return entries

    def remove_strays(self) -> None:
        """Files of a writer that was killed before it could name them, or before it could remove them.

        What has another name than a writer gives was put there by somebody else, and stays.
        """
        with self.holder.held() as current:
            named = {
                name
                for entry in current.manifest.segments
                for name in (entry.lists_file, entry.documents_file)
            }
        try:
            files, others = self.folder.names(SEGMENTS_FOLDER), self.folder.names(".")
        except OSError:  # too few file handles, say: strays do no harm, and another writer will come
            return
        for name in files:
            if is_segment_file(name) and f"{SEGMENTS_FOLDER}/{name}" not in named:
                self.folder.discard(f"{SEGMENTS_FOLDER}/{name}")
        for name in others:
            if is_partial(name):
                self.folder.discard(name)
