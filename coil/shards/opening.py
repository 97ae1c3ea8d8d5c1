"""Making and opening the shards of an index on a file system."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from coil.errors import (
    CoilError,
    InputError,
    MissingIndex,
    MissingShard,
    OutputError,
    UnfinishedBuild,
    reason_of,
)
from coil.indexes.index import Index
from coil.indexes.opening import check_path, create, open_index
from coil.indexes.settings import MOST_SHARDS
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.shards.calls import LocalCalls
from coil.shards.index import ShardedIndex
from coil.shards.ledger import Ledger
from coil.shards.shard import Shard
from coil.shards.whole import LARGEST, WHOLE_FILE, ShardEntry, WholeManifest
from coil.storage.disk import make_folders
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder


def shard_path(number: int) -> str:
    """The name of a shard's folder beside the manifest."""
    return f"{number:05}.coil"


def is_whole(path: Path) -> bool:
    """Whether a path leads to a sharded index: its folder, or its manifest."""
    return path.name == WHOLE_FILE or (path / WHOLE_FILE).exists()


def whole_folder(path: Path) -> Path:
    """The folder of a sharded index, by its path or that of its manifest."""
    return path.parent if path.name == WHOLE_FILE else path


def read_whole(path: str | Path) -> WholeManifest:
    """The manifest of a sharded index."""
    file = whole_folder(check_path(path)) / WHOLE_FILE
    try:
        with file.open("rb") as opened:
            content = opened.read(LARGEST + 1)
    except FileNotFoundError as error:
        raise MissingIndex(
            f"{file.parent} is not a sharded index: {WHOLE_FILE} is missing", "check the path"
        ) from error
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}", "check the permissions of the file"
        ) from error
    return WholeManifest.from_bytes(content, str(file))


def write_whole(folder: Path, manifest: WholeManifest) -> None:
    """Put a manifest in the place of the one that is there, in one step."""
    file, partial = folder / WHOLE_FILE, folder / f".{WHOLE_FILE}.{os.getpid()}.partial"
    try:
        with partial.open("wb") as opened:
            opened.write(manifest.to_bytes())
            opened.flush()
            os.fsync(opened.fileno())
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OutputError(
            f"{file} cannot be written: {error.strerror or error}",
            "free some disk space or check the permissions of the folder",
        ) from error


def create_shards(
    path: str | Path,
    count: int,
    model: str | Path | None = None,
    precision: Precision = "int8",
    long: Long = "chunk",
    encoder: Encoder | None = None,
) -> WholeManifest:
    """Make a sharded index without documents."""
    if type(count) is not int or not 1 <= count <= MOST_SHARDS:
        raise InputError(f"{count!r:.40} shards; expected 1 to {MOST_SHARDS:,}", "change --shards")
    folder = check_path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise OutputError(f"{folder} already exists", "choose another name")
    encoder = encoder if encoder is not None else OnnxEncoder(model)
    make_folders(folder)
    blank = WholeManifest({}, tuple(ShardEntry(shard_path(n), "", 0, 0) for n in range(count)))
    entries: list[ShardEntry] = []
    for number, entry in enumerate(blank.shards):
        label = blank.label(number)
        with create(folder / entry.path, model, precision, long, encoder, shard=label) as made:
            entries.append(entry_of(made, entry.path))
            settings = made.settings()
    del settings["shard"]
    manifest = blank.with_shards(entries, settings=settings)
    write_whole(folder, manifest)
    return manifest


def entry_of(index: Index, path: str) -> ShardEntry:
    """A shard as the manifest of the whole is to know it."""
    with index.held() as snapshot:
        found = snapshot.manifest
        return ShardEntry(path, found.index_id, found.version, found.n_documents)


def open_shard(
    folder: Path, manifest: WholeManifest, number: int, encoder: Encoder | None = None, threads: int = 1
) -> Index:
    """The index of one shard, which must be the one that the manifest tells of."""
    path = folder / manifest.shards[number].path
    try:
        index = open_index(path, encoder, threads=threads)
    except CoilError as error:
        raise MissingShard(
            f"shard {number} of {len(manifest.shards)} cannot be opened: {reason_of(error)}",
            "restore the shard from a backup, or rebuild the index",
            [number],
        ) from error
    try:
        with index.held() as snapshot:
            found = snapshot.manifest
            manifest.check_shard(number, str(path), found.index_id, found.settings, found.version)
    except BaseException:
        index.close()
        raise
    return index


def open_sharded(path: str | Path, encoder: Encoder | None = None, threads: int = 1) -> ShardedIndex:
    """Open a sharded index with all of its shards in this process."""
    manifest = read_whole(path)
    check_finished(manifest, str(path))
    folder = whole_folder(check_path(path))
    shards: list[Shard] = []
    try:
        for number in range(len(manifest.shards)):
            index = open_shard(folder, manifest, number, encoder, threads)
            shards.append(Shard(index, number))
            encoder = index.encoder  # one for all
    except BaseException:
        _close(shards)
        raise
    calls = LocalCalls(shards)
    assert encoder is not None
    return ShardedIndex(manifest, calls, Ledger(calls, looks=True), encoder, close=calls.close)


def check_finished(manifest: WholeManifest, where: str) -> None:
    """Refuse an index whose build was interrupted: its shards do not have all documents."""
    if manifest.build is not None:
        raise UnfinishedBuild(
            f"{where} contains an unfinished build", "continue it with `coil index --ray … --resume`"
        )


def _close(shards: Sequence[Shard]) -> None:
    for shard in shards:
        shard.close()
