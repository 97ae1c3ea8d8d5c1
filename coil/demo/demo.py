"""A searcher over the standard library's documentation, kept in a folder so that it is encoded only once."""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from safetensors import SafetensorError

from coil import __version__
from coil.errors import CoilError, OutputError
from coil.hits.searcher import Searcher
from coil.lists.segment import Segment
from coil.texts.values import Document
from coil.vectors.encoder import Encoder

QUESTIONS = (
    "cancel a task that takes too long",
    "read a file line by line",
    "delete a folder and everything in it",
)

SEGMENT_FILE = "segment.safetensors"
DOCUMENTS_FILE = "documents.jsonl"
MANIFEST_FILE = "manifest.json"  # written last: without it, or if it does not fit, nothing is reused


@dataclass(frozen=True)
class Prepared:
    """A searcher and how long it took to get it.

    `reused`: it was read from the folder. `saved`: it is in the folder now. `note`: what went wrong on the
    way, empty if nothing did.
    """

    searcher: Searcher
    reused: bool
    saved: bool
    seconds: float
    note: str = ""


@dataclass(frozen=True)
class Key:
    """What a saved demo depends on; it is reused only when all of it is the same."""

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
    """The saved searcher if it fits and is whole; else read, encode and save.

    `start` is told how many documents will be encoded, and gives what is to hear of progress.
    """
    began = time.monotonic()
    key = Key.of(encoder)
    note = ""
    try:
        found = load(encoder, folder, key)
    except (CoilError, OSError, ValueError, KeyError, TypeError) as error:
        found, note = None, f"what was saved in {folder} was damaged ({error}), so it was made again"
    if found is not None:
        return Prepared(found, reused=True, saved=True, seconds=time.monotonic() - began)
    scratch = _make_scratch(folder)  # before the long part, so that a folder we may not use is told now
    try:
        documents = read_documents()
        progress = start(len(documents)) if start is not None else None
        searcher = Searcher.build(encoder, documents, progress)
        try:
            save(searcher, folder, key, scratch)
            saved = True
        except (OSError, SafetensorError) as error:  # a full disk must not cost the minutes just spent
            saved = False
            note = f"the encoded documents could not be saved in {folder}: {error}"
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return Prepared(searcher, reused=False, saved=saved, seconds=time.monotonic() - began, note=note)


def load(encoder: Encoder, folder: Path, key: Key) -> Searcher | None:
    """What `save` left in a folder, None if there is nothing or it belongs to something else.

    Files that are not what the manifest says raise an error: they are damaged.
    """
    manifest_path = folder / MANIFEST_FILE
    if not manifest_path.is_file():
        return None
    manifest = json.loads(manifest_path.read_text(encoding="utf-8"))
    if manifest["key"] != asdict(key):
        return None
    for name in (SEGMENT_FILE, DOCUMENTS_FILE):
        if _digest(folder / name) != manifest["sha256"][name]:
            raise CoilError(f"{name} is not the file that was saved")
    segment, _ = Segment.load(folder / SEGMENT_FILE)
    with (folder / DOCUMENTS_FILE).open(encoding="utf-8") as lines:
        documents = [Document(**json.loads(line)) for line in lines]
    return Searcher(encoder, segment, documents)


def save(searcher: Searcher, folder: Path, key: Key, scratch: Path) -> None:
    """Write segment, documents and manifest into `scratch`, then move them over, the manifest last.

    An interruption leaves the old files, or files that the manifest does not fit, which are made again.
    """
    searcher.segment.save(scratch / SEGMENT_FILE, {"model": key.model})
    with (scratch / DOCUMENTS_FILE).open("w", encoding="utf-8", newline="\n") as lines:
        for document in searcher.documents:
            lines.write(json.dumps(asdict(document)) + "\n")
    digests = {name: _digest(scratch / name) for name in (SEGMENT_FILE, DOCUMENTS_FILE)}
    manifest = {"key": asdict(key), "sha256": digests}
    (scratch / MANIFEST_FILE).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for name in (SEGMENT_FILE, DOCUMENTS_FILE, MANIFEST_FILE):
        (scratch / name).replace(folder / name)


def summary_span(document_text: str) -> tuple[int, int]:
    """The characters of the first paragraph after the signature: what a document of the demo is about."""
    start = document_text.find("\n\n") + 2 if "\n\n" in document_text else 0
    end = document_text.find("\n\n", start)
    return start, end if end >= 0 else len(document_text)


def _make_scratch(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder))
    except OSError as error:
        raise OutputError(
            f"the demo cannot be saved in {folder}: {error.strerror or error}",
            "choose a folder you may write to with `--cache DIR`",
        ) from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
