"""Windows: a corpus split into numbered parts of a few documents each, for many processes to encode.

Whoever reads a corpus a second time gets the same windows, so a reader that dies can be replaced. Documents
that a shard already has are left out; a digest verifies that what was read before has not changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from coil.errors import ChangedCorpus, CoilError, how_many
from coil.shards.exchange import Refusal
from coil.shards.routing import Routing
from coil.storage.intake import NOTHING_READ, digest_document
from coil.texts.corpora import Documents, read_documents
from coil.texts.values import Document

WINDOW, CHARACTERS = 256, 500_000  # documents of a window, and characters of their texts, at most
_REMEDY = "restore it and use --resume again, or remove the index and start over"


@dataclass(frozen=True)
class CorpusFiles:
    """A corpus that can be read again: files and folders, and the columns that were named for them."""

    paths: tuple[str, ...]
    id_column: str | None = None
    text_column: tuple[str, ...] | None = None
    title_column: str | None = None
    longest: int | None = None  # bytes of a line

    def open(self) -> Documents:
        """Its documents."""
        documents = read_documents(
            *self.paths,
            id_column=self.id_column,
            text_column=self.text_column,
            title_column=self.title_column,
        )
        if self.longest is not None:
            documents.gauge.longest = self.longest
        return documents


@dataclass(frozen=True)
class Reached:
    """How far a corpus was read: the number of documents, their digest, and the number of bytes."""

    documents: int = 0
    digest: bytes = NOTHING_READ
    position: int = 0


@dataclass(frozen=True)
class Window:
    """Documents with their places in the corpus, from 1; and how far it was read up to their end.

    The last window is marked as such; one with a refusal says why no other follows.
    """

    documents: tuple[tuple[int, Document], ...]
    reached: Reached
    is_last: bool = False
    refusal: Refusal | None = None

    def to_row(self) -> dict[str, Any]:
        """As plain values, which any process can read."""
        texts = [(place, of.doc_id, of.text, of.fields) for place, of in self.documents]
        return {
            "documents": json.dumps(texts).encode(),
            "read": self.reached.documents,
            "digest": self.reached.digest,
            "position": self.reached.position,
            "is_last": self.is_last,
            "refusal": b"" if self.refusal is None else self.refusal.to_bytes(),
        }

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Window:
        """Restore from plain values."""
        documents = tuple((place, Document(*parts)) for place, *parts in json.loads(row["documents"]))
        reached = Reached(int(row["read"]), bytes(row["digest"]), int(row["position"]))
        refusal = Refusal.from_bytes(row["refusal"]) if row["refusal"] else None
        return cls(documents, reached, bool(row["is_last"]), refusal)


def cut_windows(
    corpus: CorpusFiles,
    next_ordinals: Sequence[int],
    before: Reached = Reached(),  # noqa: B008  it is frozen
    most: int | None = None,
) -> Iterator[Window]:
    """The documents that the shards do not have yet, given their next ordinals; at most `most` per window.

    An interrupted run had read `before`: if those documents have changed, a ChangedCorpus is raised.
    """
    most = WINDOW if most is None else most
    routing = Routing(len(next_ordinals))
    waiting: list[tuple[int, Document]] = []
    characters = 0
    reached = Reached()
    try:
        documents = corpus.open()
        for document in documents:
            number = reached.documents + 1
            digest = digest_document(reached.digest, document)
            reached = Reached(number, digest, documents.gauge.bytes_read)
            if number == before.documents and digest != before.digest:
                told = f"the first {number:,} documents are not those that the interrupted run has read"
                raise ChangedCorpus(f"the corpus has changed since the interrupted run: {told}", _REMEDY)
            shard = routing.shard_of(document.doc_id)
            if routing.ordinal(number, shard) >= next_ordinals[shard]:
                waiting.append((number, document))
                characters += document.size
            if len(waiting) >= most or characters >= CHARACTERS:
                yield Window(tuple(waiting), reached)
                waiting, characters = [], 0
        if reached.documents < before.documents:
            raise ChangedCorpus(
                f"the corpus has {how_many(reached.documents, 'document')} now, but the interrupted run had "
                f"read {before.documents:,}",
                _REMEDY,
            )
        yield Window(tuple(waiting), reached, is_last=True)
    except CoilError as error:
        yield Window(tuple(waiting), reached, is_last=True, refusal=Refusal.of(error))
