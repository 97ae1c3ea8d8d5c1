"""`coil.create` and `coil.open`: create an index, or open an existing one."""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import Any

from coil.errors import InputError, OutputError
from coil.indexes.index import Index, check_choice, check_memory
from coil.indexes.settings import ShardLabel
from coil.interruptions import let_through
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.storage.disk import make_folders
from coil.storage.intake import Consumed, OnDuplicate
from coil.storage.lock import LOCK_FILE, writer_lock
from coil.storage.manifest import MANIFEST_FILE, Manifest, is_partial, publish
from coil.texts.columns import USUAL, Columns
from coil.tokens.contexts import USUAL_CONTEXT, ContextRule
from coil.vectors.encoder import Encoder
from coil.vectors.model_files import name_lastingly
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
    context: ContextRule = USUAL_CONTEXT,
    shard: ShardLabel | None = None,
) -> Index:
    """Create a new, empty index. `model` None is the bundled model; `long` "truncate" truncates long
    documents.

    `memory`: bytes that the process may use while it changes the index. `build_with` marks the index as an
    unfinished build and determines how duplicates are handled; `columns` are those of its corpus.
    `context` determines which title and headings of a document its chunks are encoded with.
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
        "model": name_lastingly(model),
        "fingerprint": encoder.fingerprint,
        "config": encoder.config.to_json(),
        "precision": precision,
        "long": long,
        "context": context.tokens,
        "front_matter": context.front_matter,
    }
    if shard is not None:
        settings["shard"] = shard.to_json()
    build = None
    if build_with is not None:
        build = Consumed(on_duplicate=build_with, columns=columns).to_json()
    with writer_lock(folder, new=True) as lock, lock.held():
        check_free(folder)
        publish(lock.folder, Manifest(uuid.uuid4().hex, settings, build=build), None)
    return Index(folder, encoder, memory)


def open_index(
    path: str | Path,
    encoder: Encoder | None = None,
    memory: int | None = None,
    threads: int = 1,
    device: str | None = None,
    model: str | Path | None = None,
) -> Index:
    """Open an existing index, to search and to change it.

    `model` is the new location of its model, if that has moved. `memory` limits the process while it changes
    the index, in bytes. `threads` share a search over many documents; `device`, such as "cuda", scores with
    PyTorch on that device.
    """
    folder = check_path(path)
    return Index(folder, encoder, memory, threads, device, model)


def check_path(path: object) -> Path:
    """The path of an index, whether or not it exists."""
    if not isinstance(path, str | os.PathLike):
        raise InputError(
            f"the path is a {type(path).__name__}; expected a string or a Path", "pass the path of a folder"
        )
    try:
        folder = Path(path)
        folder.absolute()
    except OSError as error:
        let_through(error)
        reason = f"{path} cannot be found: the working directory no longer exists"
        raise InputError(reason, "pass an absolute path") from error
    except TypeError as error:
        raise InputError(
            f"{path!r:.200} is not a valid path: {error}", "pass the path of a folder"
        ) from error
    try:
        os.stat(folder)
    except ValueError as error:
        raise InputError(
            f"{str(folder)!r:.200} is not a valid path: {error}", "pass the path of a folder"
        ) from error
    except OSError as error:
        let_through(error)
        if error.errno == errno.ENAMETOOLONG:
            reason = f"the path {str(folder)!r:.200} is too long"
            raise InputError(reason, "choose a shorter one") from error
    return folder


def is_index(folder: Path) -> bool:
    """Whether there is an index, intact or damaged; the remains of an interrupted creation do not count."""
    return (folder / MANIFEST_FILE).exists()


def check_free(folder: Path) -> None:
    """Reject a path where something already exists."""
    taken = folder.exists() and not folder.is_dir()
    if folder.is_dir():
        taken = any(not _is_left_over(path.name) for path in folder.iterdir())
    if taken:
        raise OutputError(f"{folder} already exists", "open it with coil.open, or choose another name")


def _is_left_over(name: str) -> bool:
    """Whether a file was left by a process that was killed before it had created an index."""
    return name == LOCK_FILE or is_partial(name)
