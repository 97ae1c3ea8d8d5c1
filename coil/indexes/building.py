"""Building an index from a whole corpus: starts a build, or resumes an interrupted one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from coil.errors import IndexLocked, OptionMismatch, OutputError, UnfinishedBuild, how_many
from coil.indexes.index import Index
from coil.indexes.opening import check_free, check_path, create, is_index, open_index
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.storage.intake import Consumed, OnDuplicate
from coil.storage.lock import writer_lock
from coil.texts.columns import USUAL, Columns
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder


def check_build(
    path: str | Path,
    model: str | Path | None = None,
    precision: Precision | None = None,
    long: Long | None = None,
    on_duplicate: OnDuplicate | None = None,
    resume: bool = False,
    columns: Columns = USUAL,
) -> Consumed:
    """Reject what `open_build` would reject, without creating anything; return the progress of the build."""
    folder = check_path(path)
    if is_index(folder):
        opened, state = open_build(folder, model, precision, long, on_duplicate, resume, columns=columns)
        opened.close()
        return state
    check_free(folder)
    above = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise OutputError(
            f"{folder} cannot be created: {above} is not a writable folder", "choose another location"
        )
    return Consumed(on_duplicate=on_duplicate or "error", columns=columns)


def _check_stopped(folder: Path) -> None:
    """Reject a build that another process is still working on: it must not be removed, nor resumed."""
    try:
        with writer_lock(folder) as lock, lock.held():
            pass
    except IndexLocked as error:
        error.remedy = (
            "wait until it has finished, or stop that process and continue with --resume; "
            "you can search in the meantime"
        )
        raise
    except OutputError:  # the folder cannot be written; whatever comes next says so
        pass


def open_build(
    path: str | Path,
    model: str | Path | None = None,
    precision: Precision | None = None,
    long: Long | None = None,
    on_duplicate: OnDuplicate | None = None,
    resume: bool = False,
    encoder: Encoder | None = None,
    memory: int | None = None,
    columns: Columns = USUAL,
) -> tuple[Index, Consumed]:
    """Create an index to `build` or, with `resume`, open an interrupted build; also return its progress.

    Options that are None, and columns that are not named, take their defaults, or the values of the
    interrupted build; any other values are an error. Only a build that stops at duplicates may continue by
    updating or skipping them: so far there were none.
    """
    folder = check_path(path)
    if not is_index(folder):
        mode = on_duplicate or "error"
        made = create(folder, model, precision or "int8", long or "chunk", encoder, memory, mode, columns)
        return made, Consumed(on_duplicate=mode, columns=columns)
    opened = open_index(folder, encoder, memory)
    state = opened.build_state()
    if state is not None and not state.finished:
        _check_stopped(folder)
    if not resume and state is not None and not state.finished:
        raise UnfinishedBuild(
            f"{folder} contains an unfinished build ({how_many(state.documents, 'document')} so far)",
            "continue it with --resume, or remove it to start over",
        )
    if not resume:
        raise OutputError(f"{folder} already exists", "add to it with `coil add`, or choose another name")
    if state is None:
        raise OutputError(f"{folder} was not built by `coil index`", "add to it with `coil add`")
    if encoder is None and model is not None:
        opened.use(OnnxEncoder(model))
    if state.on_duplicate == "error" and on_duplicate is not None:
        state = replace(state, on_duplicate=on_duplicate)
    begun = {**opened.settings(), "on_duplicate": state.on_duplicate}
    for name, given in (("precision", precision), ("long", long), ("on_duplicate", on_duplicate)):
        if given is not None and given != begun[name]:
            raise OptionMismatch(
                f"{folder} was started with --{name.replace('_', '-')} {begun[name]}, not {given}",
                "resume with the original options, or remove it to start over",
            )
    if columns.named and columns != state.columns:
        raise OptionMismatch(
            f"{folder} was started with {state.columns}, not {columns}",
            "resume with the original column options or none of them, or remove it to start over",
        )
    return opened, state
