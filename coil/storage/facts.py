"""Facts: what is in an index, counted without what is deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.lists.segment import LiveSegment
from coil.storage.snapshot import Snapshot

NameList = Callable[[int], tuple[str, ...]]


@dataclass(frozen=True)
class IndexFacts:
    """What `coil inspect` tells. Rows, mentions and lists are those of documents that are there."""

    folder: str
    model: dict[str, Any]
    precision: Precision
    long: Long
    documents: int
    rows: int
    deleted_rows: int  # beside these; `coil compact` gives their space back
    mentions: int
    lists: int
    longest_lists: tuple[tuple[tuple[str, ...], int], ...]  # the words that share it, its mentions
    nameless: str  # why these have no names, if they have none
    truncated_documents: int
    segments: int
    version: int  # grows with every change
    unfinished: bool  # `coil index` was interrupted, and --resume can go on
    bytes_lists: int
    bytes_documents: int
    bytes_a_mention: float  # of those that are stored
    token_error: float
    sentence_error: float


def gather_facts(
    snapshot: Snapshot, unfinished: bool, longest: int, name_list: NameList, nameless: str
) -> IndexFacts:
    """Count what a snapshot holds; the `longest` lists are named."""
    manifest, segments = snapshot.manifest, snapshot.segments
    counts: dict[int, int] = {}
    for live in segments:
        lengths = count_living(live)
        for list_id, length in zip(live.segment.list_ids.tolist(), lengths.tolist(), strict=True):
            if length:
                counts[list_id] = counts.get(list_id, 0) + length
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:longest]
    stored = sum(live.segment.n_mentions for live in segments)
    postings = sum(_posting_bytes(live) for live in segments)
    deleted = sum(int((~live.alive).sum()) for live in segments if live.alive is not None)
    settings = manifest.settings
    return IndexFacts(
        folder=str(snapshot.path),
        model={name: settings[name] for name in ("model", "fingerprint", "config")},
        precision=settings["precision"],
        long=settings["long"],
        documents=manifest.n_documents,
        rows=sum(live.segment.n_rows for live in segments) - deleted,
        deleted_rows=deleted,
        mentions=sum(counts.values()),
        lists=len(counts),
        longest_lists=tuple((name_list(list_id), length) for list_id, length in top),
        nameless=nameless,
        truncated_documents=snapshot.count_truncated(),
        segments=len(segments),
        version=manifest.version,
        unfinished=unfinished,
        bytes_lists=sum(entry.lists.bytes for entry in manifest.segments),
        bytes_documents=sum(entry.texts.bytes for entry in manifest.segments),
        bytes_a_mention=postings / stored if stored else 0.0,
        token_error=max((live.segment.token_error for live in segments), default=0.0),
        sentence_error=max((live.segment.sentence_error for live in segments), default=0.0),
    )


def count_living(live: LiveSegment) -> NDArray[np.int64]:
    """How many mentions of rows that are there each list has. [lists]"""
    offsets = live.segment.list_offsets.astype(np.int64)
    if live.alive is None:
        return np.diff(offsets)
    before = np.concatenate(([0], np.cumsum(live.alive[live.segment.checked_rows])))  # [mentions + 1]
    return np.diff(before[offsets])


def _posting_bytes(live: LiveSegment) -> int:
    scales = live.segment.vectors.scales
    return (
        live.segment.mention_rows.nbytes
        + live.segment.vectors.values.nbytes
        + (scales.nbytes if scales is not None else 0)
    )
