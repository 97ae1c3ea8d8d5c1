"""The lists of a segment as one safetensors file, mapped in one piece. docs/format.md specifies the bytes.

Names, types, shapes and all arrays of offsets are checked whenever a file is opened. `check_mentions` checks
what only a scan of all mentions can reveal.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import fields
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.arrays import is_among
from coil.errors import DamagedSegment
from coil.lists.bounds import BLOCK, Bounds, find_bounds, norms_of, saturate
from coil.lists.dictionary import BLOCK_KEYS, Dictionary
from coil.lists.groups import GroupedVectors
from coil.lists.precision import StoredVectors
from coil.lists.segment import MOST_ROWS, Segment
from coil.lists.sentences import Sentences, head_width

FORMAT = "coil-lists-4"
REMEDY = "restore the file from a backup, or rebuild the index"
_LONGEST_HEADER = 1 << 20
_WIDEST = 1 << 16  # dimensions
_BOUNDS = [field.name for field in fields(Bounds)]
_PLAIN = (
    "list_offsets", "posting_offsets", "posting_rows", "posting_starts", "row_documents", "row_spans",
    "row_lengths",
)  # fmt: skip
_VECTORS = ("vectors", "sentence_heads", "sentence_tails")
_SCALES = {"vector_scales", "sentence_head_scales", "sentence_tail_scales"}
_REQUIRED = {"keys", "key_blocks", *_PLAIN, *_VECTORS, *_BOUNDS}
_OPTIONAL = {*_SCALES, "precise_vectors", "precise_sentences"}
_NUMBERS = ("k1", "b", "token_error", "sentence_error", "longest_sentence")
_DTYPES: dict[str, Any] = {
    "I8": np.int8,
    "U8": np.uint8,
    "U16": np.uint16,
    "U32": np.uint32,
    "I64": np.int64,
    "U64": np.uint64,
    "F16": np.float16,
    "F32": np.float32,
}
_CODES = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}

Refuse = Callable[[str], DamagedSegment]


def segment_bytes(segment: Segment) -> tuple[str, Iterator[bytes | memoryview]]:
    """The SHA-256 of a segment's header, and the bytes of its file in parts."""
    arrays = {name: np.ascontiguousarray(array) for name, array in _arrays(segment).items()}
    # Like the safetensors library: the widest types first, so that every array is aligned.
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    described: dict[str, Any] = {
        "__metadata__": {
            "format": FORMAT,
            "n_t": str(segment.vectors.dim),
            **{name: float(getattr(segment, name)).hex() for name in _NUMBERS},
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
    """The segment of a mapped file, whose bytes are not copied. `where` names the file in errors."""

    def refuse(what: str) -> DamagedSegment:
        return DamagedSegment(f"{where}: {what}", REMEDY)

    length = int.from_bytes(mapped[:8], "little")
    if len(mapped) < 8 or length > min(_LONGEST_HEADER, len(mapped) - 8):
        raise refuse("it is not a segment file, or its start is damaged")
    header = bytes(mapped[8 : 8 + length])
    if sha256(header).hexdigest() != header_sha256:
        raise refuse("its header has changed")
    try:
        described = json.loads(header)
        metadata = described.pop("__metadata__")
        if metadata["format"] != FORMAT:
            raise refuse(f"it has the format {metadata['format']!r:.40}; this version reads {FORMAT}")
        n_t = int(metadata["n_t"])
        numbers = {name: float.fromhex(metadata[name]) for name in _NUMBERS}
        arrays = _map_arrays(mapped[8 + length :], described)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise refuse(f"its header is invalid: {error}") from error
    if wrong := _REQUIRED - arrays.keys() or arrays.keys() - _REQUIRED - _OPTIONAL:
        raise refuse(f"{'unexpected' if wrong <= arrays.keys() else 'missing'} array {min(wrong)!r}")
    if not all(0.0 <= number < np.inf for number in numbers.values()) or numbers["b"] > 1.0:
        raise refuse("its header has a number that is out of range")
    _check_arrays(arrays, n_t, refuse)
    lists = len(arrays["list_offsets"]) - 1
    plain: dict[str, Any] = {name: arrays[name] for name in _PLAIN}
    plain |= numbers
    return Segment(
        dictionary=Dictionary(arrays["keys"], arrays["key_blocks"], lists),
        **plain,
        vectors=GroupedVectors(
            arrays["vectors"], arrays.get("vector_scales"), n_t, int(arrays["list_offsets"][-1])
        ),
        sentences=Sentences(
            StoredVectors(arrays["sentence_heads"], arrays.get("sentence_head_scales")),
            StoredVectors(arrays["sentence_tails"], arrays.get("sentence_tail_scales")),
        ),
        bounds=Bounds(**{name: arrays[name] for name in _BOUNDS}),
        precise_vectors=_precise(arrays.get("precise_vectors")),
        precise_sentences=_precise(arrays.get("precise_sentences")),
    )


def _precise(values: NDArray[Any] | None) -> StoredVectors | None:
    return None if values is None else StoredVectors(values, None)


def _map_arrays(data: memoryview, described: dict[str, Any]) -> dict[str, NDArray[Any]]:
    """Arrays over the bytes, without a copy; a ValueError if they do not fit."""
    arrays: dict[str, NDArray[Any]] = {}
    covered = 0
    for name, tensor in sorted(described.items(), key=lambda item: tuple(item[1]["data_offsets"])):
        begin, end = (int(at) for at in tensor["data_offsets"])
        shape, dtype = tuple(int(n) for n in tensor["shape"]), np.dtype(_DTYPES[tensor["dtype"]])
        count = 1
        for n in shape:
            count *= n
        if begin != covered or min(shape, default=0) < 0 or end - begin != count * dtype.itemsize:
            raise ValueError(f"{name!r:.40} has the wrong size or position")
        covered = end
        if end > len(data):
            raise ValueError(f"{name!r:.40} extends beyond the end of the file")
        if begin == end:
            arrays[name] = np.zeros(shape, dtype)
        elif begin % dtype.itemsize:
            raise ValueError(f"{name!r:.40} is not aligned")
        else:
            arrays[name] = np.frombuffer(data, dtype, count, begin).reshape(shape)
    if covered != len(data):
        raise ValueError("its arrays do not cover the whole file")
    return arrays


def _check_arrays(arrays: dict[str, NDArray[Any]], n_t: int, refuse: Refuse) -> None:
    """Check types, shapes and offsets, on which a search relies."""
    lists, postings = len(arrays["list_offsets"]) - 1, len(arrays["posting_rows"])
    rows = len(arrays["row_documents"])
    heads, tails = arrays["sentence_heads"], arrays["sentence_tails"]
    widths = [array.shape[1] if array.ndim == 2 else -1 for array in (heads, tails)]
    n_c = sum(widths)
    precision = arrays["vectors"].dtype
    if rows > MOST_ROWS or not 0 <= n_t <= _WIDEST or min(widths) < 0 or n_c > _WIDEST or lists < 0:
        raise refuse("it exceeds the limit of rows or dimensions of a segment")
    mentions = int(arrays["list_offsets"][-1]) if arrays["list_offsets"].dtype == np.uint32 else 0
    blocks, long = len(arrays["block_mentions"]), len(arrays["long_lists"])
    expected: dict[str, tuple[Any, tuple[int, ...]]] = {
        "keys": (np.uint8, (arrays["keys"].size,)),
        "key_blocks": (np.uint32, (-(-lists // BLOCK_KEYS) + 1,)),
        "list_offsets": (np.uint32, (lists + 1,)),
        "posting_offsets": (np.uint32, (lists + 1,)),
        "posting_rows": (np.uint16, (postings,)),
        "posting_starts": (np.uint64, (-(-mentions // 64),)),
        "vectors": (precision, (mentions * n_t,)),
        "sentence_heads": (precision, (rows, head_width(n_c))),
        "sentence_tails": (precision, (rows, n_c - head_width(n_c))),
        "row_documents": (np.int64, (rows,)),
        "row_spans": (np.uint32, (rows, 2)),
        "row_lengths": (np.uint32, (rows,)),
        "list_norms": (np.float32, (lists,)),
        "list_factors": (np.uint8, (lists,)),
        "long_lists": (np.uint32, (long,)),
        "long_offsets": (np.uint32, (long + 1,)),
        "block_mentions": (np.uint32, (blocks,)),
        "block_norms": (np.float32, (blocks,)),
        "block_factors": (np.uint8, (blocks,)),
        "tail_norms": (np.uint8, (rows,)),
        "norm_step": (np.float32, (1,)),
    }
    if precision == np.int8:
        expected |= {
            "vector_scales": (np.uint8, (mentions,)),
            "sentence_head_scales": (np.uint8, (rows,)),
            "sentence_tail_scales": (np.uint8, (rows,)),
        }
    elif precision not in (np.float16, np.float32):
        raise refuse(f"its vectors have the invalid type {precision}")
    if "precise_vectors" in arrays or "precise_sentences" in arrays:
        precise = arrays["precise_vectors"].dtype if "precise_vectors" in arrays else None
        if precise not in (np.float16, np.float32):
            raise refuse("its precise vectors have an invalid type")
        expected |= {
            "precise_vectors": (precise, (mentions, n_t)),
            "precise_sentences": (precise, (rows, n_c)),
        }
    for name, (dtype, shape) in expected.items():
        if name not in arrays or arrays[name].dtype != dtype or arrays[name].shape != shape:
            found = f"{arrays[name].dtype} {arrays[name].shape}" if name in arrays else "missing"
            raise refuse(f"{name} is {found}; expected {np.dtype(dtype)} {shape}")
    for name in _SCALES & arrays.keys() - expected.keys():
        raise refuse(f"unexpected array {name!r}")
    lengths = _lengths(arrays["list_offsets"], mentions, "list_offsets", refuse)
    counts = _lengths(arrays["posting_offsets"], postings, "posting_offsets", refuse)
    if (counts < 1).any() or (counts > lengths).any():
        raise refuse("a list has more postings than mentions, or none")
    _lengths(arrays["key_blocks"], arrays["keys"].size, "key_blocks", refuse)
    of_long = _lengths(arrays["long_offsets"], blocks, "long_offsets", refuse)
    wanted = np.flatnonzero(counts > BLOCK)
    if not np.array_equal(arrays["long_lists"], wanted) or not np.array_equal(
        of_long, -(-counts[wanted] // BLOCK)
    ):
        raise refuse("a list has the wrong number of blocks for its length")
    documents, spans = arrays["row_documents"], arrays["row_spans"]
    if rows and (documents[0] < 0 or (documents[1:] < documents[:-1]).any()):
        raise refuse("its documents are not in ascending order")
    if rows and (spans[:, 0] > spans[:, 1]).any():
        raise refuse("a row has an invalid character span")
    _check_blocks(arrays, refuse)


def _check_blocks(arrays: dict[str, NDArray[Any]], refuse: Refuse) -> None:
    """Check that the blocks of a long list begin at its first mention and ascend within it."""
    offsets, long = arrays["list_offsets"].astype(np.int64), arrays["long_lists"].astype(np.int64)
    mentions, firsts = arrays["block_mentions"].astype(np.int64), arrays["long_offsets"].astype(np.int64)
    if not len(long):
        return
    lists = np.repeat(long, np.diff(firsts))
    ascending = np.ones(len(mentions), dtype=bool)
    ascending[1:] = mentions[1:] > mentions[:-1]
    ascending[firsts[:-1]] = mentions[firsts[:-1]] == offsets[long]
    if not ascending.all() or (mentions >= offsets[lists + 1]).any():
        raise refuse("the blocks of a list start outside it")


def _lengths(offsets: NDArray[np.uint32], end: int, name: str, refuse: Refuse) -> NDArray[np.int64]:
    """The differences of offsets, which must begin at 0, never decrease, and end at `end`."""
    rising = bool((offsets[1:] >= offsets[:-1]).all())  # compared, because a difference could overflow
    if offsets[0] != 0 or offsets[-1] != end or not rising:
        raise refuse(f"{name} has the wrong extent")
    lengths: NDArray[np.int64] = offsets[1:].astype(np.int64) - offsets[:-1].astype(np.int64)
    return lengths


def check_mentions(segment: Segment, where: str) -> None:
    """Check everything that a search reads: rows in range and in order, finite numbers, valid bounds."""

    def refuse(what: str) -> DamagedSegment:
        return DamagedSegment(f"{where}: {what}", REMEDY)

    names = list(segment.dictionary)
    if any(a.encode() >= b.encode() for a, b in pairwise(names)):
        raise refuse("its keys are not in ascending order")
    rows = segment.mention_rows()
    counted = np.bincount(rows, minlength=segment.n_rows)
    if not np.array_equal(counted, segment.row_lengths):
        raise refuse("a row has a different number of mentions than its length")
    starts = segment.posting_mentions()
    falls = np.flatnonzero(segment.posting_rows[1:] <= segment.posting_rows[:-1]) + 1
    begins = segment.posting_offsets[:-1].astype(np.int64)
    if not is_among(falls, begins).all() or not np.array_equal(starts[begins], segment.list_offsets[:-1]):
        raise refuse("the rows of a list are not in ascending order, or wrong in number")
    _check_numbers(segment, refuse)
    _check_bounds(segment, starts, refuse)


def _check_numbers(segment: Segment, refuse: Refuse) -> None:
    bounds = segment.bounds
    stored = (segment.vectors.values, *(part.values for part in segment.sentences.parts))
    for values in (*stored, bounds.list_norms, bounds.block_norms, bounds.norm_step):
        if values.dtype != np.int8 and not np.isfinite(values).all():
            raise refuse("a vector or norm contains NaN or infinity")


def _check_bounds(segment: Segment, starts: NDArray[np.int64], refuse: Refuse) -> None:
    """Refuse bounds that are too low: a search would miss hits."""
    counts = np.diff(starts, append=segment.n_mentions)
    lengths = segment.row_lengths[segment.posting_rows]
    factors = saturate(counts, lengths, segment.mean_length, segment.k1, segment.b)
    wanted = find_bounds(
        segment.list_offsets, segment.posting_offsets, starts, factors, segment.vectors, segment.sentences
    )
    bounds = segment.bounds
    for name in ("long_lists", "long_offsets", "block_mentions"):
        if not np.array_equal(getattr(bounds, name), getattr(wanted, name)):
            raise refuse(f"{name} does not match its lists")
    of_lists = ("list_norms", "list_factors", "block_norms", "block_factors")
    longest = norms_of(StoredVectors(segment.sentences.decode(), None)).max(initial=0.0)
    pairs = [
        *((getattr(bounds, name), getattr(wanted, name)) for name in of_lists),
        (bounds.tail_norms * np.float64(bounds.norm_step[0]), norms_of(segment.sentences.tail)),
        (np.array([segment.longest_sentence]), np.array([longest])),
    ]
    # Another processor may round the last digit of a length differently.
    if any((found < least * (1 - 1e-6)).any() for found, least in pairs):
        raise refuse("a bound is too low")


def _arrays(segment: Segment) -> dict[str, NDArray[Any]]:
    head, tail = segment.sentences.parts
    arrays: dict[str, NDArray[Any]] = {
        "keys": segment.dictionary.keys,
        "key_blocks": segment.dictionary.key_blocks,
        **{name: getattr(segment, name) for name in _PLAIN},
        "vectors": segment.vectors.values,
        "sentence_heads": head.values,
        "sentence_tails": tail.values,
        **{name: getattr(segment.bounds, name) for name in _BOUNDS},
    }
    if segment.vectors.scales is not None and head.scales is not None and tail.scales is not None:
        arrays |= {
            "vector_scales": segment.vectors.scales,
            "sentence_head_scales": head.scales,
            "sentence_tail_scales": tail.scales,
        }
    if segment.precise_vectors is not None and segment.precise_sentences is not None:
        arrays |= {
            "precise_vectors": segment.precise_vectors.values,
            "precise_sentences": segment.precise_sentences.values,
        }
    return arrays
