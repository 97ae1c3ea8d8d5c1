"""Manifest: the segments and settings of an index, in one file that is replaced as a whole.

A change to an index is a new manifest that replaces the old one in one step. A file that the manifest does
not list does not exist for readers; the next writer removes it. docs/format.md specifies the bytes.
"""

from __future__ import annotations

import base64
import binascii
import errno
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import (
    DamagedManifest,
    IndexProblem,
    MissingIndex,
    NewerIndex,
    OlderIndex,
    OutputError,
    ReplacedIndex,
    Unconfirmed,
)
from coil.interruptions import let_through
from coil.lists.segment import MOST_ROWS
from coil.storage.disk import MORE_FILES, FileFacts, Folder, remedy_for
from coil.storage.watched import Watched

FORMAT = 4
MANIFEST_FILE = "manifest.jsonl"
SEGMENTS_FOLDER = "segments"
LARGEST = 32 << 20  # bytes of a manifest: 190 million documents of which many are deleted, or billions
_NAME = re.compile(r"[0-9]{10}-[0-9a-f]{16}")
_FILE = re.compile(rf"{_NAME.pattern}\.(lists|documents)")
_PARTIAL = re.compile(r"manifest-[0-9a-f]{8}-[0-9]+\.partial")
_HEX = re.compile(r"[0-9a-f]{64}")
_INDEX_ID = re.compile(r"[0-9a-f]{32}")
_MOST_SEGMENTS = 10**10 - 1  # ten-digit numbers in file names
_MANIFEST = frozenset(
    ("index_id", "version", "next_ordinal", "next_segment", "settings", "build", "segments")
)
_SEGMENT = frozenset(("name", "rows", "mentions", "documents", "living", "lists", "texts"))
_FACTS = frozenset(("bytes", "sha256"))
_REMEDY = "restore the index from a backup, or rebuild it"


