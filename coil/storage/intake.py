"""Intake: numbers documents on their way into an index, compares them with existing ones, and splits them
into rows."""

from __future__ import annotations

import json
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, Protocol, get_args

from coil.errors import SET_ON_DUPLICATE, ChangedCorpus, DuplicateId, InputError, how_many
from coil.texts.columns import USUAL, Columns
from coil.texts.values import Document, EmptyDocuments, EmptyTally

OnDuplicate = Literal["error", "update", "skip"]
Span = tuple[int, int]
Refused = Callable[[Document, InputError], object]

NOTHING_READ = bytes(16)
MOST_BYTES = 999_000_000  # of a document: SQLite allows a row of 1,000,000,000 bytes, overhead included
_MOST_RUNS = 1 << 20
_AT_ONCE = 256  # documents whose ids are looked up together, and at most how much memory they take
_BATCH_BYTES = 1 << 20


class PlacedDocuments(Protocol):
    """Documents that can report the place of the last one."""

    def __iter__(self) -> Iterator[Document]:
        """The documents."""
        ...

    @property
    def mark(self) -> int:
        """The last document's place as a number."""
        ...

    def place_of(self, mark: int, doc_id: str) -> str:
        """A document's place in words."""
        ...

    @property
    def position(self) -> int:
        """Bytes read so far, 0 if they are not counted."""
        ...


