"""The settings of an index as stored in its manifest: checked when it is opened."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from coil.errors import DamagedManifest
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.storage.holder import Holder
from coil.storage.intake import Consumed
from coil.storage.manifest import MANIFEST_FILE, Manifest
from coil.storage.snapshot import open_snapshot

_CHOICES = {"precision": get_args(Precision), "long": get_args(Long)}
_SETTINGS = {
    "model": str | None,
    "fingerprint": str,
    "config": dict,
    "precision": str,
    "long": str,
    "context": int,
    "front_matter": bool,
}
_LONGEST_CONTEXT = 1 << 16
_REMEDY = "restore the index from a backup, or rebuild it"
_WHOLE_ID = re.compile(r"[0-9a-f]{32}")
MOST_SHARDS = 4096


@dataclass(frozen=True)
class ShardLabel:
    """Which part of a sharded index this is: the id of the whole, its own number, and the number of parts."""

    whole: str
    number: int
    count: int

    def __post_init__(self) -> None:
        numbers = (self.number, self.count)
        if not all(type(number) is int for number in numbers) or not 0 <= self.number < self.count:
            raise ValueError("its shard number is out of range")
        if self.count > MOST_SHARDS or _WHOLE_ID.fullmatch(self.whole) is None:
            raise ValueError("it is not a shard label")

    def __str__(self) -> str:
        return f"shard {self.number} of {self.count}"

    def to_json(self) -> dict[str, Any]:
        """As stored in the settings."""
        return asdict(self)


def read_shard(settings: Mapping[str, Any]) -> ShardLabel | None:
    """The part of a sharded index with these settings; raises ValueError or TypeError if malformed."""
    return ShardLabel(**settings["shard"]) if "shard" in settings else None


def open_holder(folder: Path) -> Holder:
    """Open the current state of the index at a path."""
    snapshot = open_snapshot(folder)
    try:
        _check_settings(snapshot.manifest, folder)
        read_build_state(snapshot.manifest, folder)
    except BaseException:
        snapshot.release()
        raise
    return Holder(snapshot)


def _check_settings(manifest: Manifest, folder: Path) -> None:
    settings = {"context": 0, "front_matter": False, **manifest.settings}  # defaults of older indexes
    for name, kind in _SETTINGS.items():
        usable = name in settings and isinstance(settings[name], kind)
        if usable and name in _CHOICES:
            usable = settings[name] in _CHOICES[name]
        if usable and name == "config":
            usable = all(type(settings[name].get(width)) is int for width in ("n_t", "n_c"))
        if usable and name == "context":
            usable = type(settings[name]) is int and 0 <= settings[name] <= _LONGEST_CONTEXT
        if not usable:
            raise DamagedManifest(
                f"{folder / MANIFEST_FILE} has no usable setting {name!r}",
                _REMEDY,
            )
    try:
        read_shard(settings)
    except (TypeError, ValueError) as error:
        raise DamagedManifest(
            f"{folder / MANIFEST_FILE} has no usable setting 'shard': {error}", _REMEDY
        ) from error


def read_build_state(manifest: Manifest, folder: Path) -> Consumed | None:
    """The progress of `coil index`, None if the index was created in another way."""
    if manifest.build is None:
        return None
    try:
        return Consumed.from_json(dict(manifest.build))
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedManifest(
            f"{folder / MANIFEST_FILE} has no usable build state",
            _REMEDY,
        ) from error
