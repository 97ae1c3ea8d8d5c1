"""The token vectors of a collection on disk in fp16, and an exact MaxSim search over all of them.

    FOLDER/shape.json      {"format": 1, "width": n, "documents": N, "vectors": M}
    FOLDER/vectors.fp16    M × n numbers, document by document
    FOLDER/starts.npy      [N + 1] first vector of each document
    FOLDER/doc_ids.json    the ids in order

All documents are scored, in blocks that are converted to fp32. The vectors are mapped from disk, or kept in
the memory of a GPU.
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
    """The files of `write_vectors`, opened on a device."""

    doc_ids: list[str]
    starts: torch.Tensor  # [documents + 1], on the CPU
    vectors: torch.Tensor  # [vectors, width], fp16, on the device

    @classmethod
    def open(cls, folder: Path, device: str = "cpu") -> MaxSimIndex:
        """Open the files; inconsistent sizes are an error."""
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
        vectors = (  # copy on write, since PyTorch expects writable memory; nothing is written
            np.memmap(folder / VECTORS_FILE, dtype=np.float16, mode="c", shape=(n_vectors, width))
            if size
            else np.zeros((0, width), dtype=np.float16)
        )
        return cls(doc_ids, torch.from_numpy(starts), torch.from_numpy(vectors).to(device))

    @torch.inference_mode()
    def scores(self, query: NDArray[np.float32]) -> NDArray[np.float32]:
        """Σ_i max_j q_i · d_j of every document, [documents]; a document without vectors scores 0."""
        device = self.vectors.device
        found = torch.zeros(len(self.doc_ids), device=device)
        tokens = torch.from_numpy(np.ascontiguousarray(query)).to(device)
        for begin, end in self._blocks():
            first, last = int(self.starts[begin]), int(self.starts[end])
            if first == last:
                continue
            products = self.vectors[first:last].float() @ tokens.T  # [vectors, query tokens]
            counts = self.starts[begin : end + 1].diff()
            filled = counts.nonzero().flatten()  # the maximum of nothing is not defined
            best = torch.segment_reduce(products, "max", lengths=counts[filled].to(device), axis=0)
            found[(begin + filled).to(device)] = best.sum(dim=1)
        return found.cpu().numpy()

    def _blocks(self) -> Iterable[tuple[int, int]]:
        """Ranges of documents with at most BLOCK vectors, or a single longer document."""
        begin = 0
        while begin < len(self.doc_ids):
            wanted = self.starts[begin] + BLOCK
            end = max(begin + 1, int(torch.searchsorted(self.starts, wanted, right=True)) - 1)
            end = min(end, len(self.doc_ids))
            yield begin, end
            begin = end