@dataclass(frozen=True)
class SegmentEntry:
    """A segment's entry in the manifest."""

    name: str
    rows: int
    mentions: int
    documents: int  # in its documents file, including deleted ones
    living: int  # documents not deleted
    lists: FileFacts
    header_sha256: str
    texts: FileFacts
    deleted: bytes = b""  # one bit per row, lowest first, 1 if deleted; empty if none is

    @property
    def lists_file(self) -> str:
        """The file of its inverted lists."""
        return f"{SEGMENTS_FOLDER}/{self.name}.lists"

    @property
    def documents_file(self) -> str:
        """The file of its documents."""
        return f"{SEGMENTS_FOLDER}/{self.name}.documents"

    @property
    def alive(self) -> NDArray[np.bool_] | None:
        """Which rows are alive, None if all are. [rows]"""
        if not self.deleted:
            return None
        bits = np.unpackbits(np.frombuffer(self.deleted, np.uint8), count=self.rows, bitorder="little")
        alive: NDArray[np.bool_] = bits == 0
        return alive

    def with_alive(self, alive: NDArray[np.bool_], documents: int) -> SegmentEntry:
        """A copy in which only these rows, of so many documents, are alive."""
        return replace(self, deleted=np.packbits(~alive, bitorder="little").tobytes(), living=documents)

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest."""
        value: dict[str, Any] = {
            "name": self.name,
            "rows": self.rows,
            "mentions": self.mentions,
            "documents": self.documents,
            "living": self.living,
            "lists": {
                "bytes": self.lists.bytes,
                "sha256": self.lists.sha256,
                "header_sha256": self.header_sha256,
            },
            "texts": {"bytes": self.texts.bytes, "sha256": self.texts.sha256},
        }
        if self.deleted:
            value["deleted"] = base64.b64encode(zlib.compress(self.deleted, 1)).decode()
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SegmentEntry:
        """Parse it from the manifest; raises ValueError if malformed."""
        _check_keys(value, _SEGMENT, "deleted")
        rows = _count(value["rows"], MOST_ROWS)
        _check(rows > 0, "a segment has no rows")
        deleted = b""
        if "deleted" in value:
            packed = base64.b64decode(value["deleted"], validate=True)
            size = -(-rows // 8)
            deleted = zlib.decompressobj().decompress(packed, size + 1)  # never more than a bitmap needs
            _check(len(deleted) == size, "a bitmap of deleted rows has the wrong size")
        documents, living = _count(value["documents"], rows), _count(value["living"], rows)
        _check(living <= documents, "more living documents than documents")
        _check(_NAME.fullmatch(value["name"]) is not None, "a segment has an invalid name")
        return cls(
            value["name"],
            rows,
            _count(value["mentions"]),
            documents,
            living,
            _facts(value["lists"], "header_sha256"),
            _digest(value["lists"]["header_sha256"]),
            _facts(value["texts"]),
            deleted,
        )


@dataclass(frozen=True)
class Manifest:
    """One state of an index."""

    index_id: str  # unique to this index
    settings: Mapping[str, Any]  # model, fingerprint, config, precision, long
    version: int = 1  # increases with every change
    next_ordinal: int = 1  # ordinals below are used up and never reused
    next_segment: int = 1
    build: Mapping[str, Any] | None = None  # progress of `coil index`
    segments: tuple[SegmentEntry, ...] = ()  # in order of their ordinals
    watched: Watched = Watched()  # which documents came from the sources of `coil index --watch`
    digest: str = field(default="", compare=False)  # of the file that this was read from or written to

    @property
    def n_documents(self) -> int:
        """The number of documents in the index."""
        return sum(entry.living for entry in self.segments)

    def changed(self, segments: Sequence[SegmentEntry], **others: Any) -> Manifest:
        """The next version."""
        return replace(self, version=self.version + 1, segments=tuple(segments), **others)

    def to_bytes(self) -> bytes:
        """The file: a line with the format and the digest of the second, which holds everything else."""
        value = {
            "index_id": self.index_id,
            "version": self.version,
            "next_ordinal": self.next_ordinal,
            "next_segment": self.next_segment,
            "settings": self.settings,
            "build": self.build,
            "segments": [entry.to_json() for entry in self.segments],
            **self.watched.to_json(),
        }
        body = json.dumps(value).encode()
        first = json.dumps({"coil": FORMAT, "sha256": sha256(body).hexdigest()}).encode()
        return first + b"\n" + body + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes, where: str) -> Manifest:
        """Parse the contents of a file."""
        first, _, rest = content.partition(b"\n")
        try:
            begin = json.loads(first)
            found = begin["coil"]
            if isinstance(found, int) and found != FORMAT:
                raise _other_format(where, found)
            body = rest.removesuffix(b"\n")
            _check(begin["sha256"] == sha256(body).hexdigest(), "its digest does not match")
            value = json.loads(body)
            _check_keys(value, _MANIFEST, "watched", "watched_columns")
            segments = tuple(SegmentEntry.from_json(entry) for entry in value["segments"])
            build, index_id = value["build"], value["index_id"]
            _check(_INDEX_ID.fullmatch(index_id) is not None, "its index_id is not 32 hexadecimal digits")
            _check(isinstance(value["settings"], dict), "its settings are not an object")
            _check(build is None or isinstance(build, dict), "its build state is not an object")
            _check(len({entry.name for entry in segments}) == len(segments), "it lists a segment twice")
            return cls(
                index_id,
                value["settings"],
                _count(value["version"]),
                _count(value["next_ordinal"]),
                _count(value["next_segment"], _MOST_SEGMENTS),
                build,
                segments,
                Watched.from_json(value.get("watched", {}), value.get("watched_columns", {})),
                begin["sha256"],
            )
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error, zlib.error) as error:
            reason = f"{type(error).__name__}: {error}" if isinstance(error, KeyError | TypeError) else error
            raise DamagedManifest(f"{where} is damaged: {reason}", _REMEDY) from error


def is_segment_file(name: str) -> bool:
    """Whether a file in the segments folder has a name that only a writer uses."""
    return _FILE.fullmatch(name) is not None


def is_partial(name: str) -> bool:
    """Whether a file is an unfinished manifest of a writer that was killed."""
    return _PARTIAL.fullmatch(name) is not None


def _other_format(where: str, found: int) -> NewerIndex | OlderIndex:
    if found > FORMAT:
        return NewerIndex(f"{where} has format {found}; this version reads {FORMAT}", "upgrade coil-ir")
    return OlderIndex(f"{where} has format {found}; this version reads {FORMAT}", "rebuild the index")


def _check(right: bool, what: str) -> None:
    if not right:
        raise ValueError(what)


def _count(value: Any, most: int = 2**62) -> int:
    _check(type(value) is int and 0 <= value <= most, f"{value!r:.40} is not a valid count")
    count: int = value
    return count


def _digest(value: Any) -> str:
    _check(isinstance(value, str) and _HEX.fullmatch(value) is not None, "a digest is invalid")
    digest: str = value
    return digest


def _check_keys(value: Any, keys: frozenset[str], *optional: str) -> None:
    _check(isinstance(value, dict) and value.keys() - {*optional} == keys, "it has missing or unknown keys")


def _facts(value: Any, also: str = "") -> FileFacts:
    _check_keys(value, _FACTS, also)
    return FileFacts(_count(value["bytes"]), _digest(value["sha256"]))


def read_manifest(folder: Folder) -> Manifest:
    """Read the current manifest."""
    where = str(folder.path / MANIFEST_FILE)
    try:
        content = folder.read(MANIFEST_FILE, LARGEST + 1)
    except FileNotFoundError as error:
        raise _no_index(folder) from error
    except OSError as error:
        let_through(error)
        if error.errno in (errno.EISDIR, errno.EIO, errno.EINVAL):
            raise DamagedManifest(f"{where} cannot be read: {error.strerror}", _REMEDY) from error
        raise IndexProblem(
            f"{where} cannot be read: {error.strerror}",
            f"check the permissions of the file and {MORE_FILES}",
        ) from error
    return _parse(content, where)


def check_manifest(folder: Folder) -> None:
    """A folder without a manifest is no index."""
    try:
        folder.stat(MANIFEST_FILE)
    except FileNotFoundError as error:
        raise _no_index(folder) from error


def _parse(content: bytes, where: str) -> Manifest:
    if len(content) > LARGEST:
        raise DamagedManifest(f"{where} exceeds the limit of {LARGEST:,} bytes", _REMEDY)
    return Manifest.from_bytes(content, where)


def _no_index(folder: Folder) -> MissingIndex | OlderIndex:
    if (folder.path / "catalog.sqlite").exists():  # formats 1 to 3
        return OlderIndex(
            f"{folder.path} was created by an older version of coil-ir", "rebuild it with `coil index`"
        )
    if (folder.path / "shards.json").exists():
        return MissingIndex(
            f"{folder.path} is a sharded index; expected a single one",
            "serve it with `coil serve`, or open one of its shards, such as 00000.coil in it",
        )
    return MissingIndex(f"{folder.path} is not an index: {MANIFEST_FILE} is missing", "check the path")


def publish(folder: Folder, manifest: Manifest, before: Manifest | None) -> Manifest:
    """Replace the manifest `before`, which must still be current; None if there is none yet.

    The files that it names must already be on disk. When this returns, so is the manifest. Until the step
    that replaces the old one, nothing changes for anyone.
    """
    content = manifest.to_bytes()
    where = str(folder.path / MANIFEST_FILE)
    written = _check_next(content, where)
    partial = f"manifest-{manifest.index_id[:8]}-{manifest.version}.partial"
    folder.discard(partial)  # left by a writer that was killed
    try:
        # A new file, but whoever may read the old one, such as a reader of another user, may read this one.
        folder.write(partial, [content], None if before is None else folder.permissions(MANIFEST_FILE))
        try:
            check_unchanged(folder, before)
            folder.replace(partial, MANIFEST_FILE)
        except BaseException:
            folder.discard(partial)
            raise
    except OSError as error:
        let_through(error)
        raise OutputError(
            f"{where} cannot be written: {error.strerror or error}",
            remedy_for(
                error, "free some disk space or check the permissions of the folder; the index is unchanged"
            ),
        ) from error
    try:
        folder.sync()
    except OSError as error:
        let_through(error)
        raise Unconfirmed(
            f"{folder.path} was changed, but the disk did not confirm it: {error.strerror or error}",
            "check the disk, then check whether the change is there; a power failure now could lose it",
        ) from error
    return replace(manifest, digest=written.digest)


def _check_next(content: bytes, where: str) -> Manifest:
    """Parse a manifest before it is written: an unreadable one would destroy the index."""
    try:
        return _parse(content, where)
    except DamagedManifest as error:
        raise IndexProblem(
            f"the next manifest could not be read: {error.reason}", f"nothing was written; {_REMEDY}"
        ) from error


def check_unchanged(folder: Folder, before: Manifest | None) -> None:
    """Check that neither the folder nor its manifest was swapped while we held the lock."""
    if not folder.is_at_its_path:
        raise ReplacedIndex(
            f"{folder.path} was moved, replaced or deleted while it was being written",
            "nothing more was written to either index; open the intended one and write again",
        )
    try:
        found = read_manifest(folder)
    except MissingIndex:
        found = None
    if (found.digest if found is not None else None) != (before.digest if before is not None else None):
        raise ReplacedIndex(
            f"{folder.path / MANIFEST_FILE} was changed by a program that did not hold the writer lock",
            "nothing was written; open the index again",
        )
