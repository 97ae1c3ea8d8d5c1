"""A segment's lists as one file: a safetensors file, mapped in one piece. docs/format.md gives the bytes.

What a file says about itself is checked when it is opened, whoever wrote it: names, types, shapes, and every
array of offsets. What only a scan of all mentions would show is checked by `check_mentions`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.errors import DamagedSegment
from coil.lists.bounds import BLOCK, MOST_AXES, Bounds, Sketches
from coil.lists.groups import LANES, GroupedVectors
from coil.lists.precision import StoredVectors
from coil.lists.segment import MOST_ROWS, Segment

FORMAT = "coil-lists-4"
REMEDY = "restore the file from a backup, or build the index again"
_LONGEST_HEADER = 1 << 20
_WIDEST = 1 << 16  # dimensions
_NORMS = [field.name for field in fields(Bounds) if field.name != "sketches"]
_SKETCHES = [field.name for field in fields(Sketches)]
_VECTORS = ("vectors", "sentences")
_REQUIRED = {
    "list_ids", "list_offsets", "mention_rows", "row_documents", "row_spans", *_VECTORS, *_NORMS, *_SKETCHES,
}  # fmt: skip
_OPTIONAL = {"vector_scales", "sentence_scales", "precise_vectors", "precise_sentences"}
_DTYPES: dict[str, Any] = {
    "I8": np.int8,
    "U8": np.uint8,
    "U16": np.uint16,
    "I32": np.int32,
    "I64": np.int64,
    "F16": np.float16,
    "F32": np.float32,
}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}

Refuse = Callable[[str], DamagedSegment]


def segment_bytes(segment: Segment) -> tuple[str, Iterator[bytes | memoryview]]:
    """The SHA-256 of a segment's header, and its file in parts."""
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(segment).items()}
    # As the library does: the widest types first, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    described: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "n_t": str(segment.vectors.dim),
            "token_error": float(segment.token_error).hex(),
            "sentence_error": float(segment.sentence_error).hex(),
        }
    }
    end = 0
    for name in names:
        begin, end = end, end + arrays[name].nbytes
        described[name] = {
            "dtype": _CODES[arrays[name].dtype],
            "shape": list(arrays[name].shape),
            "data_offsets": [begin, end],
        }
    header = json.dumps(described, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)

    def parts() -> Iterator[bytes | memoryview]:
        yield len(header).to_bytes(8, "little") + header
        for name in names:
            yield arrays[name].reshape(-1).view(np.uint8).data

    return sha256(header).hexdigest(), parts()


def open_segment(mapped: memoryview, where: str, header_sha256: str) -> Segment:
    """The segment of a file's bytes, which stay where they are. `where` names the file in errors."""

    def refuse(what: str) -> DamagedSegment:
        return DamagedSegment(f"{where}: {what}", REMEDY)

    length = int.from_bytes(mapped[:8], "little")
    if len(mapped) < 8 or length > min(_LONGEST_HEADER, len(mapped) - 8):
        raise refuse("it does not start as a segment does")
    header = bytes(mapped[8 : 8 + length])
    if sha256(header).hexdigest() != header_sha256:
        raise refuse("its header is not the one that was written")
    try:
        described = json.loads(header)
        metadata = described.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise refuse(f"it has the format {metadata['format']!r:.40}; this version reads {FORMAT}")
        n_t = int(metadata["n_t"])
        errors = [float.fromhex(metadata[name]) for name in ("token_error", "sentence_error")]
        arrays = _map_arrays(mapped[8 + length :], described)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(f"its header makes no sense: {error}") from error
    if wrong := _REQUIRED - arrays.keys() or arrays.keys() - _REQUIRED - _OPTIONAL:
        raise refuse(f"it should have {'no' if wrong <= arrays.keys() else 'an'} array named {min(wrong)!r}")
    _check_arrays(arrays, n_t, refuse)
    mentions = len(arrays["mention_rows"])
    return Segment(
        list_ids=arrays["list_ids"],
        list_offsets=arrays["list_offsets"],
        mention_rows=arrays["mention_rows"],
        vectors=GroupedVectors(arrays["vectors"], arrays.get("vector_scales"), n_t, mentions),
        sentences=StoredVectors(arrays["sentences"], arrays.get("sentence_scales")),
        row_documents=arrays["row_documents"],
        row_spans=arrays["row_spans"],
        bounds=Bounds(
            **{name: arrays[name] for name in _NORMS},
            sketches=Sketches(**{name: arrays[name] for name in _SKETCHES}),
        ),
        precise_vectors=_precise(arrays.get("precise_vectors")),
        precise_sentences=_precise(arrays.get("precise_sentences")),
        token_error=errors[0],
        sentence_error=errors[1],
    )


def _precise(values: NDArray[Any] | None) -> StoredVectors | None:
    return None if values is None else StoredVectors(values, None)


