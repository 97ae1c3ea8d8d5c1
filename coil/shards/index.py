"""ShardedIndex: shards that are searched, explained and changed as one index."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from coil.errors import how_many
from coil.explanations.explanation import Explanation
from coil.forks import make_lock
from coil.hits.spelling import Suggestion
from coil.indexes.hits import Hits
from coil.indexes.index import LeftOut, warn_of_empty
from coil.shards.calls import ShardCalls
from coil.shards.collection import State, Vector, WholeStatistics
from coil.shards.ledger import Deleted, Updated
from coil.shards.reader import ShardedReader, Whole
from coil.shards.whole import WholeManifest
from coil.storage.facts import IndexFacts
from coil.texts.columns import name_columns
from coil.texts.given import GivenDocuments, Texts
from coil.texts.questions import check_callbacks, check_ids
from coil.texts.values import Document, EmptyDocuments
from coil.tokens.profile import By
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")
_STATES = 4  # whose statistics are cached


class Changes(Protocol):
    """Changes the shards, and knows their versions: see `Ledger`."""

    def find_versions(self) -> Callable[[], Vector]:
        """Start finding the version of each shard after the last change that has returned; the returned
        function waits for them."""
        ...

    def update(self, documents: Iterable[Document], go_on: Callable[[], object] | None = None) -> Updated:
        """Add documents, replacing those with the same ids."""
        ...

    def delete(self, doc_ids: Sequence[str]) -> Deleted:
        """Delete documents."""
        ...


class ShardedIndex:
    """An index of several shards. Each call sees one state of each shard, the newest. Thread-safe.

    With `partial`, shards that do not answer are left out of answers; otherwise they cause a MissingShard.
    """

    def __init__(
        self,
        manifest: WholeManifest,
        calls: ShardCalls,
        changes: Changes,
        encoder: Encoder,
        partial: bool = False,
        close: Callable[[], object] | None = None,
        hold: Callable[[Vector], Callable[[], object] | None] = lambda _: None,
    ) -> None:
        self.manifest, self.encoder = manifest, encoder
        self._changes, self._close = changes, close
        self._known: OrderedDict[Vector, WholeStatistics] = OrderedDict()
        self._lock = make_lock()
        documents = tuple(entry.documents for entry in manifest.shards)
        settings = dict(manifest.settings)
        self._whole = Whole(calls, encoder, settings, partial, documents, self._statistics, hold)

    def _statistics(self, state: State) -> WholeStatistics:
        """Computed once for each state of the shards, for all readers."""
        versions = state.versions
        with self._lock:
            found = self._known.pop(versions, None) or WholeStatistics(state)
            self._known[versions] = found  # the last one in the order
            while len(self._known) > _STATES:
                self._known.popitem(last=False)
            return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the shards."""
        if self._close is not None:
            self._close()

    def __repr__(self) -> str:
        return f"<coil.ShardedIndex of {how_many(len(self.manifest.shards), 'shard')}>"

    @contextmanager
    def pinned(self) -> Iterator[ShardedReader]:
        """The current state of the index, for several reads."""
        yield ShardedReader(self._whole, self._changes.find_versions())

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        with self.pinned() as now:
            return now.version

    def __len__(self) -> int:
        with self.pinned() as now:
            return len(now)

    def search(self, query: str, k: int = 10, **how: Any) -> Hits:
        """The k best documents for a query; further arguments are those of `Index.search`."""
        with self.pinned() as now:
            return now.search(query, k, **how)

    def search_many(self, queries: Iterable[str], k: int = 10, **how: Any) -> list[Hits]:
        """The k best documents for each of many queries."""
        with self.pinned() as now:
            return now.search_many(queries, k, **how)

    def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score."""
        with self.pinned() as now:
            return now.explain(query, doc_id, by, plain)

    def suggest(self, query: str, plain: bool = False) -> list[Suggestion]:
        """Did you mean: see `Index.suggest`."""
        with self.pinned() as now:
            return now.suggest(query, plain)

    def inspect(self, longest: int = 10, timeout: float | None = None) -> IndexFacts:
        """Sizes and settings of all shards together."""
        with self.pinned() as now:
            return now.inspect(longest, timeout)

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id; also as `doc_id in index`."""
        with self.pinned() as now:
            return now.has(doc_id)

    def __contains__(self, doc_id: object) -> bool:
        with self.pinned() as now:
            return doc_id in now

    def document(self, doc_id: str) -> Document:
        """A document by its id; also as `index[doc_id]`."""
        with self.pinned() as now:
            return now.document(doc_id)

    def __getitem__(self, doc_id: str) -> Document:
        return self.document(doc_id)

    def update(
        self,
        documents: Texts,
        left_out: LeftOut | None = None,
        go_on: GoOn | None = None,
        id_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        title_column: str | None = None,
    ) -> int:
        """Add documents, replacing those with the same ids: each in the shard that its id belongs to. They
        are searchable when this returns; see `Index.update`."""
        check_callbacks(left_out=left_out, go_on=go_on)
        given = GivenDocuments(documents, name_columns(id_column, text_column, title_column))
        found = self._change(lambda: self._changes.update(given, go_on))
        if found.empty:
            (left_out or warn_of_empty)(EmptyDocuments(found.empty))
        return found.added

    add = update

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Delete documents; returns how many of the ids were there, `missing` is called with the others."""
        check_callbacks(missing=missing)
        wanted = check_ids(doc_ids)
        found = self._change(lambda: self._changes.delete(wanted))
        if found.missing and missing is not None:
            missing(list(found.missing))
        return found.deleted

    def _change(self, change: Callable[[], T]) -> T:
        """Make a change."""
        return change()
