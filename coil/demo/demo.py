"""An index of the standard library's documentation, stored in a folder so that it is encoded only once."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from coil import __version__
from coil.errors import CoilError, OutputError, reason_of
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from coil.texts.values import Document
from coil.vectors.encoder import Encoder

QUESTIONS = (
    "cancel a task that takes too long",
    "copy a file with its metadata",
    "the most common elements of a list",
)

INDEX_FOLDER = "python-docs.coil"
MANIFEST_FILE = "manifest.json"
AT_ONCE = 512  # documents per commit: an interruption loses at most this many


@dataclass(frozen=True)
class Prepared:
    """An index, and how long it took to prepare.

    `reused`: a complete index was found. `note`: a problem with the saved index, empty if there was none.
    """

    index: Index
    reused: bool
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Key:
    """What a saved demo depends on; it is reused only if nothing of this has changed."""

    model: str
    python: str
    coil: str

    @classmethod
    def of(cls, encoder: Encoder) -> Key:
        """The key of this encoder in this Python."""
        return cls(encoder.fingerprint, f"{sys.version} at {sys.base_prefix}", __version__)


def prepare(
    encoder: Encoder,
    folder: Path,
    read_documents: Callable[[], Sequence[Document]],
    start: Callable[[int], Callable[[int], object]] | None = None,
) -> Prepared:
    """The saved index, if it matches and is intact; an unfinished one is completed, any other is rebuilt.

    `start` is called with the number of documents to encode and returns a progress callback.
    """
    began = time.monotonic()
    key = asdict(Key.of(encoder))
    index, complete, note = None, False, ""
    try:
        manifest = _read_manifest(folder)
        if manifest.get("key") == key:
            index = open_index(folder / INDEX_FOLDER, encoder)
            index.verify()
            complete = bool(manifest["complete"])
    except (CoilError, OSError, ValueError, KeyError) as error:
        index, note = (
            None,
            f"the index saved in {folder} was damaged ({reason_of(error)}) and has been rebuilt",
        )
    if index is not None and complete:
        return Prepared(index, reused=True, seconds=time.monotonic() - began)
    if index is None:
        index = _begin(encoder, folder, key)
    documents = read_documents()
    missing = [d for d in documents if not index.has(d.doc_id)]
    progress = start(len(missing)) if start is not None else None
    for begin in range(0, len(missing), AT_ONCE):
        index.add(missing[begin : begin + AT_ONCE], committed=progress)
    _write_manifest(folder, {"key": key, "complete": True})
    return Prepared(index, reused=False, seconds=time.monotonic() - began, note=note)


def _begin(encoder: Encoder, folder: Path, key: dict[str, str]) -> Index:
    """Create an empty index, replacing an existing one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / MANIFEST_FILE).unlink(missing_ok=True)
        shutil.rmtree(folder / INDEX_FOLDER, ignore_errors=True)
        index = create(folder / INDEX_FOLDER, encoder=encoder)
        _write_manifest(folder, {"key": key, "complete": False})
    except (OSError, OutputError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(
            f"the demo cannot be saved in {folder}: {reason}",
            "choose a writable folder with `--cache DIR`",
        ) from error
    return index


def _read_manifest(folder: Path) -> dict[str, object]:
    path = folder / MANIFEST_FILE
    if not path.is_file():
        return {}
    value = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"{MANIFEST_FILE} does not contain an object")
    return value


def _write_manifest(folder: Path, value: dict[str, object]) -> None:
    partial = folder / f".{MANIFEST_FILE}.partial"
    partial.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / MANIFEST_FILE)


def summary_span(document_text: str) -> tuple[int, int]:
    """The span of the first paragraph after the signature, which summarizes a document of the demo."""
    start = document_text.find("\n\n") + 2 if "\n\n" in document_text else 0
    end = document_text.find("\n\n", start)
    return start, end if end >= 0 else len(document_text)
