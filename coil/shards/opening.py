"""Create and open the shards of an index."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from coil.errors import (
    CoilError,
    InputError,
    MissingShard,
    OutputError,
    ReplacedIndex,
    UnfinishedBuild,
    reason_of,
)
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.indexes.settings import MOST_SHARDS
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.shards.calls import LocalCalls
from coil.shards.local import LocalShards
from coil.shards.places import Place, read_whole, write_whole
from coil.shards.shard import MOST_KEPT, Shard
from coil.shards.whole import WHOLE_FILE, ShardEntry, WholeManifest
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

_UNREAD = 2  # states that are kept although nobody reads them yet; each has open files


def shard_path(number: int) -> str:
    """The name of a shard's folder beside the manifest."""
    return f"{number:05}.coil"


def is_whole(path: Path) -> bool:
    """Whether a path leads to a sharded index: its folder, or its manifest."""
    return path.name == WHOLE_FILE or (path / WHOLE_FILE).exists()


def create_shards(
    place: Place,
    count: int,
    model: str | Path | None = None,
    precision: Precision = "int8",
    long: Long = "chunk",
    encoder: Encoder | None = None,
    build: Mapping[str, Any] | None = None,
) -> WholeManifest:
    """Create a sharded index without documents; `build` is the state of the build that starts."""
    if type(count) is not int or not 1 <= count <= MOST_SHARDS:
        raise InputError(f"{count!r:.40} shards; expected 1 to {MOST_SHARDS:,}", "change --shards")
    if place.names():
        raise OutputError(f"{place.where} already exists", "choose another name")
    encoder = encoder if encoder is not None else OnnxEncoder(model)
    blank = WholeManifest({}, tuple(ShardEntry(shard_path(n), "", 0, 0) for n in range(count)), build=build)
    entries: list[ShardEntry] = []
    for number, entry in enumerate(blank.shards):
        label = blank.label(number)
        with create(place.folder(entry.path), model, precision, long, encoder, shard=label) as made:
            entries.append(entry_of(made, entry.path))
            settings = made.settings()
        place.push(entry.path)
    del settings["shard"]
    manifest = blank.with_shards(entries, settings=settings)
    write_whole(place, manifest)
    return manifest


def entry_of(index: Index, path: str) -> ShardEntry:
    """The entry of a shard in the manifest of the whole."""
    with index.held() as snapshot:
        found = snapshot.manifest
        return ShardEntry(path, found.index_id, found.version, found.n_documents)


def open_shard(
    place: Place, manifest: WholeManifest, number: int, encoder: Encoder | None = None, threads: int = 1
) -> Index:
    """The index of one shard, which must be the one named in the manifest."""
    name = manifest.shards[number].path
    path = place.folder(name)
    try:
        place.pull(name)
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


def open_sharded(place: Place, encoder: Encoder | None = None, threads: int = 1) -> LocalShards:
    """Open a sharded index with all of its shards in this process."""
    stamp = place.stamp(WHOLE_FILE)
    manifest = read_whole(place)
    check_finished(manifest, place.where)
    shards: list[Shard] = []
    try:
        for number in range(len(manifest.shards)):
            shards.append(serve_shard(place, manifest, number, encoder, threads, _UNREAD))
            encoder = shards[-1].index.encoder  # shared by all shards
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    assert encoder is not None
    return LocalShards(
        manifest,
        LocalCalls(shards),
        encoder,
        claim=partial(place.claim, building=False),
        check_whole=_WholeCheck(place, manifest, stamp),
        reopen=partial(open_sharded, place, threads=threads),
    )


class _WholeCheck:
    """Detects that the manifest of an open index is missing, damaged, or that of another one."""

    def __init__(self, place: Place, manifest: WholeManifest, stamp: Hashable) -> None:
        self._place, self._manifest, self._stamp = place, manifest, stamp

    def __call__(self) -> None:
        stamp = self._place.stamp(WHOLE_FILE)
        if stamp is not None and stamp == self._stamp:
            return
        found = read_whole(self._place)
        if (found.whole, found.settings) != (self._manifest.whole, self._manifest.settings) or (
            [entry.index_id for entry in found.shards] != [entry.index_id for entry in self._manifest.shards]
        ):
            raise ReplacedIndex(f"{self._place.where} is another index now", "reopen it")
        self._stamp = stamp


def serve_shard(
    place: Place,
    manifest: WholeManifest,
    number: int,
    encoder: Encoder | None = None,
    threads: int = 1,
    most_kept: int = MOST_KEPT,
) -> Shard:
    """One shard, ready for calls; see `Shard` for `most_kept`."""
    index, name = open_shard(place, manifest, number, encoder, threads), manifest.shards[number].path
    return Shard(index, number, partial(place.pull, name), partial(place.push, name), most_kept)


def check_finished(manifest: WholeManifest, where: str) -> None:
    """Refuse an index whose build was interrupted: its shards do not have all documents."""
    if manifest.build is not None:
        raise UnfinishedBuild(
            f"{where} contains an unfinished build", "continue it with `coil index --ray … --resume`"
        )
