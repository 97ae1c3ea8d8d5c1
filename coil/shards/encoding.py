"""Encoding a window of documents: the lists for each shard, as an index stores them.

A shard receives a segment in the bytes of its file format: stored vectors take a quarter of the space of the
encoder's, and the shard only has to copy them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from coil.lists.building import SegmentBuilder
from coil.lists.precision import Precision
from coil.lists.rows import Long, Rows, encode_spans, row_spans
from coil.lists.segment import MOST_ROWS
from coil.lists.segment_file import segment_bytes
from coil.shards.routing import Routing
from coil.shards.windows import Window
from coil.texts.values import Document
from coil.tokens.contexts import ContextRule
from coil.vectors.encoder import Encoder


@dataclass(frozen=True)
class Part:
    """The part of a window that a shard receives: its documents by ordinal, each with the tokens that were
    dropped, and their lists. A document without text has no lists; it only replaces an earlier one with
    the same id."""

    shard: int
    documents: tuple[tuple[int, Document, int], ...]
    segment: bytes  # b"" if no document has text
    header: str  # the digest of the segment's header

    @property
    def last(self) -> int:
        """The ordinal of the last document."""
        return self.documents[-1][0]

    def to_row(self) -> dict[str, Any]:
        """As plain values, which any process can read."""
        texts = [(ordinal, of.doc_id, of.text, of.fields, n) for ordinal, of, n in self.documents]
        return {
            "shard": self.shard,
            "last": self.last,
            "texts": json.dumps(texts).encode(),
            "segment": self.segment,
            "header": self.header,
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Part:
        """Restore from plain values."""
        documents = tuple(
            (ordinal, Document(doc_id, text, fields), dropped)
            for ordinal, doc_id, text, fields, dropped in json.loads(row["texts"])
        )
        return cls(int(row["shard"]), documents, bytes(row["segment"]), str(row["header"]))


@dataclass
class _Collected:
    builder: SegmentBuilder
    documents: list[tuple[int, Document, int]] = field(default_factory=list)

    def part(self, shard: int) -> Part:
        if not len(self.builder):
            return Part(shard, tuple(self.documents), b"", "")
        header, parts = segment_bytes(self.builder.finish())
        return Part(shard, tuple(self.documents), b"".join(parts), header)


@dataclass(frozen=True)
class RowRules:
    """What determines the rows of a document, besides the model."""

    precision: Precision
    long: Long
    context: ContextRule


class WindowEncoder:
    """Encodes windows for an index with this many shards."""

    def __init__(self, encoder: Encoder, rules: RowRules, count: int) -> None:
        self._encoder, self._rules, self._routing = encoder, rules, Routing(count)

    def encode(self, window: Window) -> Iterator[Part]:
        """The parts for all shards that have a document in the window; usually one each."""
        collected: dict[int, _Collected] = {}
        for (place, document), rows in self._rows(window):
            shard = self._routing.shard_of(document.doc_id)
            found = collected.get(shard)
            if found is not None and len(found.builder) + len(rows) > MOST_ROWS:
                yield found.part(shard)
                found = None
            if found is None:
                found = collected[shard] = _Collected(self._fresh())
            ordinal = self._routing.ordinal(place, shard)
            found.documents.append((ordinal, document, sum(vectors.dropped for _, vectors in rows)))
            for span, vectors in rows:
                found.builder.add(ordinal, span, vectors)
        for shard, found in sorted(collected.items()):
            yield found.part(shard)

    def _rows(self, window: Window) -> Iterator[tuple[tuple[int, Document], Rows]]:
        rules = self._rules
        given = (
            (
                (place, document),
                document,
                [] if document.is_empty else row_spans(self._encoder, document, rules.long, rules.context),
            )
            for place, document in window.documents
        )
        return encode_spans(self._encoder, given, rules.context)

    def _fresh(self) -> SegmentBuilder:
        config = self._encoder.config
        return SegmentBuilder(config.profile, config.n_t, config.n_c, self._rules.precision)