def _map_arrays(data: memoryview, described: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays over the bytes; a ValueError where they do not fit into them."""
    arrays: dict[str, NDArray[Any]] = {}
    covered = 0
    for name, tensor in sorted(described.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        begin, end = (int(at) for at in tensor["data_offsets"])
        shape, dtype = tuple(int(n) for n in tensor["shape"]), np.dtype(_DTYPES[tensor["dtype"]])
        count = 1
        for n in shape:
            count *= n
        if begin != covered or min(shape, default=0) < 0 or end - begin != count * dtype.itemsize:
            raise ValueError(f"{name!r:.40} has another size or place")
        covered = end
        if end > len(data):
            raise ValueError(f"{name!r:.40} reaches beyond the end of the file")
        if begin == end:
            arrays[name] = np.zeros(shape, dtype)
        elif begin % dtype.itemsize:
            raise ValueError(f"{name!r:.40} is not aligned")
        else:
            arrays[name] = np.frombuffer(data, dtype, count, begin).reshape(shape)
    if covered != len(data):
        raise ValueError("its arrays do not fill it")
    return arrays


def _check_arrays(arrays: dict[str, NDArray[Any]], n_t: int, refuse: Refuse) -> None:
    """Types, shapes and offsets: what a search relies on without looking."""
    lists, mentions = len(arrays["list_ids"]), len(arrays["mention_rows"])
    rows = len(arrays["row_documents"])
    sentences = arrays["sentences"]
    n_c = sentences.shape[1] if sentences.ndim == 2 else -1
    precision = arrays["vectors"].dtype
    if rows > MOST_ROWS or not 0 <= n_t <= _WIDEST or not 0 <= n_c <= _WIDEST:
        raise refuse("it has more rows or dimensions than a segment can have")
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "list_ids": (np.int32, (lists,)),
        "list_offsets": (np.int64, (lists + 1,)),
        "mention_rows": (np.uint16, (mentions,)),
        "vectors": (precision, (mentions * n_t,)),
        "sentences": (precision, (rows, n_c)),
        "row_documents": (np.int64, (rows,)),
        "row_spans": (np.int64, (rows, 2)),
        "list_norms": (np.float32, (lists,)),
        "block_offsets": (np.int64, (lists + 1,)),
        "block_norms": (np.float32, arrays["block_norms"].shape[:1]),
        "sentence_norms": (np.float32, (-(-rows // BLOCK),)),
        "norm_step": (np.float32, (1,)),
    }
    if precision == np.int8:
        expected |= {"vector_scales": (np.uint8, (mentions,)), "sentence_scales": (np.uint8, (rows,))}
    elif precision not in (np.float16, np.float32):
        raise refuse(f"its vectors are {precision}")
    if "precise_vectors" in arrays or "precise_sentences" in arrays:
        precise = arrays["precise_vectors"].dtype if "precise_vectors" in arrays else None
        if precise not in (np.float16, np.float32):
            raise refuse("its precise vectors are of a type that they cannot have")
        expected |= {
            "precise_vectors": (precise, (mentions, n_t)),
            "precise_sentences": (precise, (rows, n_c)),
        }
    expected |= _expected_sketches(arrays, rows, n_c)
    for name, (dtype, shape) in expected.items():
        if name not in arrays or arrays[name].dtype != dtype or arrays[name].shape != shape:
            found = f"{arrays[name].dtype} {arrays[name].shape}" if name in arrays else "missing"
            raise refuse(f"{name} is {found}; expected {np.dtype(dtype)} {shape}")
    for name in {"vector_scales", "sentence_scales"} & arrays.keys() - expected.keys():
        raise refuse(f"it should have no array named {name!r}")
    lengths = _lengths(arrays["list_offsets"], mentions, "list_offsets", refuse)
    blocks = _lengths(arrays["block_offsets"], len(arrays["block_norms"]), "block_offsets", refuse)
    if not np.array_equal(blocks, np.where(lengths > BLOCK, -(-lengths // BLOCK), 0)):
        raise refuse("a list has another number of blocks than its length asks for")
    if (np.diff(arrays["list_ids"].astype(np.int64), prepend=-1) <= 0).any():
        raise refuse("its lists are not in ascending order")
    documents, spans = arrays["row_documents"], arrays["row_spans"]
    if rows and (documents[0] < 0 or (documents[1:] < documents[:-1]).any()):
        raise refuse("its documents are not in ascending order")
    if rows and ((spans < 0).any() or (spans[:, 0] > spans[:, 1]).any()):
        raise refuse("a row has characters that it cannot have")


def _expected_sketches(
    arrays: dict[str, NDArray[Any]], rows: int, n_c: int
) -> dict[str, tuple[Any, tuple[int, ...]]]:
    """Sketches of all rows, or of none."""
    axes = min(n_c, MOST_AXES) if arrays["sketches"].size else 0
    rows = rows if axes else 0
    quads = -(-axes // 4)
    return {
        "sketches": (np.int8, (-(-rows // LANES), quads, 4 * LANES)),
        "sketch_scales": (np.uint8, (rows,)),
        "sketch_axes": (np.float32, (axes, n_c if axes else 0)),
        "row_norms": (np.uint8, (rows,)),
        "tail_norms": (np.uint8, (rows,)),
    }


def _lengths(offsets: NDArray[np.int64], end: int, name: str, refuse: Refuse) -> NDArray[np.int64]:
    """The differences of offsets, which begin at 0, never fall and end where they should."""
    rising = bool((offsets[1:] >= offsets[:-1]).all())  # no difference of hostile numbers may overflow
    if offsets[0] != 0 or offsets[-1] != end or not rising:
        raise refuse(f"{name} does not cover what it should")
    return np.diff(offsets)


def check_mentions(segment: Segment, where: str) -> None:
    """Read everything that a search would read: rows in range and in order, numbers that are numbers."""

    def refuse(what: str) -> DamagedSegment:
        return DamagedSegment(f"{where}: {what}", REMEDY)

    rows = segment.mention_rows.astype(np.int32)
    if len(rows) and int(rows.max()) >= segment.n_rows:
        raise refuse("a mention is in a row that is not there")
    falls = np.flatnonzero(np.diff(rows) < 0) + 1
    if not np.isin(falls, segment.list_offsets).all():
        raise refuse("the rows of a list are not in ascending order")
    for values in (segment.vectors.values, segment.sentences.values, segment.bounds.list_norms):
        if values.dtype != np.int8 and not np.isfinite(values).all():
            raise refuse("a vector or norm holds NaN or infinity")


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
