"""A segment as one file: written once, checked, mapped into memory. docs/format.md gives the bytes."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import save_file

from coil.errors import DamagedSegment, MissingSegment, OutputError
from coil.lists.bounds import Bounds, Sketches, find_bounds
from coil.lists.groups import GroupedVectors, group_vectors
from coil.lists.precision import StoredVectors
from coil.lists.segment import Segment

FORMAT = "coil-segment-4"
THIRD_FORMAT = "coil-segment-3"  # the same arrays, three of them under other names
SECOND_FORMAT = "coil-segment-2"  # sketches are dimensions, which are not used any more; read for ever
FIRST_FORMAT = "coil-segment-1"  # vectors one after another, no bounds; read for ever
_ARRAYS = {
    "list_ids", "list_offsets", "mention_rows", "vectors", "sentences", "row_documents", "row_spans",
}  # fmt: skip
_NORMS = [field.name for field in fields(Bounds) if field.name != "sketches"]
_SKETCHES = [field.name for field in fields(Sketches)]
_OLD_NAMES = {"heads": "sketches", "head_scales": "sketch_scales", "head_axes": "sketch_axes"}
_WANTED = {
    FIRST_FORMAT: _ARRAYS,
    SECOND_FORMAT: {*_ARRAYS, *_NORMS},
    THIRD_FORMAT: {*_ARRAYS, *_NORMS, *_SKETCHES},
    FORMAT: {*_ARRAYS, *_NORMS, *_SKETCHES},
}
DTYPES: dict[str, Any] = {
    "I8": np.int8,
    "U8": np.uint8,
    "U16": np.uint16,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
}


@dataclass(frozen=True)
class FileFacts:
    """What the catalog knows about a segment file: enough to notice any change."""

    bytes: int
    sha256: str
    header_sha256: str


def write_segment(path: Path, segment: Segment) -> FileFacts:
    """Write a segment, whole or not at all, and make sure that it is on the disk."""
    arrays = _arrays(segment)
    metadata = {
        "format": FORMAT,
        "n_t": str(segment.vectors.dim),
        "token_error": float(segment.token_error).hex(),
        "sentence_error": float(segment.sentence_error).hex(),
    }
    partial = path.with_name(path.name + ".partial")
    try:
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, partial, metadata)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.chmod(0o644)  # whoever may enter the folder may read
        facts = file_facts(partial)
        os.replace(partial, path)
        sync_folder(path.parent)
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise OutputError(
            f"{path} cannot be written: {reason}",
            "free some space or choose another place; what was there before is untouched",
        ) from error
    return facts


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk, where the system can."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_segment(path: Path, facts: FileFacts) -> Segment:
    """Map a segment. Size and header are checked here, every byte by `check_segment`."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            header = _read_header(file.read(8), file, path)
    except FileNotFoundError as error:
        raise MissingSegment(
            f"{path} is missing", "restore it from a backup, or build the index again"
        ) from error
    if size != facts.bytes:
        raise DamagedSegment(f"{path} has {size:,} bytes, but {facts.bytes:,} were written", _REMEDY)
    if hashlib.sha256(header).hexdigest() != facts.header_sha256:
        raise DamagedSegment(f"{path} has another header than was written", _REMEDY)
    described = json.loads(header)
    metadata = described.pop("__metadata__")
    if metadata["format"] not in _WANTED:
        raise DamagedSegment(
            f"{path} has the format {metadata['format']}, this version reads {FORMAT}", "upgrade coil-ir"
        )
    if metadata["format"] == THIRD_FORMAT:
        described = {_OLD_NAMES.get(name, name): tensor for name, tensor in described.items()}
    if missing := sorted(_WANTED[metadata["format"]] - described.keys()):
        raise DamagedSegment(f"{path} has no array named {missing[0]!r}", "build the index again")
    arrays = {name: _map(path, 8 + len(header), tensor) for name, tensor in described.items()}
    sentences = StoredVectors(arrays["sentences"], arrays.get("sentence_scales"))
    if metadata["format"] == FIRST_FORMAT:
        vectors = group_vectors(StoredVectors(arrays["vectors"], arrays.get("vector_scales")))
        bounds = find_bounds(arrays["list_offsets"], vectors, sentences)
    else:
        n_t, mentions = int(metadata["n_t"]), len(arrays["mention_rows"])
        vectors = GroupedVectors(arrays["vectors"], arrays.get("vector_scales"), n_t, mentions)
        own = metadata["format"] in (FORMAT, THIRD_FORMAT)
        sketches = Sketches(**{name: arrays[name] for name in _SKETCHES}) if own else Sketches.none()
        bounds = Bounds(**{name: arrays[name] for name in _NORMS}, sketches=sketches)
    return Segment(
        list_ids=arrays["list_ids"],
        list_offsets=arrays["list_offsets"],
        mention_rows=arrays["mention_rows"],
        vectors=vectors,
        sentences=sentences,
        row_documents=arrays["row_documents"],
        row_spans=arrays["row_spans"],
        bounds=bounds,
        precise_vectors=_precise(arrays.get("precise_vectors")),
        precise_sentences=_precise(arrays.get("precise_sentences")),
        token_error=float.fromhex(metadata["token_error"]),
        sentence_error=float.fromhex(metadata["sentence_error"]),
    )


def _precise(values: NDArray[Any] | None) -> StoredVectors | None:
    return None if values is None else StoredVectors(values, None)


def check_segment(path: Path, facts: FileFacts) -> None:
    """Read every byte and compare."""
    open_segment(path, facts)
    if file_facts(path) != facts:
        raise DamagedSegment(f"{path} is not what was written: a byte has changed", _REMEDY)


_REMEDY = "restore the file from a backup, or build the index again"


def file_facts(path: Path) -> FileFacts:
    """Size and digests of a file as it is."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        start = file.read(8)
        header = file.read(int.from_bytes(start, "little"))
        digest.update(start + header)
        while block := file.read(1 << 20):
            digest.update(block)
    return FileFacts(path.stat().st_size, digest.hexdigest(), hashlib.sha256(header).hexdigest())


def _read_header(start: bytes, file: Any, path: Path) -> bytes:
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > 1 << 20:
        raise DamagedSegment(f"{path} does not start as a segment does", _REMEDY)
    header: bytes = file.read(length)
    return header


def _map(path: Path, base: int, tensor: dict[str, Any]) -> NDArray[Any]:
    begin, end = tensor["data_offsets"]
    shape, dtype = tuple(tensor["shape"]), DTYPES[tensor["dtype"]]
    if begin == end:
        return np.zeros(shape, dtype)
    mapped = np.memmap(path, dtype=dtype, mode="r", offset=base + begin, shape=shape)
    return mapped.view(np.ndarray)  # the same memory, without memmap's cost at each small access


def _arrays(segment: Segment) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {
        "list_ids": segment.list_ids,
        "list_offsets": segment.list_offsets,
        "mention_rows": segment.mention_rows,
        "vectors": segment.vectors.values,
        "sentences": segment.sentences.values,
        "row_documents": segment.row_documents,
        "row_spans": segment.row_spans,
        **{name: getattr(segment.bounds, name) for name in _NORMS},
        **{name: getattr(segment.bounds.sketches, name) for name in _SKETCHES},
    }
    if segment.vectors.scales is not None and segment.sentences.scales is not None:
        arrays |= {"vector_scales": segment.vectors.scales, "sentence_scales": segment.sentences.scales}
    if segment.precise_vectors is not None and segment.precise_sentences is not None:
        arrays |= {
            "precise_vectors": segment.precise_vectors.values,
            "precise_sentences": segment.precise_sentences.values,
        }
    return arrays