@dataclass(frozen=True)
class Consumed:
    """The progress of a build through its corpus: stored in the manifest, so that `--resume` can continue.

    `digest` covers everything read. `starts` has (number, ordinal) of the first document of each run; unless
    duplicates are skipped, the following documents are numbered consecutively from there. The number excludes
    the `empty` documents, which get no ordinal; `documents` counts all.
    """

    documents: int = 0
    digest: bytes = NOTHING_READ
    starts: tuple[tuple[int, int], ...] = ()
    on_duplicate: OnDuplicate = "error"
    finished: bool = False
    empty: int = 0
    columns: Columns = USUAL  # specified for the corpus
    sources: tuple[str, ...] = ()  # its files and folders, as absolute paths; none if it is something else

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest; columns and sources only if there are any."""
        columns = {"columns": self.columns.to_json()} if self.columns.named else {}
        sources = {"sources": self.sources} if self.sources else {}
        return {
            "documents": self.documents,
            "digest": self.digest.hex(),
            "starts": self.starts,
            "on_duplicate": self.on_duplicate,
            "finished": self.finished,
            "empty": self.empty,
            **columns,
            **sources,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Consumed:
        """Parse it from the manifest; raises ValueError, KeyError or TypeError if malformed."""
        value = dict(value)
        columns = Columns.from_json(value.pop("columns", {}))
        sources = value.pop("sources", [])
        if not isinstance(sources, list | tuple) or not all(isinstance(name, str) for name in sources):
            raise ValueError("a source is not a path")
        if value.keys() != cls().to_json().keys():
            raise ValueError("it has missing or unknown keys")
        starts = tuple((number, ordinal) for number, ordinal in value["starts"])
        numbers = [value["documents"], value["empty"], *(number for start in starts for number in start)]
        if not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
            raise ValueError("a count is invalid")
        if value["on_duplicate"] not in get_args(OnDuplicate) or type(value["finished"]) is not bool:
            raise ValueError("a choice is invalid")
        digest = bytes.fromhex(value["digest"])
        if (
            len(digest) != len(NOTHING_READ)
            or value["empty"] > value["documents"]
            or list(starts) != sorted(starts)
        ):
            raise ValueError("its parts contradict each other")
        return cls(
            value["documents"],
            digest,
            starts,
            value["on_duplicate"],
            value["finished"],
            value["empty"],
            columns,
            tuple(sources),
        )

    def added(self, ordinal: int) -> bool:
        """Whether this build has added the document with this ordinal; False if that is unknown."""
        if self.on_duplicate == "skip":
            return False
        number = _number_of(self.starts, ordinal)
        return number is not None and number <= self.documents - self.empty


@dataclass(frozen=True)
class Arrival:
    """A document that goes into the index."""

    number: int  # among all that were read, from 1
    mark: int  # its place, as a number
    empty: int  # how many of these are empty
    document: Document
    spans: list[Span]  # characters of each row; none: the document is empty and will be skipped
    digest: bytes  # of this document and all before it
    position: int  # bytes of the corpus read so far
    size: int  # bytes of its id, text and fields in memory


class SourcePositions:
    """The place of each document, by its number, in little memory: runs of adjacent lines.

    If a corpus has more than a million runs, some are dropped; then a place is only known to be at or after
    another.
    """

    def __init__(self, most_runs: int = _MOST_RUNS) -> None:
        self._numbers, self._marks, self._steps = array("q"), array("q"), array("b")
        self._most_runs = most_runs
        self._exact = True

    def note(self, number: int, mark: int) -> None:
        """Record the mark of a document, whose number is one more than the last."""
        if self._numbers:
            first, start, step = self._numbers[-1], self._marks[-1], self._steps[-1]
            if number == first + 1 and mark - start in (0, 1):
                self._steps[-1] = step = mark - start
            if mark == start + step * (number - first):
                return
        self._numbers.append(number)
        self._marks.append(mark)
        self._steps.append(1)
        if len(self._numbers) > self._most_runs:
            self._exact = False
            for kept in (self._numbers, self._marks, self._steps):
                del kept[1::2]

    def of(self, number: int) -> tuple[int, bool]:
        """The mark of a document, and whether it is exact or that of an earlier document."""
        run = bisect_right(self._numbers, number) - 1
        first, start = self._numbers[run], self._marks[run]
        if self._exact:
            return start + self._steps[run] * (number - first), True
        return start, number == first


class KnownDocuments(Protocol):
    """The documents already in the index. Threads may query them while another commits."""

    def ordinals_of(self, doc_ids: Sequence[str]) -> dict[str, int]:
        """The ordinals of those ids that exist."""
        ...

    def find(self, ordinal: int) -> Document | None:
        """A document by its ordinal, None if there is none."""
        ...


@dataclass(frozen=True)
class _Read:
    """A document as it was read."""

    document: Document
    mark: int
    position: int
    size: int


class Intake:
    """Reads documents, keeps a digest of all, and passes on those that go into the index.

    With `before`, the first documents are only compared with what an interrupted run has read of them.
    Documents are read in batches, so that all of their ids are looked up in the index at once. `forget` may
    be called from another thread.
    """

    def __init__(
        self,
        documents: PlacedDocuments,
        known: KnownDocuments,
        cut: Callable[[Document, Callable[[Document], str]], list[Span]],
        before: Consumed,
        refused: Refused | None = None,
    ) -> None:
        """`refused` is called for a document with too many rows, which is then skipped."""
        self._documents, self._known, self._cut, self._before = documents, known, cut, before
        self._refused = refused
        self._positions = SourcePositions()
        self._under_way: dict[str, int] = {}  # ids that are not in the index yet; bounded by the writer
        self._mark = 0
        self.number = 0
        self.n_empty = 0
        self.digest = NOTHING_READ
        self._empty = EmptyTally()  # of documents without text, which arrive without spans

    def __iter__(self) -> Iterator[Arrival]:
        for batch in self._batches():
            yield from self._arrivals(batch)
        if self.number < self._before.documents:
            raise self._changed(
                f"the corpus now has {how_many(self.number, 'document')}, but the interrupted run had read "
                f"{self._before.documents:,}"
            )

    def _batches(self) -> Iterator[list[_Read]]:
        """Documents in order, in batches. Those before an invalid one are yielded before its error."""
        stream = iter(self._documents)
        while True:
            batch: list[_Read] = []
            size = 0
            failure: Exception | None = None
            try:
                while len(batch) < _AT_ONCE and size < _BATCH_BYTES:
                    document = next(stream)
                    read = _Read(
                        document, self._documents.mark, self._documents.position, size_in_memory(document)
                    )
                    batch.append(read)
                    size += read.size
            except Exception as error:
                failure = error
            if batch:
                yield batch
            if isinstance(failure, StopIteration):
                return
            if failure is not None:
                raise failure

    def _arrivals(self, batch: list[_Read]) -> Iterator[Arrival]:
        mode = self._before.on_duplicate
        first_of: dict[
            str, int | None
        ] = {}  # id → its number in the corpus, None: it was in the index before
        if mode != "update":
            ids = list(dict.fromkeys(read.document.doc_id for read in batch))
            # Pending ids take precedence: an id that a commit has since moved to the index is in both.
            waiting = {doc_id: self._under_way[doc_id] for doc_id in ids if doc_id in self._under_way}
            there = self._known.ordinals_of(ids)
            first_of = {doc_id: self._number_in_index(ordinal) for doc_id, ordinal in there.items()}
            first_of.update(waiting)
        for read in batch:
            document, self._mark = read.document, read.mark
            self.number += 1
            if document.is_empty:
                self.n_empty += 1
            else:
                self._positions.note(self._kept, self._mark)
            fields = json.dumps(document.fields, ensure_ascii=False)
            self._check_size(document, fields)
            self.digest = _digest(self.digest, document.doc_id, document.text, fields)
            if self.number <= self._before.documents:
                self._compare(document)
                continue
            if mode != "update":
                if document.doc_id in first_of:
                    if mode == "skip":
                        continue
                    first = self._place_of(first_of[document.doc_id], document.doc_id)
                    raise DuplicateId(document.doc_id, first, self.here(document), SET_ON_DUPLICATE)
                if not document.is_empty:
                    self._under_way[document.doc_id] = first_of[document.doc_id] = self._kept
            self._empty.see(document)
            try:
                spans = [] if document.is_empty else self._cut(document, self.here)
            except InputError as error:
                if self._refused is None:
                    raise
                self._refused(document, error)
                continue
            yield Arrival(
                self.number,
                read.mark,
                self.n_empty,
                document,
                spans,
                self.digest,
                read.position,
                read.size,
            )

    def _check_size(self, document: Document, fields: str) -> None:
        parts = (document.doc_id, document.text, fields)
        if 4 * sum(map(len, parts)) <= MOST_BYTES:  # no character takes more than four bytes
            return
        size = sum(len(part.encode("utf-8", errors="surrogatepass")) for part in parts)
        if size > MOST_BYTES:
            raise InputError(
                f"{self.here(document)}: its id, text and fields take {size:,} bytes, which exceeds "
                f"the limit of {MOST_BYTES:,}",
                "split the document, or drop its large fields",
            )

    @property
    def empty(self) -> EmptyDocuments:
        """Ids whose last document has no text, each once."""
        return self._empty.found

    @property
    def _kept(self) -> int:
        """The number of the last document among those with text."""
        return self.number - self.n_empty

    def here(self, document: Document) -> str:
        """The place of the last document."""
        return self._documents.place_of(self._mark, document.doc_id)

    def forget(self, doc_ids: Iterable[str]) -> None:
        """Forget ids that are in the index now."""
        for doc_id in doc_ids:
            self._under_way.pop(doc_id, None)

    def _number_in_index(self, ordinal: int) -> int | None:
        """The number in this corpus of a document that is in the index; None: it came from elsewhere."""
        return _number_of(self._before.starts, ordinal)

    def _place_of(self, number: int | None, doc_id: str) -> str:
        """Where a document with this id first occurred."""
        if number is None or number > self._kept:
            return "the index"
        mark, exact = self._positions.of(number)
        place = self._documents.place_of(mark, doc_id)
        return place if exact else f"a place after {place}"

    def _compare(self, document: Document) -> None:
        ordinal = None if document.is_empty else _ordinal_of(self._before.starts, self._kept)
        if ordinal is not None and self._before.on_duplicate != "skip":
            stored = self._known.find(ordinal)
            if stored is not None and stored != document:
                was, now = _shorten(stored.doc_id), _shorten(document.doc_id)
                what = f"a different text or fields for {now}" if was == now else f"{now} instead of {was}"
                raise self._changed(f"{self.here(document)} has {what}")
        if self.number == self._before.documents and self.digest != self._before.digest:
            raise self._changed(
                f"the first {self.number:,} documents differ from those that the interrupted run read"
            )

    def _changed(self, what: str) -> ChangedCorpus:
        return ChangedCorpus(
            f"the corpus has changed since the interrupted run: {what}",
            "restore it and use --resume again, remove the index and start over, or add the rest with "
            "`coil add --on-duplicate update`",
        )


def size_in_memory(document: Document) -> int:
    """The bytes of a document, id included. One emoji makes all characters of its string take four."""
    size = 0
    left: list[Any] = [document.doc_id, document.text, document.fields]
    while left:
        value = left.pop()
        size += sys.getsizeof(value)
        if isinstance(value, dict):
            left += [*value, *value.values()]
        elif isinstance(value, list):
            left += value
    return size


def digest_document(before: bytes, document: Document) -> bytes:
    """The running digest of a corpus with one more document."""
    return _digest(before, document.doc_id, document.text, json.dumps(document.fields, ensure_ascii=False))


def _digest(before: bytes, *parts: str) -> bytes:
    digest = blake2b(before, digest_size=len(NOTHING_READ))
    for part in parts:
        encoded = part.encode("utf-8", errors="surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)
    return digest.digest()


def _number_of(starts: Sequence[tuple[int, int]], ordinal: int) -> int | None:
    """The number of the document that got an ordinal in this build, None if it came from elsewhere."""
    for place in range(len(starts) - 1, -1, -1):
        number, first = starts[place]
        if ordinal >= first:
            found = number + ordinal - first
            ends = place + 1 < len(starts) and found >= starts[place + 1][0]
            return None if ends else found
    return None


def _ordinal_of(starts: Sequence[tuple[int, int]], number: int) -> int | None:
    for first, ordinal in reversed(starts):
        if number >= first:
            return ordinal + number - first
    return None


def _shorten(doc_id: str) -> str:
    return repr(doc_id if len(doc_id) <= 80 else doc_id[:77] + "...")
