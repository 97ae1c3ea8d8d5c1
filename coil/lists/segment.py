"""Segment: the inverted lists of a block of documents, immutable, in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from coil.errors import InputError
from coil.tokens.list_keys import NO_LIST, ListKeys
from coil.vectors.token_vectors import TokenVectors


@dataclass(frozen=True)
class InvertedList:
    """One token's postings: mentions of one document side by side, documents in order of insertion."""

    ordinals: NDArray[np.int32]  # [mentions]
    vectors: NDArray[np.float32]  # [mentions, n_t]


@dataclass(frozen=True, eq=False)
class Segment:
    """All lists back to back: list `l` is rows `offsets[l]:offsets[l + 1]`."""

    offsets: NDArray[np.int64]  # [vocabulary + 1]
    ordinals: NDArray[np.int32]  # [mentions] the document of each mention
    positions: NDArray[np.int32]  # [mentions] its place in the document
    token_ids: NDArray[np.int32]  # [mentions] its token (a list may hold several, see ListKeys)
    spans: NDArray[np.int32]  # [mentions, 2] its characters
    vectors: NDArray[np.float32]  # [mentions, n_t]
    sentences: NDArray[np.float32]  # [documents, n_c]

    @property
    def n_documents(self) -> int:
        """How many documents are in the segment."""
        return len(self.sentences)

    @property
    def n_mentions(self) -> int:
        """How many postings are in all lists together."""
        return len(self.ordinals)

    def list_of(self, list_id: int) -> InvertedList:
        """The postings of one list; empty when no document mentions it."""
        rows = slice(int(self.offsets[list_id]), int(self.offsets[list_id + 1]))
        return InvertedList(self.ordinals[rows], self.vectors[rows])

    @classmethod
    def build(cls, documents: Iterable[TokenVectors], keys: ListKeys, n_t: int, n_c: int) -> Segment:
        """Turn documents into lists. Mentions of tokens without a list are not stored."""
        parts: dict[str, list[NDArray[np.generic]]] = {
            name: [] for name in ("lists", "ordinals", "positions", "token_ids", "spans", "vectors")
        }
        sentences: list[NDArray[np.float32]] = []
        for ordinal, document in enumerate(documents):
            lists = keys.of(document.token_ids)
            kept = lists != NO_LIST
            n = int(kept.sum()) if n_t else 0
            kept = kept if n_t else np.zeros(len(lists), dtype=bool)
            parts["lists"].append(lists[kept])
            parts["ordinals"].append(np.full(n, ordinal, dtype=np.int32))
            parts["positions"].append(document.positions[kept])
            parts["token_ids"].append(document.token_ids[kept])
            parts["spans"].append(document.spans[kept])
            parts["vectors"].append(document.vectors[kept])
            sentences.append(
                document.sentence if document.sentence is not None else np.zeros(0, dtype=np.float32)
            )
        empty = {"spans": np.zeros((0, 2), np.int32), "vectors": np.zeros((0, n_t), np.float32)}
        joined = {
            name: np.concatenate(arrays) if arrays else empty.get(name, np.zeros(0, np.int32))
            for name, arrays in parts.items()
        }
        order = np.argsort(joined["lists"], kind="stable")  # within a list: by ordinal, then position
        counts = np.bincount(joined["lists"], minlength=keys.vocabulary_size)
        return cls(
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            ordinals=joined["ordinals"][order].astype(np.int32),
            positions=joined["positions"][order].astype(np.int32),
            token_ids=joined["token_ids"][order].astype(np.int32),
            spans=joined["spans"][order].astype(np.int32),
            vectors=joined["vectors"][order].astype(np.float32),
            sentences=np.stack(sentences) if sentences else np.zeros((0, n_c), np.float32),
        )

    def save(self, path: Path, metadata: dict[str, str]) -> None:
        """Write the segment as one safetensors file, whole or not at all."""
        temporary = path.with_suffix(".partial")
        arrays = {field.name: np.ascontiguousarray(getattr(self, field.name)) for field in fields(self)}
        save_file(arrays, temporary, metadata=metadata)
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> tuple[Segment, dict[str, str]]:
        """Read what `save` wrote."""
        try:
            with safe_open(path, framework="numpy") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
                metadata = dict(file.metadata() or {})
            return cls(**arrays), metadata
        except (SafetensorError, TypeError) as error:
            raise InputError(
                f"{path} is not a segment: {error}", "delete the file; it is made again"
            ) from error
