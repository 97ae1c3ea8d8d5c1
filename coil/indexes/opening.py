"""`coil.create` and `coil.open`: an index is made at a place, or the one that is there is opened."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import Any

from coil.errors import InputError, OutputError
from coil.indexes.index import Index, check_choice, check_memory
from coil.indexes.settings import ShardLabel
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.storage.disk import make_folders
from coil.storage.intake import Consumed, OnDuplicate
from coil.storage.lock import LOCK_FILE, writer_lock
from coil.storage.manifest import MANIFEST_FILE, Manifest, is_partial, publish
from coil.texts.columns import USUAL, Columns
from coil.tokens.contexts import USUAL_CONTEXT
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder


def create(
    path: str | Path,
    model: str | Path | None = None,
    precision: Precision = "int8",
    long: Long = "chunk",
    encoder: Encoder | None = None,
    memory: int | None = None,
    build_with: OnDuplicate | None = None,
    columns: Columns = USUAL,
    shard: ShardLabel | None = None,
) -> Index:
    """Make a new, empty index. `model` None is the bundled one; `long` "truncate" cuts long documents off.

    `memory`: bytes that the process may take while it changes the index. `build_with` marks the index as one
    whose building is not finished, and says what is done with duplicates; `columns` are those of its corpus.
    `shard` says which part of a sharded index it is.
    """
    folder = check_path(path)
    check_choice("precision", precision, Precision)
    check_choice("long", long, Long)
    check_memory(memory)
    check_free(folder)
    encoder = encoder if encoder is not None else OnnxEncoder(model)
    make_folders(folder)
    settings: dict[str, Any] = {
        "model": str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model,
        "fingerprint": encoder.fingerprint,
        "config": encoder.config.to_json(),
        "precision": precision,
        "long": long,
        "context": USUAL_CONTEXT.tokens,
        "front_matter": USUAL_CONTEXT.front_matter,
    }
    if shard is not None:
        settings["shard"] = shard.to_json()
    build = None
    if build_with is not None:
        build = Consumed(on_duplicate=build_with, columns=columns).to_json()
    with writer_lock(folder, new=True) as opened:
        check_free(folder)
        publish(opened, Manifest(uuid.uuid4().hex, settings, build=build), None)
    return Index(folder, encoder, memory)


def open_index(
    path: str | Path,
    encoder: Encoder | None = None,
    memory: int | None = None,
    threads: int = 1,
    device: str | None = None,
    model: str | Path | None = None,
) -> Index:
    """Open an index that is there, to search and to change it.

    `model` says where the model that it was made with is now, if that has moved. `memory` bounds the process
    while it changes the index, in bytes. `threads` share a search over many documents; `device`, such as
    "cuda", scores with PyTorch there.
    """
    folder = check_path(path)
    return Index(folder, encoder, memory, threads, device, model)


def check_path(path: object) -> Path:
    """The path of an index, whether or not there is one."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"the path is a {type(path).__name__}; expected a string or a Path", "name a folder")
    try:
        folder = Path(path)
        folder.absolute()
    except OSError as error:
        reason = f"{path} cannot be found: the working directory is gone"
        raise InputError(reason, "give an absolute path") from error
    except TypeError as error:
        raise InputError(f"{path!r:.200} is no path: {error}", "name a folder") from error
    try:
        os.stat(folder)
    except ValueError as error:
        raise InputError(f"{str(folder)!r:.200} is no path: {error}", "name a folder") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            reason = f"the path {str(folder)!r:.200} is too long for the system"
            raise InputError(reason, "choose a shorter one") from error
    return folder


def is_index(folder: Path) -> bool:
    """Whether there is an index, whole or damaged; what a kill while making one leaves is none."""
    return (folder / MANIFEST_FILE).exists()


def check_free(folder: Path) -> None:
    """Refuse a place where something is already."""
    taken = folder.exists() and not folder.is_dir()
    if folder.is_dir():
        taken = any(not _is_left_over(path.name) for path in folder.iterdir())
    if taken:
        raise OutputError(f"{folder} exists already", "open it with coil.open, or choose another name")


def _is_left_over(name: str) -> bool:
    """Of a process that was killed before it had made an index."""
    return name == LOCK_FILE or is_partial(name)
