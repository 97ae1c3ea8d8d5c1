"""The token vectors of a collection on disk in fp16, and an exact MaxSim search over all of them.

    FOLDER/shape.json      {"format": 1, "width": n, "documents": N, "vectors": M}
    FOLDER/vectors.fp16    M × n numbers, document by document
    FOLDER/starts.npy      [N + 1] first vector of each document
    FOLDER/doc_ids.json    the ids in order

All documents are scored, in blocks that are mapped from disk and converted to fp32.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from coil.errors import DamagedSegment, MissingIndex

FORMAT = 1
BLOCK = 1 << 16  # vectors converted at a time; a document is never split
SHAPE_FILE, VECTORS_FILE, STARTS_FILE, IDS_FILE = "shape.json", "vectors.fp16", "starts.npy", "doc_ids.json"
_REBUILD = "rebuild the index"


def write_vectors(folder: Path, documents: Iterable[tuple[str, NDArray[np.float32]]]) -> None:
    """Write ids and their token vectors [tokens, width]; the shape is written last, when all is complete."""
    doc_ids: list[str] = []
    counts: list[int] = []
    width = 0
    with (folder / VECTORS_FILE).open("wb") as file:
        for doc_id, vectors in documents:
            doc_ids.append(doc_id)
            counts.append(len(vectors))
            width = vectors.shape[1]
            file.write(vectors.astype(np.float16).tobytes())
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    np.save(folder / STARTS_FILE, starts)
    (folder / IDS_FILE).write_text(json.dumps(doc_ids), encoding="utf-8")
    shape = {"format": FORMAT, "width": width, "documents": len(doc_ids), "vectors": int(starts[-1])}
    (folder / SHAPE_FILE).write_text(json.dumps(shape) + "\n", encoding="utf-8")


@dataclass(frozen=True, eq=False)
class MaxSimIndex:
    """The files of `write_vectors`, mapped."""

    doc_ids: list[str]
    starts: NDArray[np.int64]  # [documents + 1]
    vectors: NDArray[np.float16]  # [vectors, width]

    @classmethod
    def open(cls, folder: Path) -> MaxSimIndex:
        """Map the files; inconsistent sizes are an error."""
        if not (folder / SHAPE_FILE).is_file():
            raise MissingIndex(f"{folder} is not a finished ColBERT index: it has no {SHAPE_FILE}", _REBUILD)
        try:
            shape = json.loads((folder / SHAPE_FILE).read_text(encoding="utf-8"))
            width, n_documents, n_vectors = (int(shape[name]) for name in ("width", "documents", "vectors"))
            doc_ids = json.loads((folder / IDS_FILE).read_text(encoding="utf-8"))
            starts = np.load(folder / STARTS_FILE, allow_pickle=False)
            size = (folder / VECTORS_FILE).stat().st_size
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DamagedSegment(f"{folder} cannot be read: {str(error)[:200]}", _REBUILD) from error
        if shape.get("format") != FORMAT:
            raise DamagedSegment(f"{folder / SHAPE_FILE} does not have the format {FORMAT}", _REBUILD)
        expected = 2 * width * n_vectors
        if size != expected:
            raise DamagedSegment(
                f"{folder / VECTORS_FILE} has {size:,} bytes; {SHAPE_FILE} requires {expected:,}", _REBUILD
            )
        ascending = starts.shape == (n_documents + 1,) and bool((np.diff(starts) >= 0).all())
        if len(doc_ids) != n_documents or not ascending or starts[0] or starts[-1] != n_vectors:
            raise DamagedSegment(
                f"{folder}: {STARTS_FILE} and {IDS_FILE} do not match {SHAPE_FILE}", _REBUILD
            )
        vectors = (
            np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="r", shape=(n_vectors, width))
            if size
            else np.zeros((0, width), dtype=np.float16)
        )
        return cls(doc_ids, starts, vectors)

    @torch.inference_mode()
    def scores(self, query: NDArray[np.float32], device: str = "cpu") -> NDArray[np.float32]:
        """Σ_i max_j q_i · d_j of every document, [documents]; a document without vectors scores 0."""
        found = np.zeros(len(self.doc_ids), dtype=np.float32)
        tokens = torch.from_numpy(np.ascontiguousarray(query)).to(device)
        for begin, end in self._blocks():
            first, last = int(self.starts[begin]), int(self.starts[end])
            counts = np.diff(self.starts[begin : end + 1])
            if first == last:
                continue
            block = torch.from_numpy(np.array(self.vectors[first:last])).to(device).float()
            products = tokens @ block.T  # [query tokens, vectors]
            filled = np.flatnonzero(counts)  # reduceat does not accept empty runs
            starts = self.starts[begin:end][filled] - first
            best = np.maximum.reduceat(products.cpu().numpy(), starts, axis=1)
            found[begin + filled] = best.sum(axis=0)
        return found

    def _blocks(self) -> Iterable[tuple[int, int]]:
        """Ranges of documents with at most BLOCK vectors, or a single longer document."""
        begin = 0
        while begin < len(self.doc_ids):
            wanted = self.starts[begin] + BLOCK
            end = max(begin + 1, int(np.searchsorted(self.starts, wanted, side="right")) - 1)
            end = min(end, len(self.doc_ids))
            yield begin, end
            begin = end
